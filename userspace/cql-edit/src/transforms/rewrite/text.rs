//! A text, what is found in it, and changes within it.

use std::cell::OnceCell;
use std::ops::Range;

use crate::sites::{Sites, Spot, spots};

/// The text of a statement, which is followed when somebody asks, and once.
pub(super) struct Text<'t> {
    pub(super) bytes: &'t [u8],
    /// There are not too many of them.
    may_be_followed: bool,
    spots: OnceCell<Option<Vec<Spot<'t>>>>,
    sites: OnceCell<Option<Sites<'t>>>,
}

impl<'t> Text<'t> {
    pub(super) fn new(bytes: &'t [u8], may_be_followed: bool) -> Self {
        Self {
            bytes,
            may_be_followed,
            spots: OnceCell::new(),
            sites: OnceCell::new(),
        }
    }

    /// The text's tokens. `None`: something in it is no token, or it is too long.
    pub(super) fn spots(&self) -> Option<&[Spot<'t>]> {
        let find = || self.may_be_followed.then(|| spots(self.bytes)).flatten();
        self.spots.get_or_init(find).as_deref()
    }

    /// The tokens and the sites of a text that reads or changes data, and is understood.
    pub(super) fn sites(&self) -> Option<(&[Spot<'t>], &Sites<'t>)> {
        let spots = self.spots()?;
        let find = || Sites::of(self.bytes, spots);
        Some((spots, self.sites.get_or_init(find).as_ref()?))
    }
}

/// Replacements of ranges; none of them overlap.
pub(super) type Edits = Vec<(Range<usize>, String)>;

/// The text with these changes. Every change begins and ends where a token does; where what it puts there would become
/// one token with its neighbour, a blank comes between.
pub(super) fn edited(text: &[u8], mut edits: Edits) -> Vec<u8> {
    edits.sort_by_key(|(at, _)| at.start);
    let mut out = Vec::with_capacity(text.len() + 64);
    let mut done = 0;
    for (at, new) in edits {
        append(&mut out, text.get(done..at.start).unwrap_or_default());
        append(&mut out, new.as_bytes());
        done = at.end;
    }
    append(&mut out, text.get(done..).unwrap_or_default());
    out
}

fn append(to: &mut Vec<u8>, piece: &[u8]) {
    if may_join(to, piece) {
        to.push(b' ');
    }
    to.extend_from_slice(piece);
}

/// Whether the last token of `left` and the first one of `right` could be read as one, or as other ones, if nothing
/// stood between.
fn may_join(left: &[u8], right: &[u8]) -> bool {
    let (Some(last), Some(first)) = (left.last(), right.first()) else {
        return false;
    };
    let stands_alone = |byte: &u8| byte.is_ascii_whitespace() || b"(),;[]{}<>=!%".contains(byte);
    if stands_alone(last) || stands_alone(first) {
        return false;
    }
    // The end of a comment.
    if left.ends_with(b"*/") && !b"*/".contains(first) {
        return false;
    }
    // A name and the one that it qualifies; behind a number, a dot is part of it.
    let is_of_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let run = left.iter().rev().take_while(|byte| is_of_word(byte));
    let is_name = *last == b'"' || run.last().is_some_and(u8::is_ascii_alphabetic);
    let begins_name = *first == b'"' || first.is_ascii_alphabetic();
    !(is_name && *first == b'.' || *last == b'.' && begins_name)
}

/// Whether this stands anywhere in the text, in capital letters or not. `word` is in small ones.
pub(super) fn mentions(text: &[u8], word: &str) -> bool {
    let Some((first, rest)) = word.as_bytes().split_first() else {
        return true;
    };
    let is_first = |byte: &u8| byte.to_ascii_lowercase() == *first;
    let mut behind = text;
    while let Some(at) = behind.iter().position(is_first) {
        behind = behind.get(at + 1..).unwrap_or_default();
        let next = behind.get(..rest.len());
        if next.is_some_and(|next| next.eq_ignore_ascii_case(rest)) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use cql::text::{Token, Tokens};

    /// One of each kind of token, and of each form that a kind has.
    const TOKENS: [&str; 45] = [
        "a",
        "w1",
        "P",
        "e5",
        "abcdef12",
        "\"Q\"",
        "\"a\"\"b\"",
        "\"1\"",
        "1",
        "0",
        "1.5",
        "1e5",
        "0xCAFE",
        "1y2mo",
        "PT5M",
        "12345678-1234-1234-1234-123456789abc",
        "abcdef12-1234-1234-1234-123456789abc",
        "'s'",
        "''",
        "'it''s'",
        "$$d$$",
        "true",
        "?",
        ":",
        ".",
        ",",
        ";",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "=",
        "<",
        ">",
        "!",
        "+",
        "-",
        "*",
        "/",
        "%",
        "USING",
        "TTL",
        "set",
    ];

    fn tokens(text: &[u8]) -> Vec<Token<'_>> {
        let mut tokens = Tokens::new(text);
        let mut all = Vec::new();
        while all.len() <= text.len() {
            match tokens.next_token() {
                Token::End => break,
                token => all.push(token),
            }
        }
        all
    }

    /// A token that is put between any two, or in place of one, reads as if there were blanks around it.
    #[test]
    fn no_two_tokens_become_one() {
        for left in TOKENS {
            for new in TOKENS {
                for right in TOKENS {
                    let expected = format!("{left} {new} {right}");
                    for old in ["", "/**/"] {
                        let text = format!("{left}{old}{right}");
                        let at = left.len()..left.len() + old.len();
                        let made = edited(text.as_bytes(), vec![(at, new.to_owned())]);
                        let made_text = String::from_utf8_lossy(&made).into_owned();
                        assert_eq!(tokens(&made), tokens(expected.as_bytes()), "{made_text}");
                    }
                }
                // What is taken away leaves its neighbours what they were.
                let text = format!("{left} {new}");
                let at = left.len()..left.len() + 1;
                let made = edited(text.as_bytes(), vec![(at, String::new())]);
                let made_text = String::from_utf8_lossy(&made).into_owned();
                assert_eq!(tokens(&made), tokens(text.as_bytes()), "{made_text}");
            }
        }
    }

    #[test]
    fn names_keep_their_dots() {
        for (text, at, new, expected) in [
            ("a.b", 0..1, "shop_2", "shop_2.b"),
            ("a.b", 2..3, "\"Q\"", "a.\"Q\""),
            ("a.b", 2..3, "_2", "a. _2"),
        ] {
            let made = edited(text.as_bytes(), vec![(at, new.to_owned())]);
            assert_eq!(String::from_utf8_lossy(&made), expected);
        }
    }

    #[test]
    fn words_are_found_wherever_they_stand() {
        for (text, found) in [
            ("ttl", true),
            ("xTtLx", true),
            ("t tl", false),
            ("tt", false),
            ("ttttl", true),
            ("", false),
        ] {
            assert_eq!(mentions(text.as_bytes(), "ttl"), found, "{text}");
        }
    }

    #[test]
    fn edits_are_made_in_the_order_of_the_text() {
        let edits = vec![
            (4..5, "E".to_owned()),
            (0..1, String::new()),
            (2..2, "(".to_owned()),
        ];
        assert_eq!(edited(b"a,c;e)", edits), b",(c;E)");
    }
}
