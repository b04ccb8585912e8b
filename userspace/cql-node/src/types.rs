//! CQL types: their names, their numbers on the wire, and the check of a value's shape.

use std::fmt;

use super::body::{Reader, put_u16};
use super::failure::{Failure, Result};

/// A column's type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CqlType {
    Native(Native),
    List(Box<CqlType>),
    Set(Box<CqlType>),
    Map(Box<CqlType>, Box<CqlType>),
    Tuple(Vec<CqlType>),
    /// Matters to names only; a frozen value looks like any other on the wire.
    Frozen(Box<CqlType>),
}

/// A type with no parameters; the discriminant is the option's id on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Native {
    Ascii = 0x01,
    Bigint = 0x02,
    Blob = 0x03,
    Boolean = 0x04,
    Counter = 0x05,
    Decimal = 0x06,
    Double = 0x07,
    Float = 0x08,
    Int = 0x09,
    Timestamp = 0x0B,
    Uuid = 0x0C,
    /// `varchar` is another name for it; on the wire text is a varchar.
    Text = 0x0D,
    Varint = 0x0E,
    Timeuuid = 0x0F,
    Inet = 0x10,
    Date = 0x11,
    Time = 0x12,
    Smallint = 0x13,
    Tinyint = 0x14,
    Duration = 0x15,
}

const NATIVES: [(&str, Native); 21] = [
    ("ascii", Native::Ascii),
    ("bigint", Native::Bigint),
    ("blob", Native::Blob),
    ("boolean", Native::Boolean),
    ("counter", Native::Counter),
    ("decimal", Native::Decimal),
    ("double", Native::Double),
    ("float", Native::Float),
    ("int", Native::Int),
    ("timestamp", Native::Timestamp),
    ("uuid", Native::Uuid),
    ("text", Native::Text),
    ("varchar", Native::Text),
    ("varint", Native::Varint),
    ("timeuuid", Native::Timeuuid),
    ("inet", Native::Inet),
    ("date", Native::Date),
    ("time", Native::Time),
    ("smallint", Native::Smallint),
    ("tinyint", Native::Tinyint),
    ("duration", Native::Duration),
];

impl Native {
    pub(super) fn from_name(name: &str) -> Option<Self> {
        NATIVES.iter().find(|(n, _)| *n == name).map(|(_, t)| *t)
    }

    fn name(self) -> &'static str {
        NATIVES
            .iter()
            .find(|(_, t)| *t == self)
            .map_or("blob", |(n, _)| n)
    }

    /// Length of every value of this type, where it is fixed.
    fn fixed_len(self) -> Option<usize> {
        match self {
            Self::Boolean | Self::Tinyint => Some(1),
            Self::Smallint => Some(2),
            Self::Float | Self::Int | Self::Date => Some(4),
            Self::Bigint | Self::Counter | Self::Double | Self::Timestamp | Self::Time => Some(8),
            Self::Uuid | Self::Timeuuid => Some(16),
            Self::Ascii
            | Self::Blob
            | Self::Decimal
            | Self::Text
            | Self::Varint
            | Self::Inet
            | Self::Duration => None,
        }
    }
}

impl CqlType {
    /// The type without `frozen<>` around it.
    pub(super) fn thawed(&self) -> &Self {
        match self {
            Self::Frozen(inner) => inner.thawed(),
            other => other,
        }
    }

    /// The native type, when it is one.
    pub(super) fn native(&self) -> Option<Native> {
        match self.thawed() {
            Self::Native(n) => Some(*n),
            _ => None,
        }
    }

