//! The order of turns: shuffled, and the same again for the same seed.

/// SplitMix64 (Steele, Lea, Flood 2014): all that an order needs.
pub struct Shuffle(u64);

impl Shuffle {
    /// Makes the shuffle of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the numbers below `count`, each once: Fisher and Yates.
    pub fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            // The bias of a remainder of a few in 2^64 is negligible.
            let other = (self.next() % (last as u64 + 1)) as usize;
            order.swap(last, other);
        }
        order
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_order_comes_up_equally_often_and_everyone_is_in_it() {
        let mut shuffle = Shuffle::new(7);
        let mut seen = BTreeMap::new();
        for _ in 0..6_000 {
            *seen.entry(shuffle.order(3)).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 6);
        assert!(
            seen.values().all(|count| (850..1150).contains(count)),
            "{seen:?}"
        );
        for order in seen.keys() {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2]);
        }
    }

    #[test]
    fn a_seed_is_an_order() {
        let begin = |seed| Shuffle::new(seed).order(8);
        assert_eq!(begin(1), begin(1));
        assert_ne!(begin(1), begin(2));
    }
}
