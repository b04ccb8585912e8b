//! Weights as lots.

use std::net::SocketAddr;

use ebpf::abi;

use super::{Weights, weight_of};
use policy::MAX_BACKENDS;

/// A backend's share of new connections, relative to the others': 0 gets none.
pub type Weight = u8;

/// Of a backend with nothing against it.
pub const FULL_WEIGHT: Weight = 100;

const LOTS: usize = abi::LOTS as usize;

/// As many lots for each backend as its weight says, and at least one if it has any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lots([u8; LOTS]);

impl Lots {
    /// Of a rule's backends, in its order; those past [`MAX_BACKENDS`] get none.
    pub fn of(backends: &[SocketAddr], weights: &Weights) -> Self {
        let fit = backends.iter().take(MAX_BACKENDS);
        let weights: Vec<Weight> = fit.map(|at| weight_of(*at, weights)).collect();
        let mut lots = [abi::NO_BACKEND as u8; LOTS];
        let mut left = lots.iter_mut();
        for (backend, share) in shares(&weights).into_iter().enumerate() {
            for lot in left.by_ref().take(share) {
                *lot = backend as u8;
            }
        }
        Self(lots)
    }

    /// Which backend this number draws; None when none takes new connections.
    pub fn draw(&self, number: u32) -> Option<usize> {
        let lot = *self.0.get(number as usize % LOTS)?;
        (usize::from(lot) < MAX_BACKENDS).then_some(lot.into())
    }

    pub(crate) fn to_abi(&self) -> abi::Lots {
        abi::Lots { backends: self.0 }
    }
}

/// In proportion, and all of [`LOTS`] unless every weight is 0: one for each that has any, of the
/// others what its weight says, rounded down, and what that leaves to the largest remainders.
fn shares(weights: &[Weight]) -> Vec<usize> {
    let total: usize = weights.iter().map(|w| usize::from(*w)).sum();
    if total == 0 {
        return vec![0; weights.len()];
    }
    let weighted = weights.iter().filter(|w| **w > 0).count();
    // At least LOTS - MAX_BACKENDS.
    let to_share = LOTS - weighted;
    let exact = |w: Weight| usize::from(w) * to_share;
    let mut shares: Vec<usize> = weights
        .iter()
        .map(|w| usize::from(*w > 0) + exact(*w) / total)
        .collect();
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    let remainder = |n: &usize| weights.get(*n).map_or(0, |w| exact(*w) % total);
    by_remainder.sort_by_key(|n| std::cmp::Reverse(remainder(n)));
    let given: usize = shares.iter().sum();
    for n in by_remainder.into_iter().take(LOTS - given) {
        if let Some(share) = shares.get_mut(n) {
            *share += 1;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn backends(n: usize) -> Vec<SocketAddr> {
        (1..=n)
            .map(|port| SocketAddr::from(([10, 1, 0, 1], port as u16)))
            .collect()
    }

    fn counts(lots: &Lots, n: usize) -> Vec<usize> {
        let mut counts = vec![0; n];
        for number in 0..LOTS as u32 {
            if let Some(backend) = lots.draw(number) {
                counts[backend] += 1;
            }
        }
        counts
    }

    #[test]
    fn equal_weights_have_equal_shares() {
        for n in 1..=MAX_BACKENDS {
            let counts = counts(&Lots::of(&backends(n), &Weights::new()), n);
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{n}: {counts:?}");
            assert_eq!(counts.iter().sum::<usize>(), LOTS);
        }
    }

    #[test]
    fn without_a_weight_nobody_is_drawn() {
        let backends = backends(3);
        let none = backends.iter().map(|at| (*at, 0)).collect();
        let lots = Lots::of(&backends, &none);
        assert!((0..LOTS as u32).all(|number| lots.draw(number).is_none()));
        assert_eq!(Lots::of(&[], &Weights::new()).draw(7), None);
    }

    #[test]
    fn more_backends_than_fit_are_left_out() {
        let lots = Lots::of(&backends(MAX_BACKENDS + 100), &Weights::new());
        assert!((0..LOTS as u32).all(|n| lots.draw(n).unwrap() < MAX_BACKENDS));
    }

    proptest! {
        #[test]
        fn shares_follow_weights(weights in vec(0_u8..=FULL_WEIGHT, 1..=MAX_BACKENDS)) {
            let backends = backends(weights.len());
            let table = backends.iter().copied().zip(weights.iter().copied()).collect();
            let counts = counts(&Lots::of(&backends, &table), weights.len());
            let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            for (count, weight) in counts.iter().zip(&weights) {
                prop_assert_eq!(*count > 0, *weight > 0);
                let meant = if total > 0.0 { f64::from(*weight) / total * LOTS as f64 } else { 0.0 };
                // One lot whatever the weight takes from the others' shares.
                let off = 2.0 + meant * weights.len() as f64 / LOTS as f64;
                prop_assert!((*count as f64 - meant).abs() <= off, "{} for {}", count, meant);
            }
        }
    }
}
