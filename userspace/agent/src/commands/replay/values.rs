//! Values made up where the file has their lengths alone.

use ::capture::Value;
use cql_client::{ColType, Value as Sent};

/// A UUID of version 1, which is one for `timeuuid` as well.
const UUID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0, 0, 0, 0, 0];

/// The longest value that is made up: as long as a request of a capture.
const MAX_MADE_UP_BYTES: usize = 64 << 10;

/// The value to send in place of one of the file, for a column of this type.
pub(super) fn sent(value: &Value, kind: Option<ColType>) -> Sent {
    match value {
        Value::Null => Sent::Null,
        Value::Unset => Sent::NotSet,
        Value::Bytes(bytes) => Sent::Some(bytes.clone()),
        Value::Length(length) => {
            let length = usize::try_from(*length).unwrap_or(MAX_MADE_UP_BYTES);
            Sent::Some(made_up(length.min(MAX_MADE_UP_BYTES), kind))
        }
    }
}

/// A value of this type, and of this length where the type has any.
fn made_up(length: usize, kind: Option<ColType>) -> Vec<u8> {
    match kind {
        Some(ColType::Ascii | ColType::Varchar) => vec![b'x'; length],
        Some(ColType::Uuid | ColType::Timeuuid) if length == UUID.len() => UUID.into(),
        // One with elements would have to know theirs.
        Some(ColType::List | ColType::Set | ColType::Map) => vec![0; 4],
        Some(ColType::Udt | ColType::Tuple) => Vec::new(),
        Some(ColType::Duration) => vec![0; 3],
        // Numbers, dates, addresses, blobs, vectors.
        _ => vec![0; length],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_up_has_the_length_that_the_type_allows() {
        let of = |kind, length| sent(&Value::Length(length), Some(kind));
        assert_eq!(of(ColType::Varchar, 3), Sent::Some(b"xxx".into()));
        assert_eq!(of(ColType::Int, 4), Sent::Some(vec![0; 4]));
        assert_eq!(of(ColType::Timeuuid, 16), Sent::Some(UUID.into()));
        assert_eq!(of(ColType::List, 40), Sent::Some(vec![0; 4]));
        let Sent::Some(longest) = of(ColType::Blob, u32::MAX) else {
            panic!("no value")
        };
        assert_eq!(longest.len(), MAX_MADE_UP_BYTES);
        assert_eq!(sent(&Value::Unset, None), Sent::NotSet);
        assert_eq!(sent(&Value::Bytes(vec![7]), None), Sent::Some(vec![7]));
    }
}
