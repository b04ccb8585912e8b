//! Hashing for small per-flow tables.
//!
//! Neither function resists a peer that looks for collisions. That is a choice: in the caches a
//! collision costs an allocation and never gives a wrong answer, because entries are compared; in
//! the table of pending requests there are only 65,536 keys to choose from.

use std::hash::{BuildHasherDefault, Hasher};

/// Builds [`Spread`].
pub type BuildSpread = BuildHasherDefault<Spread>;

/// Spreads one integer key over all bits: the table takes its index from the low ones and its tag
/// from the high ones.
#[derive(Default)]
pub struct Spread(u64);

impl Spread {
    fn mix(&mut self, key: u64) {
        // 2^64 divided by the golden ratio, odd: neighbouring keys land far apart.
        let product = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product ^ (product >> 32);
    }
}

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.mix(bytes.iter().fold(Fnv::default(), |h, b| h.with(*b)).0);
    }

    fn write_i16(&mut self, key: i16) {
        self.mix(u64::from(key.cast_unsigned()));
    }

    fn write_u64(&mut self, key: u64) {
        self.mix(key);
    }
}

/// 64-bit FNV-1a, a byte at a time: names are hashed while they are folded to lower case.
#[derive(Clone, Copy)]
pub struct Fnv(pub u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }
}

impl Fnv {
    /// The hash of what was hashed before, and `byte` behind it.
    pub fn with(self, byte: u8) -> Self {
        Self((self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::{BuildHasher, Hash};

    #[test]
    fn neighbouring_stream_ids_spread() {
        let low_bits: HashSet<u64> = (0..256_i16)
            .map(|id| BuildSpread::default().hash_one(id) % 256)
            .collect();
        assert!(low_bits.len() > 128, "{}", low_bits.len());
    }

    #[test]
    fn slices_are_hashed_too() {
        let hash = |bytes: &[u8]| {
            let mut hasher = Spread::default();
            bytes.hash(&mut hasher);
            hasher.finish()
        };
        assert_ne!(hash(b"ab"), hash(b"ba"));
    }

    #[test]
    fn fnv_matches_its_published_vector() {
        let hash = b"foobar".iter().fold(Fnv::default(), |h, b| h.with(*b));
        assert_eq!(hash.0, 0x8594_4171_F739_67E8);
    }
}
