//! Reading and writing the notations of the native protocol (section 3): every read is checked.

use super::failure::{Failure, Result};

/// A cursor over the body of one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

/// A value bound to a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound<'a> {
    Null,
    /// v4 and later: leave the column as it is.
    Unset,
    Bytes(&'a [u8]),
}

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    pub(super) fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, tail) = self
            .rest
            .split_at_checked(n)
            .ok_or_else(|| Failure::protocol("request body is truncated"))?;
        self.rest = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, tail) = self
            .rest
            .split_first_chunk()
            .ok_or_else(|| Failure::protocol("request body is truncated"))?;
        self.rest = tail;
        Ok(*head)
    }

    /// Whether nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64> {
        self.array().map(i64::from_be_bytes)
    }

    pub(super) fn string(&mut self) -> Result<&'a str> {
        let bytes = self.short_bytes()?;
        std::str::from_utf8(bytes).map_err(|_| Failure::protocol("a string is not UTF-8"))
    }

    pub(super) fn long_string(&mut self) -> Result<&'a str> {
        let n = usize::try_from(self.i32()?)
            .map_err(|_| Failure::protocol("a string has a negative length"))?;
        std::str::from_utf8(self.take(n)?).map_err(|_| Failure::protocol("a string is not UTF-8"))
    }

    pub(super) fn short_bytes(&mut self) -> Result<&'a [u8]> {
        let n = self.u16()?;
        self.take(n.into())
    }

    /// `[value]`: -1 is null, -2 is not set.
    pub(super) fn value(&mut self) -> Result<Bound<'a>> {
        match self.i32()? {
            -1 => Ok(Bound::Null),
            -2 => Ok(Bound::Unset),
            n => {
                let n = usize::try_from(n)
                    .map_err(|_| Failure::protocol(format!("invalid value length {n}")))?;
                self.take(n).map(Bound::Bytes)
            }
        }
    }

    /// `[bytes]`: any negative length is null.
    pub(super) fn bytes(&mut self) -> Result<Option<&'a [u8]>> {
        match usize::try_from(self.i32()?) {
            Ok(n) => self.take(n).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// The pairs of a `[string map]`; no memory is reserved on the word of the sender.
    pub(super) fn string_map(&mut self) -> Result<Vec<(&'a str, &'a str)>> {
        let n = self.u16()?;
        (0..n)
            .map(|_| Ok((self.string()?, self.string()?)))
            .collect()
    }
}

pub(super) fn put_u16(out: &mut Vec<u8>, v: u16) {
    out.extend_from_slice(&v.to_be_bytes());
}

pub(super) fn put_i32(out: &mut Vec<u8>, v: i32) {
    out.extend_from_slice(&v.to_be_bytes());
}

/// A count as `[int]`; counts here are bounded far below `i32::MAX`, and saturate.
pub(super) fn put_count(out: &mut Vec<u8>, n: usize) {
    put_i32(out, i32::try_from(n).unwrap_or(i32::MAX));
}

/// `[string]`, cut at its 65,535 bytes on a character's edge.
pub(super) fn put_string(out: &mut Vec<u8>, s: &str) {
    let mut cut = s.len().min(u16::MAX.into());
    while !s.is_char_boundary(cut) {
        cut -= 1;
    }
    let s = s.get(..cut).unwrap_or_default();
    put_u16(out, u16::try_from(s.len()).unwrap_or(u16::MAX));
    out.extend_from_slice(s.as_bytes());
}

pub(super) fn put_short_bytes(out: &mut Vec<u8>, b: &[u8]) {
    let b = b.get(..u16::MAX.into()).unwrap_or(b);
    put_u16(out, u16::try_from(b.len()).unwrap_or(u16::MAX));
    out.extend_from_slice(b);
}

pub(super) fn put_bytes(out: &mut Vec<u8>, b: Option<&[u8]>) {
    match b {
        Some(b) => {
            put_count(out, b.len());
            out.extend_from_slice(b);
        }
        None => put_i32(out, -1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_and_negative_lengths_are_errors() {
        assert!(Reader::new(&[0, 0, 0]).i32().is_err());
        assert!(Reader::new(&[0, 5, b'a']).string().is_err());
        assert!(
            Reader::new(&[0xff, 0xff, 0xff, 0xff])
                .long_string()
                .is_err()
        );
        assert!(Reader::new(&[0xff, 0xff, 0xff, 0xfd]).value().is_err());
        assert!(Reader::new(&[0xff, 0xff]).string_map().is_err());
        assert_eq!(
            Reader::new(&[0xff, 0xff, 0xff, 0xfe]).value(),
            Ok(Bound::Unset)
        );
    }

    #[test]
    fn long_strings_are_cut_on_a_character() {
        let mut out = Vec::new();
        put_string(&mut out, &"é".repeat(40_000));
        assert_eq!(out.len(), 2 + 65_534);
        assert!(Reader::new(&out).string().is_ok());
    }
}
