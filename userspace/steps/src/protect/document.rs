//! The document of keys, in a file or from a key server: the keys, and which one encrypts.
//!
//! ```toml
//! active = "2026-02"
//! [keys]
//! 2026-01 = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
//! 2026-02 = "303132333435363738396162636465663031323334353637383961626364656630"
//! ```
//!
//! No error message contains any of the document's values.

use std::{collections::BTreeMap, fmt};

use base64::{
    Engine,
    alphabet::{STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use cql_edit::protect::{KEY_BYTES, KeySet};
use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

/// The largest document. The most keys, with the longest ids, take a quarter of it, so a larger one
/// is a mistake.
pub(super) const MAX_BYTES: usize = 128 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    active: String,
    keys: BTreeMap<String, Secret>,
}

/// A text that is wiped when dropped, and never shown.
struct Secret(Zeroizing<String>);

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from).map(|text| Self(Zeroizing::new(text)))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

/// Reads a file's document.
pub(super) fn of_toml(bytes: &[u8]) -> Result<KeySet, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    let document: Document = toml::from_str(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        let before = bytes.get(..at).unwrap_or_default();
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        // The parser's own message may show the values that it has found.
        format!("line {line}: expected `active = \"ID\"`, and `ID = \"KEY\"` in [keys]")
    })?;
    document.keys()
}

/// Reads a key server's document.
pub(super) fn of_json(bytes: &[u8]) -> Result<KeySet, String> {
    let document: Document = serde_json::from_slice(bytes).map_err(|e| {
        format!(
            "line {}, column {}: expected {{\"active\": \"ID\", \"keys\": {{\"ID\": \"KEY\"}}}}",
            e.line(),
            e.column()
        )
    })?;
    document.keys()
}

impl Document {
    fn keys(self) -> Result<KeySet, String> {
        let keys = self.keys.into_iter().map(|(id, text)| {
            let key = decoded(&text.0).ok_or_else(|| {
                format!("key {id}: expected {KEY_BYTES} bytes, in base64 or as hexadecimal digits")
            })?;
            Ok((id, key))
        });
        let keys = keys.collect::<Result<Vec<_>, String>>()?;
        KeySet::new(&self.active, keys)
    }
}

/// Decodes a key from 64 hexadecimal digits, or base64 in either alphabet, with padding or without.
fn decoded(text: &str) -> Option<Zeroizing<[u8; KEY_BYTES]>> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    if text.len() == 2 * KEY_BYTES {
        let (pairs, _) = text.as_bytes().as_chunks::<2>();
        for (byte, [high, low]) in key.iter_mut().zip(pairs) {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
        }
        return Some(key);
    }
    let config =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let decoded = [STANDARD, URL_SAFE].iter().find_map(|alphabet| {
        let engine = GeneralPurpose::new(alphabet, config);
        engine.decode(text).ok().map(Zeroizing::new)
    })?;
    (decoded.len() == KEY_BYTES).then(|| key.copy_from_slice(&decoded))?;
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE64: &str = "/u7u7u7u7u7u7u7u7u7u7u7u7u7u7u7u7u7u7u7u7+4=";

    #[test]
    fn a_key_is_written_in_several_ways() {
        let plain = BASE64.trim_end_matches('=');
        let url_safe = plain.replace('/', "_").replace('+', "-");
        let expected = decoded(BASE64).unwrap();
        assert_eq!(expected[0], 0xFE);
        let hex: String = expected.iter().map(|byte| format!("{byte:02X}")).collect();
        for text in [plain, &url_safe, &hex, &hex.to_lowercase()] {
            assert_eq!(decoded(text), Some(expected.clone()), "{text}");
        }
        for text in [
            "",
            "abcd",
            &BASE64[4..],
            &format!("{hex}00"),
            &hex.replace('E', "G"),
        ] {
            assert_eq!(decoded(text), None, "{text}");
        }
    }

    #[test]
    fn files_and_servers_say_the_same() {
        let toml = format!(
            "active = \"2026-02\"\n[keys]\n2026-01 = \"{BASE64}\"\n2026-02 = \"{BASE64}\"\n"
        );
        let json = format!(
            "{{\"keys\": {{\"2026-01\": \"{BASE64}\", \"2026-02\": \"{BASE64}\"}}, \"active\": \"2026-02\"}}"
        );
        let expected = "KeySet { active: \"2026-02\", ids: [\"2026-01\", \"2026-02\"] }";
        assert_eq!(format!("{:?}", of_toml(toml.as_bytes()).unwrap()), expected);
        assert_eq!(format!("{:?}", of_json(json.as_bytes()).unwrap()), expected);
    }

    #[test]
    fn nothing_of_a_key_is_in_what_is_said_of_a_mistake() {
        let short = &BASE64[8..];
        for (toml, expected) in [
            (
                format!("active = \"a\"\n[keys]\na = \"{short}\""),
                "key a: expected 32 bytes",
            ),
            (format!("active = \"a\"\n[keys]\na = {short}"), "line 3"),
            (
                format!("active = \"a\"\n[keys]\na = [\"{BASE64}\"]"),
                "line 3",
            ),
            (format!("active = \"a\"\nkeys = \"{BASE64}\""), "line 2"),
            (
                format!("active = \"b\"\n[keys]\na = \"{BASE64}\""),
                "active: expected the id",
            ),
            (format!("[keys]\na = \"{BASE64}\""), "expected `active"),
            (
                format!("active = \"a\"\nx = \"{BASE64}\"\n[keys]"),
                "expected `active",
            ),
        ] {
            let error = of_toml(toml.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("u7u7"), "{error}");
        }
        for json in [
            format!("{{\"active\": \"a\", \"keys\": \"{BASE64}\"}}"),
            format!("{{\"active\": \"a\", \"keys\": {{\"a\": \"{short}\"}}}}"),
            format!("{{\"active\": \"a\", \"keys\": {{\"a\": [\"{BASE64}\"]}}}}"),
            BASE64.to_owned(),
        ] {
            let error = of_json(json.as_bytes()).unwrap_err();
            assert!(!error.contains("u7u7"), "{error}");
        }
        assert!(of_toml(&[0xFF]).unwrap_err().contains("UTF-8"));
    }
}
