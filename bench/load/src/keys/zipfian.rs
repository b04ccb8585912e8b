//! Zipf's distribution as YCSB draws it (`ZipfianGenerator`, `ScrambledZipfianGenerator`; after
//! Gray et al., "Quickly Generating Billion-Record Synthetic Databases", SIGMOD 1994).

use super::random::Random;

/// YCSB's `ZIPFIAN_CONSTANT`.
const THETA: f64 = 0.99;

/// YCSB's `ScrambledZipfianGenerator` draws from so many, whatever the number of keys, …
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// … because the sum over so many takes minutes: `ZETAN` there.
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// Ranks: 0 most often.
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipfian {
    /// Makes the distribution of this number of ranks.
    pub fn new(items: u64) -> Self {
        let zeta = (1..=items).map(|n| (n as f64).powf(-THETA)).sum();
        Self::with_zeta(items, zeta)
    }

    /// Makes the distribution that is scrambled into keys.
    pub fn to_scramble() -> Self {
        Self::with_zeta(SCRAMBLED_ITEMS, SCRAMBLED_ZETA)
    }

    fn with_zeta(items: u64, zeta: f64) -> Self {
        let items = items as f64;
        let zeta_two = 1.0 + 0.5f64.powf(THETA);
        Self {
            items,
            zeta,
            alpha: 1.0 / (1.0 - THETA),
            eta: (1.0 - (2.0 / items).powf(1.0 - THETA)) / (1.0 - zeta_two / zeta),
        }
    }

    /// A rank.
    pub fn rank(&self, random: &mut Random) -> u64 {
        let u = random.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(THETA) {
            return 1;
        }
        let rank = self.items * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        // A rounding error must not lead out of the ranks.
        rank.min(self.items - 1.0) as u64
    }
}

/// YCSB's `Utils.fnvhash64`: FNV-1a over the eight bytes, the lowest first, without its sign.
pub fn fnv(number: u64) -> u64 {
    let mut hash: u64 = 0xCBF2_9CE4_8422_2325;
    for byte in number.to_le_bytes() {
        hash ^= u64::from(byte);
        hash = hash.wrapping_mul(1_099_511_628_211);
    }
    (hash as i64).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_as_frequent_as_zipf_says() {
        const DRAWS: usize = 200_000;
        const ITEMS: u64 = 1_000;
        let zipfian = Zipfian::new(ITEMS);
        let mut random = Random::new(1, 0);
        let mut seen = vec![0u32; ITEMS as usize];
        for _ in 0..DRAWS {
            seen[zipfian.rank(&mut random) as usize] += 1;
        }
        for rank in [0usize, 1, 9, 99] {
            let share = f64::from(seen[rank]) / DRAWS as f64;
            let expected = ((rank + 1) as f64).powf(-THETA) / zipfian.zeta;
            let off = share / expected;
            // Gray's method approximates: ranks beyond the second are off by up to a fifth.
            assert!((0.75..1.25).contains(&off), "{rank}: {share} {expected}");
        }
        let (head, all) = (seen[..100].iter().sum::<u32>(), DRAWS as f64);
        let share = f64::from(head) / all;
        let expected = (1..=100).map(|n| f64::from(n).powf(-THETA)).sum::<f64>() / zipfian.zeta;
        assert!((share / expected - 1.0).abs() < 0.05, "{share} {expected}");
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        // Eight zero bytes, from the published algorithm: offset basis times prime^8.
        let mut zero: u64 = 0xCBF2_9CE4_8422_2325;
        for _ in 0..8 {
            zero = zero.wrapping_mul(1_099_511_628_211);
        }
        assert_eq!(fnv(0), (zero as i64).unsigned_abs());
        // YCSB's first record: `user` and this.
        assert_eq!(fnv(0), 6_284_781_860_667_377_211);
    }
}
