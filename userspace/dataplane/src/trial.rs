//! What canaries send: bytes that are known by their place, in sizes that are the same in every
//! run.

use std::sync::OnceLock;

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

/// A linear congruential generator, whose upper half is good enough.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The same numbers for the same seed.
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
}
