//! CQL text to tokens.

use super::failure::{Failure, Result};

/// One token. Keywords are identifiers; where one may stand, the parser decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// An unquoted name or keyword, in lower case.
    Word(String),
    /// A name in double quotes, as written.
    QuotedName(String),
    /// A string in single quotes or between `$$`.
    Text(String),
    /// An integer or float, with its sign.
    Number(String),
    Uuid([u8; 16]),
    Blob(Vec<u8>),
    /// `?`, or `:name`.
    Marker(Option<String>),
    /// Punctuation: one of `( ) [ ] { } , ; : . * = < > + - / %`, or `<=`, `>=`, `!=`.
    Sign(&'static str),
}

const SIGNS: [&str; 22] = [
    "<=", ">=", "!=", "(", ")", "[", "]", "{", "}", ",", ";", ":", ".", "*", "=", "<", ">", "+",
    "-", "/", "%", "@",
];

/// Tokens of one statement: each takes many times the memory of its text.
const MAX_TOKENS: usize = 1 << 18;

/// Splits a statement into tokens, dropping white space and comments.
pub(super) fn tokenize(text: &str) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = skip_blank(rest)?;
        if rest.is_empty() {
            return Ok(tokens);
        }
        if tokens.len() >= MAX_TOKENS {
            return Err(Failure::syntax(format!(
                "a statement may have {MAX_TOKENS} tokens on this node"
            )));
        }
        let (token, after) = next_token(rest, tokens.last())?;
        tokens.push(token);
        rest = after;
    }
}

fn skip_blank(mut text: &str) -> Result<&str> {
    loop {
        text = text.trim_start();
        if text.starts_with("--") || text.starts_with("//") {
            text = text.split_once('\n').map_or("", |(_, after)| after);
        } else if let Some(comment) = text.strip_prefix("/*") {
            text = comment
                .split_once("*/")
                .ok_or_else(|| Failure::syntax("unterminated comment"))?
                .1;
        } else {
            return Ok(text);
        }
    }
}

fn next_token<'a>(text: &'a str, before: Option<&Token>) -> Result<(Token, &'a str)> {
    if let Some(quoted) = text.strip_prefix('\'') {
        return until_quote(quoted, '\'').map(|(s, rest)| (Token::Text(s), rest));
    }
    if let Some(quoted) = text.strip_prefix('"') {
        return until_quote(quoted, '"').map(|(s, rest)| (Token::QuotedName(s), rest));
    }
    if let Some(quoted) = text.strip_prefix("$$") {
        let (s, rest) = quoted
            .split_once("$$")
            .ok_or_else(|| Failure::syntax("unterminated string"))?;
        return Ok((Token::Text(s.to_owned()), rest));
    }
    if let Some(rest) = text.strip_prefix('?') {
        return Ok((Token::Marker(None), rest));
    }
    if let Some(found) = uuid(text) {
        return Ok(found);
    }
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return blob(digits);
    }
    // A sign belongs to the number unless an operand came before it, as in `c = c -1`.
    let after_operand = matches!(
        before,
        Some(Token::Word(_) | Token::QuotedName(_) | Token::Sign(")" | "]"))
    );
    if let Some(found) = number(text, after_operand) {
        return Ok(found);
    }
    // After a constant a colon is the one between a map's key and value.
    if let Some(name) = text.strip_prefix(':')
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '"')
        && !matches!(
            before,
            Some(Token::Text(_) | Token::Number(_) | Token::Uuid(_) | Token::Blob(_))
        )
    {
        return match next_token(name, None)? {
            (Token::Word(s) | Token::QuotedName(s), rest) => Ok((Token::Marker(Some(s)), rest)),
            _ => Err(Failure::syntax("a name is expected after ':'")),
        };
    }
    let word_len = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .unwrap_or(text.len());
    if let Some((word, rest)) = text
        .split_at_checked(word_len)
        .filter(|(w, _)| !w.is_empty())
    {
        return Ok((Token::Word(word.to_ascii_lowercase()), rest));
    }
    SIGNS
        .iter()
        .find_map(|sign| {
            text.strip_prefix(sign)
                .map(|rest| (Token::Sign(sign), rest))
        })
        .ok_or_else(|| {
            let shown: String = text.chars().take(12).collect();
            Failure::syntax(format!("no viable alternative at character '{shown}'"))
        })
}

