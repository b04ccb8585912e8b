//! The fields of a record: numbers in little endian, and bytes behind their length.

/// The rest of a record that is being read.
pub(super) struct Fields<'r>(pub(super) &'r [u8]);

impl<'r> Fields<'r> {
    /// Takes this many bytes. None, here as in the methods below: the record is cut short.
    pub(super) fn take(&mut self, bytes: usize) -> Option<&'r [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn long(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(super) fn number(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(super) fn text(&mut self) -> Option<&'r [u8]> {
        let bytes = self.number()? as usize;
        self.take(bytes)
    }
}

/// Appends a text as [`Fields::text`] reads it.
pub(super) fn put_text(to: &mut Vec<u8>, text: &[u8]) {
    to.extend((text.len() as u32).to_le_bytes());
    to.extend_from_slice(text);
}
