//! Traffic of canaries: bytes that are known by their place in the stream, in sizes that are the same
//! in every run.

use std::{
    io::{self, ErrorKind, IoSlice, Write},
    sync::OnceLock,
};

/// After so many bytes they come again; no buffer's size divides it.
const PERIOD: usize = 65_521;
/// Streams begin so far apart.
const APART: usize = 7_919;

/// `count` bytes of a stream, from its byte `from` on.
pub fn bytes(stream: usize, from: usize, count: usize) -> Vec<u8> {
    static BLOCK: OnceLock<Box<[u8]>> = OnceLock::new();
    let block = BLOCK.get_or_init(|| {
        let mut random = Random::new(1);
        (0..PERIOD).map(|_| random.next() as u8).collect()
    });
    let mut at = (stream * APART + from) % PERIOD;
    let mut bytes = Vec::with_capacity(count);
    while bytes.len() < count {
        let rest = block.get(at..).unwrap_or_default();
        let part = rest.get(..count - bytes.len()).unwrap_or(rest);
        bytes.extend_from_slice(part);
        at = 0;
    }
    bytes
}

/// Bytes that [`write_large`] writes.
pub const LARGE_WRITE_BYTES: usize = 64 << 20;
/// Slices in one write: the most that one system call takes (IOV_MAX).
const SLICES: usize = 1024;

/// The first [`LARGE_WRITE_BYTES`] of a stream, in one system call unless `to` takes less. They
/// come out of a small buffer, again and again: the agent's memory shows nothing of it.
pub fn write_large(to: &mut impl Write, stream: usize) -> io::Result<()> {
    const SLICE: usize = LARGE_WRITE_BYTES / SLICES;
    let block = bytes(stream, 0, PERIOD + SLICE);
    let slice = |n| {
        let from = n * SLICE % PERIOD;
        IoSlice::new(block.get(from..from + SLICE).unwrap_or_default())
    };
    let mut slices: Vec<_> = (0..SLICES).map(slice).collect();
    let mut left = slices.as_mut_slice();
    while !left.is_empty() {
        match to.write_vectored(left)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            n => IoSlice::advance_slices(&mut left, n),
        }
    }
    Ok(())
}

/// A linear congruential generator, whose upper half is good enough.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that gives the same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// From 0 to `limit`, which it does not reach.
    pub fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit.max(1)
    }

    fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_tell_where_they_belong() {
        let all = bytes(1, 0, 3 * PERIOD);
        assert_eq!(bytes(1, 70_000, 5_000), all[70_000..75_000]);
        let near = bytes(1, 0, 4_096 + 8);
        for distance in 1..4_096 {
            assert_ne!(near[..8], near[distance..distance + 8], "{distance}");
        }
        assert_ne!(bytes(1, 0, 8), bytes(2, 0, 8));
    }

    #[test]
    fn a_large_write_is_the_beginning_of_its_stream() {
        let mut written = Vec::new();
        write_large(&mut written, 3).unwrap();
        assert!(written == bytes(3, 0, LARGE_WRITE_BYTES));
    }
}
