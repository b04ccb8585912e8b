//! The order of turns: shuffled, and the same again for the same seed.

use load::random::Random;

/// A sequence of orders.
pub struct Shuffle(Random);

impl Shuffle {
    /// Makes the shuffle of this seed.
    pub fn new(seed: u64) -> Self {
        Self(Random::new(seed, 0))
    }

    /// Returns the numbers below `count`, each once: Fisher and Yates.
    pub fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            let other = self.0.below(last as u64 + 1) as usize;
            order.swap(last, other);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_order_comes_up_equally_often_and_a_seed_is_an_order() {
        let mut shuffle = Shuffle::new(7);
        let mut seen = BTreeMap::new();
        for _ in 0..6_000 {
            *seen.entry(shuffle.order(3)).or_insert(0) += 1;
        }
        // All six, so that everyone is in each.
        assert_eq!(seen.len(), 6);
        assert!(
            seen.values().all(|count| (850..1150).contains(count)),
            "{seen:?}"
        );
        let begin = |seed| Shuffle::new(seed).order(8);
        assert_eq!(begin(1), begin(1));
        assert_ne!(begin(1), begin(2));
    }
}
