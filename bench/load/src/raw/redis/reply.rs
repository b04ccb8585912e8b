//! Replies of RESP2 (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).

use anyhow::{Context, bail, ensure};

use crate::raw::protocol::MAX_RESPONSE_BYTES;

/// Elements of one reply, in all its arrays: as many as empty ones fit the longest.
const MAX_ELEMENTS: usize = MAX_RESPONSE_BYTES / 4;

/// A whole reply.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The reply's length.
    pub bytes: usize,
    /// The first error in the reply.
    pub error: Option<&'a [u8]>,
}

/// Reads the reply at the front. None: it is not complete yet.
///
/// # Errors
/// The bytes are no reply.
pub fn first(bytes: &[u8]) -> anyhow::Result<Option<Reply<'_>>> {
    let mut at = 0;
    let mut error = None;
    // Elements still to come: the reply itself, and what arrays in it announce.
    let mut left = 1usize;
    while left > 0 {
        left -= 1;
        let Some((kind, line, next)) = line(bytes, at)? else {
            return Ok(None);
        };
        at = next;
        match kind {
            b'+' | b':' => {}
            b'-' => error = error.or(Some(line)),
            b'$' => {
                if let Some(length) = length(line)? {
                    at += length + 2;
                }
            }
            b'*' => {
                left += length(line)?.unwrap_or(0);
                ensure!(left <= MAX_ELEMENTS, "a reply of {left} elements");
            }
            other => bail!("{:?} begins no reply: framing is lost", char::from(other)),
        }
        if at > bytes.len() {
            return Ok(None);
        }
    }
    Ok(Some(Reply { bytes: at, error }))
}

/// Reads the kind and text of the line at this place, and where the next begins.
fn line(bytes: &[u8], at: usize) -> anyhow::Result<Option<(u8, &[u8], usize)>> {
    /// The longest line: errors and simple strings are a sentence.
    const MAX_LINE_BYTES: usize = 64 << 10;
    let Some([kind, rest @ ..]) = bytes.get(at..) else {
        return Ok(None);
    };
    let Some(end) = rest.iter().position(|b| *b == b'\r') else {
        ensure!(rest.len() <= MAX_LINE_BYTES, "a line without an end");
        return Ok(None);
    };
    match (rest.get(..end), rest.get(end + 1)) {
        (_, None) => Ok(None),
        (Some(line), Some(b'\n')) => Ok(Some((*kind, line, at + 1 + end + 2))),
        _ => bail!("a line ends in half: framing is lost"),
    }
}

/// Reads a length. None: the null string or array, of length -1.
fn length(line: &[u8]) -> anyhow::Result<Option<usize>> {
    if line == b"-1" {
        return Ok(None);
    }
    let text = std::str::from_utf8(line).context("a length that is none")?;
    let length: usize = text.parse().with_context(|| format!("length {text:?}"))?;
    ensure!(length <= MAX_RESPONSE_BYTES, "a reply of {length} bytes");
    Ok(Some(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_reply_is_found_whole_and_in_pieces() {
        for (text, error) in [
            (&b"+OK\r\n"[..], None),
            (b"-ERR no such thing\r\n", Some(&b"ERR no such thing"[..])),
            (b":12345\r\n", None),
            (b"$5\r\nhe\r\nl\r\n", None),
            (b"$0\r\n\r\n", None),
            (b"$-1\r\n", None),
            (b"*-1\r\n", None),
            (b"*0\r\n", None),
            (b"*3\r\n:1\r\n*2\r\n$1\r\na\r\n*0\r\n+x\r\n", None),
            (b"*2\r\n+x\r\n-WRONG\r\n", Some(b"WRONG")),
        ] {
            for cut in 0..text.len() {
                assert_eq!(first(&text[..cut]).unwrap(), None, "{cut} of {text:?}");
            }
            let mut more = text.to_vec();
            more.extend_from_slice(b"+NEXT\r\n");
            let bytes = text.len();
            assert_eq!(first(&more).unwrap(), Some(Reply { bytes, error }));
        }
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        for text in [
            &b"HTTP/1.1 200\r\n"[..],
            b"$x\r\n",
            b"$-2\r\n",
            b"$99999999999\r\n",
            b"+OK\rX",
            b"*99999999\r\n",
        ] {
            assert!(first(text).is_err(), "{text:?}");
        }
    }
}
