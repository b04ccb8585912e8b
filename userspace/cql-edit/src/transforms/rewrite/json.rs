//! The strings of a JSON object, as SELECT JSON gives one for each row.

use std::ops::Range;

/// A string among the members of an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// The member's name, without the quotes that Cassandra puts around names with capital letters.
    pub(super) key: String,
    pub(super) value: String,
    /// The value's place, with its quotes.
    pub(super) at: Range<usize>,
}

/// Members of the outermost object whose values are strings. `None`: the text is no object.
pub(super) fn strings(text: &str) -> Option<Vec<Member>> {
    let mut at = At { text, at: 0 };
    let mut found = Vec::new();
    at.takes(b'{')?;
    if at.takes(b'}').is_some() {
        return at.reaches_end().then_some(found);
    }
    loop {
        let key = at.string()?;
        at.takes(b':')?;
        at.skip_blanks();
        let start = at.at;
        if at.peek() == Some(b'"') {
            let value = at.string()?;
            found.push(Member {
                key: key.trim_matches('"').to_owned(),
                value,
                at: start..at.at,
            });
        } else {
            at.skip_value()?;
        }
        if at.takes(b',').is_none() {
            at.takes(b'}')?;
            return at.reaches_end().then_some(found);
        }
    }
}

/// A place in a text.
struct At<'t> {
    text: &'t str,
    at: usize,
}

impl At<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn takes(&mut self, sign: u8) -> Option<()> {
        self.skip_blanks();
        (self.peek()? == sign).then(|| self.at += 1)
    }

    fn reaches_end(&mut self) -> bool {
        self.skip_blanks();
        self.peek().is_none()
    }

    /// A string, without its escapes (RFC 8259 §7).
    fn string(&mut self) -> Option<String> {
        self.takes(b'"')?;
        let mut string = String::new();
        let rest = self.text.get(self.at..)?;
        let mut chars = rest.char_indices();
        while let Some((n, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += n + 1;
                    return Some(string);
                }
                '\\' => match chars.next()?.1 {
                    'n' => string.push('\n'),
                    'r' => string.push('\r'),
                    't' => string.push('\t'),
                    'b' => string.push('\u{8}'),
                    'f' => string.push('\u{c}'),
                    'u' => {
                        let digits: String =
                            chars.by_ref().take(4).map(|(_, digit)| digit).collect();
                        let code = u32::from_str_radix(&digits, 16).ok()?;
                        // Half of a pair is in no name that is known.
                        string.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                    other => string.push(other),
                },
                c => string.push(c),
            }
        }
        None
    }

    /// Moves past a value that is no string, to the comma or brace behind it.
    fn skip_value(&mut self) -> Option<()> {
        let mut open = 0_usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => open += 1,
                b',' | b'}' if open == 0 => return Some(()),
                b'}' | b']' => open = open.checked_sub(1)?,
                _ => {}
            }
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(text: &str) -> Option<Vec<(String, String, &str)>> {
        let members = strings(text)?.into_iter();
        Some(
            members
                .map(|member| (member.key, member.value, &text[member.at]))
                .collect(),
        )
    }

    #[test]
    fn strings_of_the_outermost_object() {
        let text = r#" {"a": "b", "\"C\"": 1.5, "d": {"a": "x", "e": [1, "}"]}, "f": null , "g":"\"\u0041\\" } "#;
        let of = |key: &str, value: &str, written| (key.to_owned(), value.to_owned(), written);
        let expected = vec![of("a", "b", "\"b\""), of("g", "\"A\\", r#""\"\u0041\\""#)];
        assert_eq!(found(text), Some(expected));
        assert_eq!(found("{}"), Some(vec![]));
        for text in [
            "",
            "[]",
            "{\"a\"}",
            "{\"a\":1",
            "{\"a\":\"b}",
            "{\"a\":1}x",
            "{\"a\":]}",
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_another_writer_has_written_is_read(values: Vec<(String, Option<String>)>) {
            let mut object = serde_json::Map::new();
            for (n, (key, value)) in values.iter().enumerate() {
                let key = format!("{n}{}", key.replace('"', ""));
                object.insert(key, value.clone().map_or(serde_json::json!({"a": [1, "\\"]}), Into::into));
            }
            let expected: Vec<_> = object.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
            let text = serde_json::Value::Object(object).to_string();
            let found: Vec<_> = strings(&text).unwrap().into_iter().map(|member| (member.key, member.value)).collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn noise_does_no_harm(noise in ".{0,60}") {
            let _ = strings(&noise);
            let _ = strings(&format!("{{\"{noise}"));
        }
    }
}
