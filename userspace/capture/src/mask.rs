//! [`masked`]: a statement's text with other literals of the same types and lengths in place of its own.
//!
//! The text stays a statement, so that a database can be asked it. Letters of a text become `x`, digits of numbers and dates
//! `1`, those of blobs and UUIDs `0`. Comments are left out, and numbers behind LIMIT stay: they are the application's.

use cql::text::{Token, Tokens, is_understood};

/// A UUID that is one for `uuid` and for `timeuuid`.
const UUID: &str = "00000000-0000-1000-8000-000000000000";

/// Returns the text without its values. `None`: it is not wholly understood, and so it is not known what is a value.
pub fn masked(text: &str) -> Option<String> {
    if !is_understood(text.as_bytes()) {
        return None;
    }
    let mut tokens = Tokens::new(text.as_bytes());
    let mut out = String::with_capacity(text.len());
    let (mut end, mut limits) = (0, false);
    // Each token takes a byte of the text.
    for _ in 0..=text.len() {
        let (token, range) = tokens.next_within(text.len());
        if matches!(token, Token::End) {
            return Some(out);
        }
        if range.start > end {
            // Blanks, or a comment, which may say anything.
            out.push(' ');
        }
        end = range.end;
        let piece = text.get(range)?;
        match token {
            Token::Bad | Token::End => return None,
            Token::Integer(_) if limits => out.push_str(piece),
            Token::Integer(_) | Token::Literal => literal(piece, &mut out),
            Token::Word(_) | Token::Quoted(_) | Token::Marker | Token::Sign(_) => {
                out.push_str(piece);
            }
        }
        limits = is_limit(&token);
    }
    None
}

/// Whether a literal is in a text, which [`masked`] would have replaced; also where that is not known.
pub fn has_literals(text: &str) -> bool {
    let mut tokens = Tokens::new(text.as_bytes());
    let mut limits = false;
    // Each token takes a byte of the text.
    for _ in 0..=text.len() {
        let token = tokens.next_token();
        match token {
            Token::End => return false,
            Token::Integer(_) if limits => {}
            Token::Bad | Token::Integer(_) | Token::Literal => return true,
            Token::Word(_) | Token::Quoted(_) | Token::Marker | Token::Sign(_) => {}
        }
        limits = is_limit(&token);
    }
    true
}

fn is_limit(token: &Token<'_>) -> bool {
    matches!(token, Token::Word(word) if word.eq_ignore_ascii_case("limit"))
}

/// Writes another literal of this one's type and length.
fn literal(piece: &str, out: &mut String) {
    if let Some(inside) = between(piece, "'") {
        let inside = inside.replace("''", "'");
        out.push('\'');
        string(&inside, out);
        out.push('\'');
    } else if let Some(inside) = between(piece, "$$") {
        out.push_str("$$");
        string(inside, out);
        out.push_str("$$");
    } else if piece.len() == UUID.len() && piece.split('-').count() == UUID.split('-').count() {
        out.push_str(UUID);
    } else if let Some(digits) = piece
        .strip_prefix("0x")
        .or_else(|| piece.strip_prefix("0X"))
    {
        out.push_str("0x");
        out.extend(digits.chars().map(|_| '0'));
    } else if piece.starts_with(|first: char| first.is_ascii_digit() || first == 'P') {
        // A number or a duration, whose units are a part of its type.
        out.extend(piece.chars().map(one));
    } else if piece.eq_ignore_ascii_case("true") || piece.eq_ignore_ascii_case("false") {
        out.push_str("true");
    } else {
        // NaN, Infinity.
        out.push_str("NaN");
    }
}

fn between<'p>(piece: &'p str, sign: &str) -> Option<&'p str> {
    piece.strip_prefix(sign)?.strip_suffix(sign)
}

/// Writes as many characters as a text has. One that may be a time, a date or an address stays one.
fn string(inside: &str, out: &mut String) {
    let is_digits = inside.contains(|c: char| c.is_ascii_digit())
        && inside
            .chars()
            .all(|c| c.is_ascii_digit() || "-:.TZ+ ".contains(c));
    match is_digits {
        true => out.extend(inside.chars().map(one)),
        false => out.extend(inside.chars().map(|_| 'x')),
    }
}

/// A digit's stand-in; any other character as it is.
fn one(character: char) -> char {
    match character.is_ascii_digit() {
        true => '1',
        false => character,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_keep_type_and_length() {
        for (text, expected) in [
            (
                "SELECT a FROM t WHERE k = 'it''s' AND n = -42 LIMIT 50",
                "SELECT a FROM t WHERE k = 'xxxx' AND n = -11 LIMIT 50",
            ),
            (
                "INSERT INTO t (a, b, c, d) VALUES (0xCAFE, 1.5e-7, false, $$grün$$)",
                "INSERT INTO t (a, b, c, d) VALUES (0x0000, 1.1e-1, true, $$xxxx$$)",
            ),
            (
                "SELECT * FROM t WHERE id = 12345678-1234-4234-9234-123456789abc /* ann */ AND at > '2026-11-27 10:30'",
                "SELECT * FROM t WHERE id = 00000000-0000-1000-8000-000000000000 AND at > '1111-11-11 11:11'",
            ),
            (
                "UPDATE t USING TTL 3600 SET m = {'a': 1, 'bc': 22}, d = 3h20m WHERE k = ? -- why\n",
                "UPDATE t USING TTL 1111 SET m = {'x': 1, 'xx': 11}, d = 1h11m WHERE k = ?",
            ),
            (
                "CREATE ROLE r WITH PASSWORD = 'secret'",
                "CREATE ROLE r WITH PASSWORD = 'xxxxxx'",
            ),
            ("SELECT \"Na me\" FROM t", "SELECT \"Na me\" FROM t"),
            ("SELECT a FROM t WHERE k=''", "SELECT a FROM t WHERE k=''"),
        ] {
            let masked = masked(text);
            assert_eq!(masked.as_deref().map(str::trim_end), Some(expected));
        }
    }

    #[test]
    fn a_text_that_is_not_understood_is_not_shown() {
        for text in [
            "",
            "SELECT 'open",
            "secret",
            "SELECT a FROM t WHERE k = 12secret",
        ] {
            assert_eq!(masked(text), None, "{text}");
        }
        assert!(has_literals("SELECT a FROM t WHERE k = 1") && has_literals("'open"));
        assert!(!has_literals("SELECT a FROM t WHERE k = ? LIMIT 10"));
    }
}
