//! [`Value`]: a bound value.

use std::fmt::Write as _;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// How a value that is left as it is stands in the file.
const UNSET: &str = "unset";

/// The sign in front of a value's bytes.
const HEX: &str = "0x";

/// A value that is bound to a statement. In JSON: `null`, `"unset"`, its length as a number, or `"0x…"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// NULL.
    Null,
    /// A value that is left as it is (`native_protocol_v5.spec` §3, `[value]`).
    Unset,
    /// A value of so many bytes, which are not in the file.
    Length(u32),
    /// A value in its encoded form.
    Bytes(Vec<u8>),
}

impl Value {
    /// The value without its bytes.
    pub fn masked(&self) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Length(bytes.len() as u32),
            other => other.clone(),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => to.serialize_none(),
            Self::Unset => to.serialize_str(UNSET),
            Self::Length(bytes) => to.serialize_u32(*bytes),
            Self::Bytes(bytes) => {
                let mut text = String::with_capacity(HEX.len() + 2 * bytes.len());
                text.push_str(HEX);
                for byte in bytes {
                    // Writing to a String cannot fail.
                    let _ = write!(text, "{byte:02x}");
                }
                to.serialize_str(&text)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let wrong = "expected null, \"unset\", a length in bytes or \"0x…\"";
        match serde_json::Value::deserialize(from)? {
            serde_json::Value::Null => Ok(Self::Null),
            serde_json::Value::Number(length) => {
                let length = length.as_u64().and_then(|length| length.try_into().ok());
                length
                    .map(Self::Length)
                    .ok_or_else(|| D::Error::custom(wrong))
            }
            serde_json::Value::String(text) if text == UNSET => Ok(Self::Unset),
            serde_json::Value::String(text) => {
                let bytes = text.strip_prefix(HEX).and_then(bytes);
                bytes
                    .map(Self::Bytes)
                    .ok_or_else(|| D::Error::custom(wrong))
            }
            _ => Err(D::Error::custom(wrong)),
        }
    }
}

/// The bytes of hexadecimal digits, two each.
fn bytes(digits: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| match *pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    };
    pairs.map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_they_say() {
        let all = [
            (Value::Null, "null"),
            (Value::Unset, "\"unset\""),
            (Value::Length(4), "4"),
            (Value::Bytes(vec![]), "\"0x\""),
            (Value::Bytes(vec![0, 0xFE]), "\"0x00fe\""),
        ];
        for (value, text) in all {
            assert_eq!(serde_json::to_string(&value).unwrap(), text);
            assert_eq!(serde_json::from_str::<Value>(text).unwrap(), value);
        }
        for wrong in [
            "-1",
            "4294967296",
            "1.5",
            "\"0x0\"",
            "\"0x0g\"",
            "\"00\"",
            "[]",
            "true",
        ] {
            let error = serde_json::from_str::<Value>(wrong).unwrap_err();
            assert!(
                error.to_string().starts_with("expected null"),
                "{wrong}: {error}"
            );
        }
    }
}
