//! The tokens of a whole statement: those of [`Lexer`], and the literals that it has no use for.
//!
//! Follows `Lexer.g` of Cassandra 5. Where the two could be taken apart differently, the token is
//! [`Token::Bad`]: a literal must never pass for a word.

use crate::text::lex::{self, Lexer};

/// A token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'t> {
    /// An unquoted identifier or keyword.
    Word(&'t str),
    /// A name between double quotes.
    Quoted(&'t str),
    /// Digits.
    Integer(&'t str),
    /// Any other literal, but NULL, which is also part of other things.
    Literal,
    /// `?`
    Marker,
    /// A character of punctuation.
    Sign(u8),
    /// The text ends.
    End,
    /// Nothing that CQL knows, or something that has no end.
    Bad,
}

/// Whether `byte` may follow neither a number nor a UUID.
fn continues_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// Reads tokens off a text. A copy looks ahead.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'t>(Lexer<'t>);

impl<'t> Tokens<'t> {
    /// The tokens of a whole `text`.
    pub fn new(text: &'t [u8]) -> Self {
        Self(Lexer::whole(text))
    }

    /// The next token. After `End`, the same again.
    pub fn next_token(&mut self) -> Token<'t> {
        // An open comment: whether it is one depends on who reads it.
        if !self.0.skip_blanks() {
            return Token::Bad;
        }
        let rest = self.0.rest();
        let Some(first) = rest.first() else {
            return Token::End;
        };
        if let Some(literal) = literal(rest) {
            return self.literal(rest, literal);
        }
        match first {
            b'?' => self.single(Token::Marker),
            b'(' | b')' | b'[' | b']' | b'{' | b'}' | b',' | b'.' | b';' | b':' | b'=' | b'<'
            | b'>' | b'!' | b'+' | b'-' | b'*' | b'/' | b'%' => self.single(Token::Sign(*first)),
            _ => match self.0.next() {
                lex::Token::Word(word) if is_constant(word) => Token::Literal,
                lex::Token::Word(word) => Token::Word(word),
                lex::Token::Quoted(name) => Token::Quoted(name),
                lex::Token::Literal => Token::Literal,
                // An open quote, or a byte that begins nothing.
                _ => Token::Bad,
            },
        }
    }

    /// The next token, and how many bytes of the text are left where it begins and where it ends.
    pub fn next_at(&mut self) -> (Token<'t>, usize, usize) {
        if !self.0.skip_blanks() {
            return (Token::Bad, 0, 0);
        }
        let begins = self.0.rest().len();
        let token = self.next_token();
        (token, begins, self.0.rest().len())
    }

    /// The next token, and where it is in a text of so many bytes.
    pub fn next_within(&mut self, text_bytes: usize) -> (Token<'t>, std::ops::Range<usize>) {
        let (token, begins, ends) = self.next_at();
        let at = |left: usize| text_bytes.saturating_sub(left);
        (token, at(begins)..at(ends))
    }

    /// How many bytes of the text are behind the last token.
    pub(super) fn left(&self) -> usize {
        self.0.rest().len()
    }

    fn single(&mut self, token: Token<'t>) -> Token<'t> {
        self.0.skip(1);
        token
    }

    fn literal(&mut self, rest: &'t [u8], Found { len, integer }: Found) -> Token<'t> {
        if rest.get(len).copied().is_some_and(continues_word) {
            return Token::Bad;
        }
        self.0.skip(len);
        let digits = rest.get(..len).and_then(|d| std::str::from_utf8(d).ok());
        match digits {
            Some(digits) if integer => Token::Integer(digits),
            _ => Token::Literal,
        }
    }
}

/// Words that are values wherever they stand.
fn is_constant(word: &str) -> bool {
    ["true", "false", "nan", "infinity"]
        .iter()
        .any(|constant| word.eq_ignore_ascii_case(constant))
}

/// A literal that `rest` begins with.
struct Found {
    len: usize,
    integer: bool,
}

/// Numbers, blobs, UUIDs and durations, without a sign.
fn literal(rest: &[u8]) -> Option<Found> {
    let first = rest.first()?;
    if !first.is_ascii_alphanumeric() {
        return None;
    }
    if first.is_ascii_hexdigit() && is_like(rest, UUID) {
        return Some(Found::other(UUID.len()));
    }
    match first {
        b'0'..=b'9' => Some(number(rest)),
        b'P' => iso_duration(rest).map(Found::other),
        _ => None,
    }
}

impl Found {
    fn other(len: usize) -> Self {
        Self {
            len,
            integer: false,
        }
    }
}

const UUID: &[u8] = b"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";

/// The "alternative format" of ISO 8601.
const PERIOD: &[u8] = b"P0000-00-00T00:00:00";

/// `rest` begins as `pattern` says: `x` is a hexadecimal digit, `0` a digit, and the rest itself.
fn is_like(rest: &[u8], pattern: &[u8]) -> bool {
    rest.len() >= pattern.len()
        && rest.iter().zip(pattern).all(|(byte, like)| match like {
            b'x' => byte.is_ascii_hexdigit(),
            b'0' => byte.is_ascii_digit(),
            _ => byte == like,
        })
        && !rest.get(pattern.len()).copied().is_some_and(continues_word)
}

fn digits(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|b| b.is_ascii_digit()).count()
}

fn behind(bytes: &[u8], at: usize) -> &[u8] {
    bytes.get(at..).unwrap_or_default()
}

/// `rest` begins with a digit.
fn number(rest: &[u8]) -> Found {
    if let [b'0', b'x' | b'X', hex @ ..] = rest {
        let hex = hex.iter().take_while(|b| b.is_ascii_hexdigit()).count();
        return Found::other(2 + hex);
    }
    let whole = digits(rest);
    if let Some(len) = duration(rest) {
        return Found::other(len);
    }
    let mut len = whole;
    // Two dots are a range.
    if let [b'.', ..] = behind(rest, len)
        && behind(rest, len).get(1) != Some(&b'.')
    {
        len += 1 + digits(behind(rest, len + 1));
    }
    if let [b'e' | b'E', exponent @ ..] = behind(rest, len) {
        let sign = usize::from(matches!(exponent.first(), Some(b'+' | b'-')));
        let exponent = digits(behind(exponent, sign));
        if exponent > 0 {
            len += 1 + sign + exponent;
        }
    }
    Found {
        len,
        integer: len == whole,
    }
}

/// `1y2mo3w4d5h6m7s8ms9us10ns`: its length, if there is a unit at all.
fn duration(rest: &[u8]) -> Option<usize> {
    let mut len = 0;
    loop {
        let digits = digits(behind(rest, len));
        let unit = match behind(rest, len + digits) {
            [0xC2, 0xB5, b's' | b'S', ..] => 3,
            [first, second, ..]
                if [*b"mo", *b"ms", *b"us", *b"ns"]
                    .contains(&[first.to_ascii_lowercase(), second.to_ascii_lowercase()]) =>
            {
                2
            }
            [unit, ..] if b"ywdhms".contains(&unit.to_ascii_lowercase()) => 1,
            _ => 0,
        };
        if digits == 0 || unit == 0 {
            return (len > 0).then_some(len);
        }
        len += digits + unit;
    }
}

/// `P1Y2M3DT4H5M6S`, `P1W` and the like; `None` for a word that only begins so.
fn iso_duration(rest: &[u8]) -> Option<usize> {
    if is_like(rest, PERIOD) {
        return Some(PERIOD.len());
    }
    let mut len = parts(rest, 1, b"W").max(parts(rest, 1, b"YMD"));
    if behind(rest, len).first() == Some(&b'T') {
        let timed = parts(rest, len + 1, b"HMS");
        if timed > len + 1 {
            len = timed;
        }
    }
    let ends = !rest.get(len).copied().is_some_and(continues_word);
    (len > 1 && ends).then_some(len)
}

/// The end of the digits with `units` that begin at `at`: in this order, and each may be missing.
fn parts(rest: &[u8], at: usize, units: &[u8]) -> usize {
    units.iter().fold(at, |at, unit| {
        let digits = digits(behind(rest, at));
        match behind(rest, at + digits).first() {
            Some(found) if digits > 0 && found == unit => at + digits + 1,
            _ => at,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Token::{Bad, Integer, Literal, Marker, Quoted, Sign, Word};

    fn tokens(text: &str) -> Vec<Token<'_>> {
        let mut tokens = Tokens::new(text.as_bytes());
        let mut all = Vec::new();
        while all.len() <= text.len() {
            match tokens.next_token() {
                Token::End => return all,
                token => all.push(token),
            }
        }
        // What is bad is not stepped over, or not wholly.
        all
    }

    #[test]
    fn literals_are_one_token_each() {
        for literal in [
            "0",
            "12",
            "1.5",
            "1.",
            "1e5",
            "1E-5",
            "1.5e+5",
            "0x",
            "0xCAFE",
            "0Xcafe",
            "'it''s'",
            "''",
            "$$it's$ $$",
            "12345678-1234-1234-1234-123456789abc",
            "abcdef12-1234-1234-1234-123456789abc",
            "ABCDEFAB-CDEF-ABCD-EFAB-CDEFABCDEFAB",
            "1y2mo3w4d5h6m7s8ms9us10ns",
            "5\u{b5}s",
            "1D",
            "P1Y",
            "P1Y2M3DT4H5M6S",
            "P3D",
            "PT5M",
            "P2W",
            "P0001-02-03T04:05:06",
            "true",
            "FALSE",
            "NaN",
            "infinity",
        ] {
            let found = tokens(literal);
            assert!(
                matches!(found[..], [Literal | Integer(_)]),
                "{literal}: {found:?}"
            );
        }
    }

    #[test]
    fn words_are_no_literals() {
        for word in [
            "P", "P1", "PT", "p1y", "P1Y2", "Px", "nano", "e5", "abcdef12", "x", "T5H",
        ] {
            assert_eq!(tokens(word), [Word(word)]);
        }
        assert_eq!(tokens("\"a\"\"b\""), [Quoted("a\"\"b")]);
    }

    #[test]
    fn what_could_be_two_things_is_bad() {
        for text in [
            "1abc", "1_", "0xfoo", "1h30", "1.5d", "12\u{e9}", "'open", "\"open", "$$open$", "$",
            "@", "\u{e9}", "a\u{e9}",
        ] {
            assert!(tokens(text).contains(&Bad), "{text}");
        }
        let uuid = "12345678-1234-1234-1234-123456789abcd";
        assert!(tokens(uuid).contains(&Bad), "{:?}", tokens(uuid));
    }

    #[test]
    fn what_stands_between() {
        assert_eq!(
            tokens("a=-1--x\n+?/* ' */;"),
            [
                Word("a"),
                Sign(b'='),
                Sign(b'-'),
                Integer("1"),
                Sign(b'+'),
                Marker,
                Sign(b';')
            ]
        );
        assert_eq!(
            tokens("[0..5]"),
            [
                Sign(b'['),
                Integer("0"),
                Sign(b'.'),
                Sign(b'.'),
                Integer("5"),
                Sign(b']')
            ]
        );
        assert_eq!(tokens(":a 1.e")[..3], [Sign(b':'), Word("a"), Bad]);
        assert_eq!(tokens("a -- b"), [Word("a"), Bad]);
        assert_eq!(tokens("a /* b"), [Word("a"), Bad]);
    }
}
