//! Random choices that a seed repeats.

/// Odd, with bits spread evenly: Knuth's golden ratio for 64 bits (splitmix64).
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A generator of choices (splitmix64).
#[derive(Debug, Clone)]
pub(super) struct Dice(u64);

impl Dice {
    /// Equal parts give equal choices.
    pub(super) fn new(parts: &[u64]) -> Self {
        Self(parts.iter().fold(0, |state, &part| hash(state ^ part)))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        hash(self.0)
    }

    /// 0 to `n - 1`; 0 when there is no choice.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        if n < 2 { 0 } else { self.next() % n }
    }

    /// `low` to `high`, both of them possible.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// 1 to `max`, each power of two as likely as the next.
    pub(super) fn log(&mut self, max: u64) -> u64 {
        let octaves = u64::from(max.max(1).ilog2()) + 1;
        let low = 1 << self.below(octaves);
        self.between(low, (low * 2 - 1).min(max.max(1)))
    }

    /// Picks one of `choices`, if there is any.
    pub(super) fn pick<T: Clone>(&mut self, choices: &[T]) -> Option<T> {
        let at = self.below(choices.len() as u64);
        choices.get(usize::try_from(at).ok()?).cloned()
    }

    /// Puts `items` into another order.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let other = self.below(i as u64 + 1);
            items.swap(i, usize::try_from(other).unwrap_or(i));
        }
    }
}

/// The finaliser of splitmix64.
fn hash(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithmic_choices_stay_within_and_reach_both_ends() {
        let mut dice = Dice::new(&[1]);
        for max in [1, 2, 3, 100, 1 << 20] {
            let drawn: Vec<u64> = (0..20_000).map(|_| dice.log(max)).collect();
            assert!(drawn.iter().all(|n| (1..=max).contains(n)));
            assert!(drawn.contains(&1));
            assert!(drawn.iter().any(|&n| n > max / 2));
        }
    }

    #[test]
    fn a_shuffle_loses_nothing() {
        let mut items: Vec<u32> = (0..24).collect();
        Dice::new(&[7]).shuffle(&mut items);
        assert_ne!(items, (0..24).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..24).collect::<Vec<_>>());
    }
}
