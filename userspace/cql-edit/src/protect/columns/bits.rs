//! A text as a sequence of names, markers, literals and signs, and what stands between brackets and commas.

use std::ops::Range;

use cql::text::Name;
use cql::text::{Token, Tokens};

/// A token, or a marker that is two of them.
#[derive(Clone, Debug)]
pub(super) enum Bit<'t> {
    Name(Name<'t>),
    Marker(usize),
    Literal(Range<usize>),
    Sign(u8),
}

/// The text's bits, and its markers.
pub(super) type Bits<'t> = (Vec<Bit<'t>>, Vec<Option<Box<str>>>);

pub(super) fn bits(text: &[u8]) -> Option<Bits<'_>> {
    let mut tokens = Tokens::new(text);
    let mut bits = Vec::new();
    let mut markers = Vec::new();
    loop {
        let (token, range) = tokens.next_within(text.len());
        bits.push(match token {
            Token::End => return Some((bits, markers)),
            Token::Bad => return None,
            Token::Word(word) => Bit::Name(Name::Folded(word)),
            Token::Quoted(name) => Bit::Name(Name::Quoted(name)),
            Token::Integer(_) | Token::Literal => Bit::Literal(range),
            Token::Marker => {
                markers.push(None);
                Bit::Marker(markers.len() - 1)
            }
            Token::Sign(b':') => match marker_name(tokens) {
                Some(name) => {
                    tokens.next_token();
                    markers.push(Some(name.to_boxed()));
                    Bit::Marker(markers.len() - 1)
                }
                None => Bit::Sign(b':'),
            },
            Token::Sign(sign) => Bit::Sign(sign),
        });
    }
}

/// The name of a marker whose colon has passed. In a map, NULL or a function may follow a colon, too.
fn marker_name(mut ahead: Tokens<'_>) -> Option<Name<'_>> {
    let name = match ahead.next_token() {
        Token::Word(word) if !word.eq_ignore_ascii_case("null") => Name::Folded(word),
        Token::Quoted(name) => Name::Quoted(name),
        _ => return None,
    };
    let is_function = matches!(ahead.next_token(), Token::Sign(b'(' | b'.'));
    (!is_function).then_some(name)
}

impl Bit<'_> {
    pub(super) fn is(&self, keyword: &str) -> bool {
        matches!(self, Bit::Name(Name::Folded(word)) if word.eq_ignore_ascii_case(keyword))
    }

    pub(super) fn name(&self) -> Option<Box<str>> {
        match self {
            Bit::Name(name) => Some(name.to_boxed()),
            _ => None,
        }
    }
}

pub(super) fn mentions(bits: &[Bit<'_>]) -> Vec<Box<str>> {
    bits.iter().filter_map(Bit::name).collect()
}

/// The index of the first of these that stands in no bracket.
pub(super) fn find(bits: &[Bit<'_>], is: impl Fn(&Bit<'_>) -> bool) -> Option<usize> {
    let mut depth = 0_usize;
    bits.iter().position(|bit| {
        match bit {
            Bit::Sign(b'(' | b'[' | b'{') => depth += 1,
            Bit::Sign(b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && is(bit)
    })
}

/// The pieces between commas, but those in brackets.
pub(super) fn split<'b, 't>(mut bits: &'b [Bit<'t>]) -> Vec<&'b [Bit<'t>]> {
    let mut pieces = Vec::new();
    while let Some(at) = find(bits, |bit| matches!(bit, Bit::Sign(b','))) {
        let (piece, rest) = bits.split_at(at);
        pieces.push(piece);
        bits = rest.get(1..).unwrap_or_default();
    }
    pieces.push(bits);
    pieces
}

/// Returns the bits behind a keyword that stands first.
pub(super) fn behind<'b, 't>(bits: &'b [Bit<'t>], keyword: &str) -> Option<&'b [Bit<'t>]> {
    let (first, rest) = bits.split_first()?;
    first.is(keyword).then_some(rest)
}

/// `t` or `ks.t`, and what is behind it.
pub(super) type Table<'b, 't> = (Option<Box<str>>, Box<str>, &'b [Bit<'t>]);

pub(super) fn table<'b, 't>(bits: &'b [Bit<'t>]) -> Option<Table<'b, 't>> {
    let (first, rest) = bits.split_first()?;
    match rest {
        [Bit::Sign(b'.'), second, rest @ ..] => Some((Some(first.name()?), second.name()?, rest)),
        _ => Some((None, first.name()?, rest)),
    }
}

/// The content of the parenthesis at hand, and the bits behind it.
pub(super) fn parenthesis<'b, 't>(bits: &'b [Bit<'t>]) -> Option<(&'b [Bit<'t>], &'b [Bit<'t>])> {
    if !matches!(bits.first()?, Bit::Sign(b'(')) {
        return None;
    }
    // Its end is the first place at which no bracket is open.
    let end = find(bits, |_| true)?;
    Some((bits.get(1..end)?, bits.get(end + 1..)?))
}
