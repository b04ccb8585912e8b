//! The part of RESP2 that a few Redis commands need
//! (`https://redis.io/docs/latest/develop/reference/protocol-spec/`).

/// The longest line: an error's, or a length's, is short.
const MAX_LINE_BYTES: usize = 1_024;

/// Appends a command.
pub(super) fn put(to: &mut Vec<u8>, words: &[&[u8]]) {
    to.extend(format!("*{}\r\n", words.len()).into_bytes());
    for word in words {
        to.extend(format!("${}\r\n", word.len()).into_bytes());
        to.extend_from_slice(word);
        to.extend(b"\r\n");
    }
}

/// A reply of Redis.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply<'b> {
    /// The command is done.
    Done,
    /// Bytes. A missing key has none.
    Bytes(&'b [u8]),
    /// The command failed. The error's text may contain values, and is not kept.
    Error,
}

/// A reply that is not RESP2, or longer than what was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Strange;

/// Parses the next reply. Returns it with its length. None: it is not complete. `longest`: the most
/// bytes that the reply may carry.
pub(super) fn next(from: &[u8], longest: usize) -> Result<Option<(Reply<'_>, usize)>, Strange> {
    let line = from.get(..MAX_LINE_BYTES).unwrap_or(from);
    let Some(end) = line.windows(2).position(|two| two == b"\r\n") else {
        return match from.len() < MAX_LINE_BYTES {
            true => Ok(None),
            false => Err(Strange),
        };
    };
    let begin = end + 2;
    match line.get(..end).and_then(<[u8]>::split_first) {
        Some((b'+', _)) => Ok(Some((Reply::Done, begin))),
        Some((b'-', _)) => Ok(Some((Reply::Error, begin))),
        Some((b'$', b"-1")) => Ok(Some((Reply::Bytes(&[]), begin))),
        Some((b'$', length)) => {
            let length = std::str::from_utf8(length).ok();
            let length = length.and_then(|length| length.parse::<usize>().ok());
            let length = length.filter(|length| *length <= longest).ok_or(Strange)?;
            let Some(bytes) = from.get(begin..).and_then(|rest| rest.get(..length + 2)) else {
                return Ok(None);
            };
            let bytes = bytes.strip_suffix(b"\r\n").ok_or(Strange)?;
            Ok(Some((Reply::Bytes(bytes), begin + length + 2)))
        }
        _ => Err(Strange),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn replies_are_read_at_any_cut() {
        let said = b"$5\r\nab\r\nc\r\n";
        for end in 0..said.len() {
            assert_eq!(next(&said[..end], 5), Ok(None), "{end}");
        }
        assert_eq!(
            next(said, 5),
            Ok(Some((Reply::Bytes(b"ab\r\nc"), said.len())))
        );
        assert_eq!(next(said, 4), Err(Strange));
        assert_eq!(next(b"+OK\r\n+", 0), Ok(Some((Reply::Done, 5))));
        assert_eq!(next(b"-ERR x\r\n", 0), Ok(Some((Reply::Error, 8))));
        assert_eq!(next(b"$-1\r\n", 0), Ok(Some((Reply::Bytes(b""), 5))));
        assert_eq!(next(b"$1\r\nabc", 9), Err(Strange));
        for strange in [
            &b"*1\r\n"[..],
            b"\r\n",
            b"$-2\r\n",
            b"$+\r\n",
            b"HTTP/1.1 400\r\n",
        ] {
            assert_eq!(next(strange, 9), Err(Strange));
        }
        assert_eq!(next(&[b'+'; MAX_LINE_BYTES], 9), Err(Strange));
    }

    #[test]
    fn commands_are_arrays_of_strings() {
        let mut said = Vec::new();
        put(&mut said, &[b"GET", b"a\r\n"]);
        assert_eq!(said, b"*2\r\n$3\r\nGET\r\n$3\r\na\r\n\r\n");
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(said in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = next(&said, 16);
            let _ = next(&[b"$", &said[..]].concat(), 1 << 40);
        }
    }
}
