//! [`masked`]: a statement's text with other literals of the same types and lengths in place of its own.
//!
//! The text stays a statement, so that a database can be asked it. Letters of a text become `x`, digits of numbers and dates
//! `1`, those of blobs and UUIDs `0`. Comments are left out, and numbers behind LIMIT stay: they are the application's.
//!
//! **Invariant**: a word stays only where the grammar has a keyword or a name. Any other one is a value, in double quotes or
//! without any, and becomes `x` too. So do the names of a user type's fields, which look like the keys of a map.

use std::ops::Range;

use cql::text::{Token, Tokens, kept};

/// A UUID that is one for `uuid` and for `timeuuid`.
const UUID: &str = "00000000-0000-1000-8000-000000000000";

/// Returns the text without its values. `None`: it is not wholly understood, and so it is not known what is a value.
pub fn masked(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut end = 0;
    each_token(text, |token, at, is_value| {
        if at.start > end {
            // Blanks, or a comment, which may say anything.
            out.push(' ');
        }
        end = at.end;
        let piece = text.get(at)?;
        match token {
            _ if !is_value => out.push_str(piece),
            Token::Word(word) => out.extend(word.chars().map(|_| 'x')),
            Token::Quoted(name) => {
                out.push('"');
                out.extend(name.replace("\"\"", "\"").chars().map(|_| 'x'));
                out.push('"');
            }
            _ => literal(piece, &mut out),
        }
        Some(())
    })?;
    Some(out)
}

/// Whether a value is in a text, which [`masked`] would have replaced; also where that is not known.
pub fn has_literals(text: &str) -> bool {
    let mut found = false;
    let read = each_token(text, |_, _, is_value| {
        found |= is_value;
        Some(())
    });
    found || read.is_none()
}

/// Hands over each token, where it is, and whether it is a value. `None`: the text is not wholly understood.
fn each_token(
    text: &str,
    mut take: impl FnMut(Token<'_>, Range<usize>, bool) -> Option<()>,
) -> Option<()> {
    let mut kept = kept(text.as_bytes())?.into_iter().peekable();
    let mut tokens = Tokens::new(text.as_bytes());
    // Each token takes a byte of the text.
    for _ in 0..=text.len() {
        let (token, at) = tokens.next_within(text.len());
        let left = text.len().checked_sub(at.end)?;
        let is_value = match token {
            Token::End => return Some(()),
            Token::Bad => return None,
            Token::Literal => true,
            Token::Marker | Token::Sign(_) => false,
            Token::Word(_) | Token::Quoted(_) | Token::Integer(_) => {
                kept.next_if_eq(&left).is_none()
            }
        };
        take(token, at, is_value)?;
    }
    None
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
            (
                "SELECT a FROM t WHERE e IN (\"a@b.c\", bob, null, :bob, f(bob)) PER PARTITION LIMIT 2",
                "SELECT a FROM t WHERE e IN (\"xxxxx\", xxx, null, :bob, f(xxx)) PER PARTITION LIMIT 2",
            ),
            (
                "INSERT INTO t (a, b) VALUES ((frozen<ks.\"T\">) {s: \"it\"\"s\", 'k':bob}, [limit, 5])",
                "INSERT INTO t (a, b) VALUES ((frozen<ks.\"T\">) {x: \"xxxx\", 'x':xxx}, [xxxxx, 1])",
            ),
            (
                "CREATE TABLE t (a int) WITH comment = bob AND x = \"bob\" AND y = $$bob$$",
                "CREATE TABLE t (a int) WITH comment = xxx AND x = \"xxx\" AND y = $$xxx$$",
            ),
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
            "SELECT a FROM t WHERE k = secret",
            "SELECT a FROM t WHERE k = \"secret\"",
            "SELECT a FROM t WHERE k = f(1).secret",
            "UPDATE t SET a = a.secret WHERE k = 1",
            "CREATE TABLE t (a int) WITH comment = f(secret)",
            "CREATE TABLE t (a int) WITH comment = +secret",
            "CREATE ROLE r WITH ACCESS TO DATACENTERS secret",
            "GRANT SELECT ON MBEAN secret TO r",
            "DROP IDENTITY secret",
        ] {
            assert_eq!(masked(text), None, "{text}");
        }
        assert!(has_literals("SELECT a FROM t WHERE k = 1") && has_literals("'open"));
        assert!(!has_literals("SELECT a FROM t WHERE k = ? LIMIT 10"));
        assert!(has_literals("SELECT a FROM t WHERE k IN (\"secret\")"));
    }
}
