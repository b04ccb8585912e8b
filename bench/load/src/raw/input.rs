//! The input of a connection: bytes that were read and not parsed yet.

use std::io::{self, Read};

use super::protocol::MAX_RESPONSE_BYTES;

/// The first size of the buffer. Most responses are of a row or two; a pipeline's worth of them
/// fits.
const FIRST_BYTES: usize = 16 << 10;

/// A buffer that is read into at its end and consumed from its beginning.
#[derive(Debug)]
pub struct Input {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Input {
    /// Empty.
    pub fn new() -> Self {
        Self {
            bytes: vec![0; FIRST_BYTES],
            begin: 0,
            end: 0,
        }
    }

    /// Does one `read`. 0: the other end has closed.
    pub fn fill(&mut self, from: &mut impl Read) -> io::Result<usize> {
        if self.end == self.bytes.len() {
            self.make_room()?;
        }
        let read = from.read(self.bytes.get_mut(self.end..).unwrap_or_default())?;
        self.end += read;
        Ok(read)
    }

    /// Returns the bytes that are not parsed yet.
    pub fn pending(&self) -> &[u8] {
        self.bytes.get(self.begin..self.end).unwrap_or_default()
    }

    /// Drops bytes that are parsed.
    pub fn consume(&mut self, bytes: usize) {
        self.begin += bytes;
        if self.begin >= self.end {
            self.begin = 0;
            self.end = 0;
        }
    }

    fn make_room(&mut self) -> io::Result<()> {
        if self.begin > 0 {
            self.bytes.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
            return Ok(());
        }
        // Twice the longest response holds one and the beginning of the next.
        if self.bytes.len() >= 2 * MAX_RESPONSE_BYTES {
            return Err(io::Error::other("a response is too long"));
        }
        self.bytes.resize(self.bytes.len() * 2, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_input_is_kept_and_in_order() {
        let sent: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
        let mut from = &sent[..];
        let mut input = Input::new();
        let mut seen = Vec::new();
        while input.fill(&mut from).unwrap() > 0 {
            // Leave some each time, so that it has to be moved and to grow.
            let take = input.pending().len() / 3;
            seen.extend_from_slice(&input.pending()[..take]);
            input.consume(take);
        }
        seen.extend_from_slice(input.pending());
        assert_eq!(seen, sent);
        input.consume(input.pending().len());
        assert_eq!((input.begin, input.end), (0, 0));
    }
}
