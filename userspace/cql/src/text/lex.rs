//! The tokens of a CQL text, as far as telling statements apart needs them.
//!
//! Follows `Lexer.g` of Cassandra: `--`, `//` and `/* */` comments, `'..'` strings with `''` inside,
//! `$$..$$` strings, `"..".` quoted names with `""` inside. Everything it has no use for, such as
//! numbers, operators and bind markers, is `Other`.

use std::iter;

/// How much of a text is read. The table stands near its beginning, except behind a long list of
/// columns; more than this only costs time.
pub(crate) const MAX_TEXT_BYTES: usize = 16 << 10;

/// The longest name that is kept. Cassandra allows 48 bytes, newer versions 222 for tables.
pub const MAX_NAME_BYTES: usize = 256;

/// Letters, digits and the underscore. A look into a table is a third of the comparisons.
#[expect(
    clippy::indexing_slicing,
    reason = "a table has an entry for every byte"
)]
static IN_WORD: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < table.len() {
        table[byte] = (byte as u8).is_ascii_alphanumeric() || byte as u8 == b'_';
        byte += 1;
    }
    table
};

/// The name of a keyspace or a table, in the form that it was found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name<'t> {
    /// A name as the database stores it.
    Exact(&'t str),
    /// Unquoted: upper case stands for lower case.
    Folded(&'t str),
    /// A name between quotes: `""` stands for `"`.
    Quoted(&'t str),
}

impl<'t> Name<'t> {
    /// The bytes as the database stores them.
    pub fn bytes(self) -> impl Iterator<Item = u8> + 't {
        let (Self::Exact(text) | Self::Folded(text) | Self::Quoted(text)) = self;
        let mut rest = text.bytes();
        iter::from_fn(move || {
            let byte = rest.next()?;
            match self {
                Self::Folded(_) => return Some(byte.to_ascii_lowercase()),
                Self::Quoted(_) if byte == b'"' => _ = rest.next(),
                _ => {}
            }
            Some(byte)
        })
    }

    /// Whether the name is `stored`.
    pub fn is(self, stored: &str) -> bool {
        self.bytes().eq(stored.bytes())
    }

    /// The name as the database stores it.
    pub fn to_boxed(self) -> Box<str> {
        match self {
            Self::Exact(text) => text.into(),
            Self::Folded(text) => text.to_ascii_lowercase().into(),
            Self::Quoted(text) => text.replace("\"\"", "\"").into(),
        }
    }
}

/// A token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token<'t> {
    /// An unquoted identifier or keyword.
    Word(&'t str),
    /// A name between double quotes.
    Quoted(&'t str),
    /// A string literal.
    Literal,
    Dot,
    /// A bracket of any kind.
    Open,
    Close,
    Other,
    /// The text is over, or is none from here on: an open comment or string.
    End,
    /// The text goes on, but not in the part that is read.
    Cut,
}

/// Reads tokens off a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lexer<'t> {
    rest: &'t [u8],
    /// The text is longer than what is read of it.
    cut: bool,
}

impl<'t> Lexer<'t> {
    /// `text`: the beginning of a text that is `declared` bytes long.
    pub(crate) fn new(text: &'t [u8], declared: usize) -> Self {
        let rest = text.get(..MAX_TEXT_BYTES).unwrap_or(text);
        Self {
            rest,
            cut: rest.len() < declared,
        }
    }

    /// `text`: all of a text. Nothing but its end ends it.
    pub(crate) fn whole(text: &'t [u8]) -> Self {
        Self {
            rest: text,
            cut: false,
        }
    }

    /// The bytes that were not read yet.
    pub(crate) fn rest(&self) -> &'t [u8] {
        self.rest
    }

    /// Takes the next `len` bytes for a token that this lexer does not know.
    pub(crate) fn skip(&mut self, len: usize) {
        self.rest = self.rest.get(len..).unwrap_or_default();
    }

    /// The next token. After `End` or `Cut`, the same again.
    pub(crate) fn next(&mut self) -> Token<'t> {
        if !self.skip_blanks() {
            return self.over();
        }
        let Some((first, behind)) = self.rest.split_first() else {
            return self.over();
        };
        match first {
            b'a'..=b'z' | b'A'..=b'Z' => match self.word() {
                Some(word) => Token::Word(word),
                None => self.over(),
            },
            b'0'..=b'9' | b':' => {
                // A number, a blob, the first part of a UUID; or a named bind marker.
                self.rest = behind;
                self.word();
                Token::Other
            }
            b'"' => {
                self.rest = behind;
                match self.delimited(b'"').map(std::str::from_utf8) {
                    Some(Ok(name)) => Token::Quoted(name),
                    Some(Err(_)) => Token::Other,
                    None => self.over(),
                }
            }
            b'\'' => {
                self.rest = behind;
                match self.delimited(b'\'') {
                    Some(_) => Token::Literal,
                    None => self.over(),
                }
            }
            b'$' if behind.first() == Some(&b'$') => {
                self.rest = self.rest.get(2..).unwrap_or_default();
                if self.skip_past(b"$$") {
                    Token::Literal
                } else {
                    self.over()
                }
            }
            single => {
                self.rest = behind;
                match single {
                    b'.' => Token::Dot,
                    b'(' | b'[' | b'{' => Token::Open,
                    b')' | b']' | b'}' => Token::Close,
                    _ => Token::Other,
                }
            }
        }
    }

    fn over(&mut self) -> Token<'t> {
        self.rest = &[];
        if self.cut { Token::Cut } else { Token::End }
    }

    /// Steps over white space and comments; false when a comment has no end.
    // Called from two places; as a call of its own it costs a tenth of a short text.
    #[inline(always)]
    pub(crate) fn skip_blanks(&mut self) -> bool {
        loop {
            self.rest = self.rest.trim_ascii_start();
            let ended = match self.rest {
                [b'-', b'-', ..] | [b'/', b'/', ..] => {
                    let line = self.rest.iter().position(|b| matches!(b, b'\n' | b'\r'));
                    self.rest = line.and_then(|at| self.rest.get(at..)).unwrap_or_default();
                    line.is_some()
                }
                [b'/', b'*', body @ ..] => {
                    self.rest = body;
                    self.skip_past(b"*/")
                }
                _ => return true,
            };
            if !ended {
                return false;
            }
        }
    }

    /// Letters, digits and underscores from here on, perhaps none; `None` if they may go on beyond
    /// what is read.
    fn word(&mut self) -> Option<&'t str> {
        let len = self
            .rest
            .iter()
            .take_while(|b| IN_WORD.get(usize::from(**b)) == Some(&true))
            .count();
        if self.cut && len == self.rest.len() {
            return None;
        }
        let (word, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        std::str::from_utf8(word).ok()
    }

    /// Up to the closing `quote`, which is consumed; a doubled one does not close.
    fn delimited(&mut self, quote: u8) -> Option<&'t [u8]> {
        let mut len = 0;
        loop {
            let behind = self.rest.get(len..)?;
            len += behind.iter().position(|b| *b == quote)?;
            match self.rest.get(len + 1) {
                Some(next) if *next == quote => len += 2,
                // The other half of a doubled quote may lie beyond what is read.
                None if self.cut => return None,
                _ => break,
            }
        }
        let (inside, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest.get(1..).unwrap_or_default();
        Some(inside)
    }

    /// Steps over everything up to `end` and over `end`; false, at the very end, if it never comes.
    fn skip_past(&mut self, end: &[u8; 2]) -> bool {
        let at = self.rest.windows(2).position(|pair| pair == end);
        self.rest = at
            .and_then(|at| self.rest.get(at + 2..))
            .unwrap_or_default();
        at.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Token::{Close, Cut, Dot, End, Literal, Open, Other, Quoted, Word};

    fn lex(text: &str, declared: usize) -> Vec<Token<'_>> {
        let mut lexer = Lexer::new(text.as_bytes(), declared);
        let mut tokens = Vec::new();
        loop {
            tokens.push(lexer.next());
            if let Some(End | Cut) = tokens.last() {
                assert_eq!(Some(&lexer.next()), tokens.last());
                return tokens;
            }
        }
    }

    #[test]
    fn tokens() {
        for (text, expected) in [
            ("", vec![End]),
            (" \t\r\n", vec![End]),
            ("a_1.B", vec![Word("a_1"), Dot, Word("B"), End]),
            (
                "\"A\"\"b\".\"\"",
                vec![Quoted("A\"\"b"), Dot, Quoted(""), End],
            ),
            ("'it''s' x", vec![Literal, Word("x"), End]),
            ("$$ a'b $ $$(x)", vec![Literal, Open, Word("x"), Close, End]),
            (
                "-- c\na//b\rc/* d */e--f",
                vec![Word("a"), Word("c"), Word("e"), End],
            ),
            (
                "1from 0xfrom :from ?",
                vec![Other, Other, Other, Other, End],
            ),
            ("'open", vec![End]),
            ("\"open", vec![End]),
            ("$$open$", vec![End]),
            ("/* open *", vec![End]),
            ("é_", vec![Other, Other, Other, End]),
        ] {
            assert_eq!(lex(text, text.len()), expected, "{text}");
        }
    }

    #[test]
    fn a_cut_text_gives_no_half_tokens() {
        for text in [
            "tab", "\"tab\"", "\"tab", "'it'", "$$a", "1", "-- c", ":b", "/*",
        ] {
            assert_eq!(lex(text, text.len() + 1).last(), Some(&Cut), "{text}");
            let tokens = lex(text, text.len() + 1);
            assert!(
                !tokens.iter().any(|t| matches!(t, Word(_) | Quoted(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn reads_no_further_than_it_says() {
        let text = " ".repeat(MAX_TEXT_BYTES) + "word";
        assert_eq!(lex(&text, text.len()), [Cut]);
        let half_in = &text[2..];
        assert_eq!(lex(half_in, half_in.len()), [Cut]);
        let just_in = &text[4..];
        assert_eq!(lex(just_in, just_in.len()), [Word("word"), End]);
    }

    #[test]
    fn names() {
        for (name, stored) in [
            (Name::Exact("A\"\""), "A\"\""),
            (Name::Folded("AbC"), "abc"),
            (Name::Quoted("A\"\"b"), "A\"b"),
        ] {
            assert_eq!(&*name.to_boxed(), stored);
            assert!(name.is(stored));
            assert!(!name.is("x"));
        }
    }
}
