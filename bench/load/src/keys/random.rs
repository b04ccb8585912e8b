//! Pseudo-random numbers: SplitMix64 (Steele, Lea, Flood 2014). A few instructions each, and
//! the same in every run.

/// A sequence of its own for every seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed, and of this place (thread) in a run.
    pub fn new(seed: u64, place: u64) -> Self {
        Self(mix(seed ^ mix(place)))
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Returns a number from 0 up to, and without, this; 0 where there is no such number.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Lemire's multiplication without its correction: for bounds up to 2^40 a number is
        // preferred by less than one in 2^24.
        ((u128::from(self.number()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number from 0 up to, and without, 1.
    pub fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// SplitMix64's finalizer: every bit of the input changes half of the output's.
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_differ_by_seed_and_place_and_repeat() {
        let begin = |seed, place| {
            let mut random = Random::new(seed, place);
            [random.number(), random.number()]
        };
        assert_eq!(begin(1, 0), begin(1, 0));
        assert_ne!(begin(1, 0), begin(2, 0));
        assert_ne!(begin(1, 0), begin(1, 1));
    }

    #[test]
    fn numbers_stay_below_and_spread() {
        let mut random = Random::new(7, 0);
        let mut seen = [0u32; 10];
        for _ in 0..100_000 {
            seen[random.below(10) as usize] += 1;
            let unit = random.unit();
            assert!((0.0..1.0).contains(&unit));
        }
        assert!(seen.iter().all(|n| (9_500..10_500).contains(n)), "{seen:?}");
        assert_eq!(random.below(0), 0);
    }
}
