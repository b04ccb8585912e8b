//! Checked reads of the notations that CQL bodies are made of (`native_protocol_v5.spec` §3).
//!
//! Every read gives `None` when the bytes run out, or when they cannot be what is asked for (a
//! negative length, a string that is not UTF-8). After a `None` the cursor's place is unspecified.

/// Reads from the front of a slice.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// A cursor at the beginning of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The bytes that were not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    /// `[byte]`
    pub fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// `[short]`, unsigned.
    pub fn short(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// `[int]`
    pub fn int(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    /// `[string]`
    pub fn string(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.short_bytes()?).ok()
    }

    /// `[short bytes]`; also a `[string]` whose contents do not matter.
    pub fn short_bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.short()?;
        self.take(len.into())
    }

    /// The length of a `[long string]`; its bytes follow.
    pub fn long_string_len(&mut self) -> Option<usize> {
        usize::try_from(self.int()?).ok()
    }

    /// `[bytes]` or a `[value]`: a negative length is null or unset, without bytes.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.int()?).unwrap_or(0);
        self.take(len)
    }

    /// Steps over one.
    pub fn skip_bytes(&mut self) -> Option<()> {
        self.bytes().map(drop)
    }

    /// Steps over a `[string list]`.
    pub fn skip_string_list(&mut self) -> Option<()> {
        for _ in 0..self.short()? {
            self.short_bytes()?;
        }
        Some(())
    }

    /// Steps over a `[bytes map]`.
    pub fn skip_bytes_map(&mut self) -> Option<()> {
        for _ in 0..self.short()? {
            self.short_bytes()?;
            self.skip_bytes()?;
        }
        Some(())
    }

    /// Skips the values of a statement: a `[short]` and as many `[value]`s.
    pub fn skip_values(&mut self) -> Option<()> {
        for _ in 0..self.short()? {
            self.skip_bytes()?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_big_endian_and_stop_at_the_end() {
        let mut cursor = Cursor::new(&[1, 0, 2, 0xFF, 0xFF, 0xFF, 0xFE, 9]);
        assert_eq!(cursor.byte(), Some(1));
        assert_eq!(cursor.short(), Some(2));
        assert_eq!(cursor.int(), Some(-2));
        assert_eq!(cursor.short(), None);
        assert_eq!(cursor.rest(), &[9]);
    }

    #[test]
    fn strings_are_utf8_and_whole() {
        assert_eq!(Cursor::new(b"\0\x02ks").string(), Some("ks"));
        assert_eq!(Cursor::new(b"\0\x03ks").string(), None);
        assert_eq!(Cursor::new(b"\0\x01\xFF").string(), None);
        assert_eq!(Cursor::new(&[0x80, 0, 0, 0]).long_string_len(), None);
    }

    #[test]
    fn null_and_unset_values_have_no_bytes() {
        let mut cursor = Cursor::new(&[255, 255, 255, 255, 255, 255, 255, 254, 0, 0, 0, 1, 7, 8]);
        for _ in 0..3 {
            assert_eq!(cursor.skip_bytes(), Some(()));
        }
        assert_eq!(cursor.rest(), &[8]);
    }

    #[test]
    fn lists_and_maps_are_stepped_over() {
        let mut cursor = Cursor::new(b"\0\x02\0\x01a\0\0!");
        assert_eq!(cursor.skip_string_list(), Some(()));
        assert_eq!(cursor.rest(), b"!");
        let mut cursor = Cursor::new(b"\0\x01\0\x01k\0\0\0\x02vv!");
        assert_eq!(cursor.skip_bytes_map(), Some(()));
        assert_eq!(cursor.rest(), b"!");
        assert_eq!(Cursor::new(b"\xFF\xFF").skip_bytes_map(), None);
    }
}