/// The text up to the closing quote; a doubled quote stands for itself.
fn until_quote(text: &str, quote: char) -> Result<(String, &str)> {
    let mut out = String::new();
    let mut rest = text;
    loop {
        let (head, tail) = rest
            .split_once(quote)
            .ok_or_else(|| Failure::syntax("unterminated quote"))?;
        out.push_str(head);
        match tail.strip_prefix(quote) {
            Some(after) => {
                out.push(quote);
                rest = after;
            }
            None => return Ok((out, tail)),
        }
    }
}

fn uuid(text: &str) -> Option<(Token, &str)> {
    let (candidate, rest) = text.split_at_checked(36)?;
    if rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        return None;
    }
    parse_uuid(candidate).map(|id| (Token::Uuid(id), rest))
}

/// Reads the 8-4-4-4-12 form.
pub(super) fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let mut groups = text.split('-');
    for len in [8, 4, 4, 4, 12] {
        let group = groups.next()?;
        if group.len() != len || !group.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
    }
    if groups.next().is_some() {
        return None;
    }
    u128::from_str_radix(&text.replace('-', ""), 16)
        .ok()
        .map(u128::to_be_bytes)
}

fn blob(digits: &str) -> Result<(Token, &str)> {
    let len = digits
        .find(|c: char| !c.is_ascii_hexdigit())
        .unwrap_or(digits.len());
    let (digits, rest) = digits.split_at_checked(len).unwrap_or((digits, ""));
    let nibble = |b: u8| {
        char::from(b)
            .to_digit(16)
            .and_then(|d| u8::try_from(d).ok())
            .unwrap_or(0)
    };
    let (pairs, odd) = digits.as_bytes().as_chunks::<2>();
    if !odd.is_empty() {
        return Err(Failure::syntax(
            "a blob constant needs an even number of digits",
        ));
    }
    let bytes = pairs
        .iter()
        .map(|[high, low]| nibble(*high) << 4 | nibble(*low))
        .collect();
    Ok((Token::Blob(bytes), rest))
}

fn number(text: &str, after_operand: bool) -> Option<(Token, &str)> {
    let unsigned = if after_operand {
        text
    } else {
        text.strip_prefix('-').unwrap_or(text)
    };
    if !unsigned.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let mut len = text.len() - unsigned.len();
    let mut previous = ' ';
    for c in unsigned.chars() {
        let part = c.is_ascii_digit()
            || matches!(c, '.' | 'e' | 'E')
            || (matches!(c, '+' | '-') && matches!(previous, 'e' | 'E'));
        if !part {
            // `1h30m` is no number.
            if c.is_ascii_alphabetic() {
                return None;
            }
            break;
        }
        len += c.len_utf8();
        previous = c;
    }
    text.split_at_checked(len)
        .map(|(n, rest)| (Token::Number(n.to_owned()), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_every_kind() {
        let tokens = tokenize(
            "SELECT \"A b\", 'it''s' -- c\n 0xCAfe -1.5e-3, :name ? $$x'y$$ \
             123e4567-e89b-12d3-a456-426614174000 <= /* c */ {'a':1};",
        )
        .unwrap();
        assert_eq!(
            tokens,
            [
                Token::Word("select".into()),
                Token::QuotedName("A b".into()),
                Token::Sign(","),
                Token::Text("it's".into()),
                Token::Blob(vec![0xca, 0xfe]),
                Token::Number("-1.5e-3".into()),
                Token::Sign(","),
                Token::Marker(Some("name".into())),
                Token::Marker(None),
                Token::Text("x'y".into()),
                Token::Uuid(0x123e4567_e89b_12d3_a456_426614174000_u128.to_be_bytes()),
                Token::Sign("<="),
                Token::Sign("{"),
                Token::Text("a".into()),
                Token::Sign(":"),
                Token::Number("1".into()),
                Token::Sign("}"),
                Token::Sign(";"),
            ]
        );
    }

    #[test]
    fn broken_text_is_a_syntax_error() {
        for text in ["'open", "\"open", "/* open", "0xabc", "select é", "$$ open"] {
            assert!(tokenize(text).is_err(), "{text}");
        }
        assert!(tokenize(&"(".repeat(MAX_TOKENS + 1)).is_err());
    }
}