    /// Writes the `[option]` that names this type.
    pub(super) fn put_option(&self, out: &mut Vec<u8>) {
        match self {
            Self::Native(n) => put_u16(out, *n as u16),
            Self::List(element) => {
                put_u16(out, 0x20);
                element.put_option(out);
            }
            Self::Map(key, value) => {
                put_u16(out, 0x21);
                key.put_option(out);
                value.put_option(out);
            }
            Self::Set(element) => {
                put_u16(out, 0x22);
                element.put_option(out);
            }
            Self::Tuple(elements) => {
                put_u16(out, 0x31);
                put_u16(out, u16::try_from(elements.len()).unwrap_or(u16::MAX));
                elements.iter().for_each(|e| e.put_option(out));
            }
            Self::Frozen(inner) => inner.put_option(out),
        }
    }

    /// Whether `bytes` can be a value of this type. An empty value is allowed where
    /// Cassandra's marshal types allow it, which is everywhere but in small integers,
    /// date, time, duration and collections.
    pub(super) fn check(&self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Native(n) => check_native(*n, bytes),
            Self::Frozen(inner) => inner.check(bytes),
            Self::List(element) | Self::Set(element) => check_elements(bytes, &[element]),
            Self::Map(key, value) => check_elements(bytes, &[key, value]),
            Self::Tuple(elements) => {
                let mut reader = Reader::new(bytes);
                for element in elements {
                    if let Some(v) = reader.bytes().map_err(not_of_type(self))? {
                        element.check(v)?;
                    }
                }
                Ok(())
            }
        }
    }
}

fn not_of_type(t: &CqlType) -> impl Fn(Failure) -> Failure + '_ {
    move |_| Failure::invalid(format!("Not enough bytes to read a {t}"))
}

fn check_elements(bytes: &[u8], kinds: &[&CqlType]) -> Result<()> {
    let short = |_| Failure::invalid("Not enough bytes to read a collection");
    let mut reader = Reader::new(bytes);
    let n = reader.i32().map_err(short)?;
    for _ in 0..n {
        for kind in kinds {
            let value = reader.bytes().map_err(short)?;
            kind.check(
                value
                    .ok_or_else(|| Failure::invalid("null is not supported inside collections"))?,
            )?;
        }
    }
    Ok(())
}

fn check_native(native: Native, bytes: &[u8]) -> Result<()> {
    let n = bytes.len();
    if let Some(len) = native.fixed_len() {
        let may_be_empty = !matches!(
            native,
            Native::Tinyint | Native::Smallint | Native::Date | Native::Time
        );
        if n == len || (n == 0 && may_be_empty) {
            return Ok(());
        }
        return Err(Failure::invalid(format!(
            "Expected {len} byte{} for a {} ({n})",
            plural(len),
            native.name()
        )));
    }
    let fine = match native {
        Native::Ascii => bytes.is_ascii(),
        Native::Text => std::str::from_utf8(bytes).is_ok(),
        Native::Inet => matches!(n, 0 | 4 | 16),
        Native::Decimal => n == 0 || n > 4,
        Native::Duration => n >= 3,
        _ => true,
    };
    if fine {
        Ok(())
    } else {
        Err(Failure::invalid(format!(
            "Invalid value of {n} bytes for a {}",
            native.name()
        )))
    }
}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}

impl fmt::Display for CqlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native(n) => f.write_str(n.name()),
            Self::List(e) => write!(f, "list<{e}>"),
            Self::Set(e) => write!(f, "set<{e}>"),
            Self::Map(k, v) => write!(f, "map<{k}, {v}>"),
            Self::Frozen(e) => write!(f, "frozen<{e}>"),
            Self::Tuple(elements) => {
                f.write_str("tuple<")?;
                for (i, e) in elements.iter().enumerate() {
                    write!(f, "{}{e}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str(">")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_checked() {
        let int = CqlType::Native(Native::Int);
        assert!(int.check(&[0; 4]).is_ok());
        assert!(int.check(&[0; 3]).is_err());
        assert!(CqlType::Native(Native::Text).check(&[0xff]).is_err());
        let list = CqlType::List(Box::new(int));
        assert!(list.check(&[0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 7]).is_ok());
        assert!(list.check(&[0x7f, 0xff, 0xff, 0xff]).is_err());
        assert_eq!(list.to_string(), "list<int>");
    }
}
