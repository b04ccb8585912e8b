//! The fraction of a rule's flows that are enriched, or held out.

/// A fraction of flows, drawn one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample(u32);

/// The fraction 1, in steps.
const WHOLE: f64 = (1_u64 << 32) as f64;

/// 2^64 by the golden ratio: multiples of it, cut to 64 bits, are spread evenly, wherever one begins.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Sample {
    /// Rounds a fraction to the next of 2^32 steps. None unless it is above 0 and below 1.
    pub fn new(fraction: f64) -> Option<Self> {
        let steps = (fraction * WHOLE).round();
        // 0 stands for a rule without one.
        (1.0..WHOLE).contains(&steps).then_some(Self(steps as u32))
    }

    /// Whether flow number `n` is in the sample.
    pub fn takes(self, n: u64) -> bool {
        let drawn = n.wrapping_mul(STEP) >> 32;
        drawn < u64::from(self.0)
    }

    /// The fraction, above 0 and below 1.
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / WHOLE
    }

    /// The fraction in steps of 2^-32, as `struct up_rule` has it.
    pub fn steps(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_is_a_fraction() {
        for not in [0.0, -0.1, 1.0, 1.1, f64::NAN, f64::INFINITY, 1e-12] {
            assert_eq!(Sample::new(not), None, "{not}");
        }
        for fraction in [0.001, 0.01, 0.25, 0.5, 0.999] {
            let sample = Sample::new(fraction).unwrap();
            for from in [0, 1_000_000, u64::MAX / 3] {
                let taken = (from..from + 10_000).filter(|n| sample.takes(*n)).count();
                let expected = 10_000.0 * fraction;
                assert!(
                    (taken as f64 - expected).abs() <= 10.0,
                    "{fraction}: {taken}"
                );
            }
        }
    }
}
