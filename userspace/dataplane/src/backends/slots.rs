//! Weights as slots, of which each new connection draws one.

use std::net::SocketAddr;

use ebpf::abi;

use super::{Weights, weight_of};
use policy::MAX_BACKENDS;

/// A backend's share of new connections, relative to the others': 0 gets none.
pub type Weight = u8;

/// The weight of a backend with nothing against it.
pub const FULL_WEIGHT: Weight = 100;

const SLOTS: usize = abi::BACKEND_SLOTS as usize;

/// The backend of each slot: every backend has as many slots as its weight says, and at least one if it
/// has any weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSlots([u8; SLOTS]);

impl BackendSlots {
    /// Shares the slots out among a rule's backends, in its order; backends past [`MAX_BACKENDS`] get
    /// none.
    pub fn of(backends: &[SocketAddr], weights: &Weights) -> Self {
        let fit = backends.iter().take(MAX_BACKENDS);
        let weights: Vec<Weight> = fit.map(|at| weight_of(*at, weights)).collect();
        let mut slots = [abi::NO_BACKEND as u8; SLOTS];
        let mut left = slots.iter_mut();
        for (backend, share) in shares(&weights).into_iter().enumerate() {
            for slot in left.by_ref().take(share) {
                *slot = backend as u8;
            }
        }
        Self(slots)
    }

    /// The backend that this number draws; None when none takes new connections.
    pub fn draw(&self, number: u32) -> Option<usize> {
        let slot = *self.0.get(number as usize % SLOTS)?;
        (usize::from(slot) < MAX_BACKENDS).then_some(slot.into())
    }

    pub(crate) fn to_abi(&self) -> abi::BackendSlots {
        abi::BackendSlots { backends: self.0 }
    }
}

/// In proportion, and all of [`SLOTS`] unless every weight is 0: one for each that has any, of the
/// others what its weight says, rounded down, and what that leaves to the largest remainders.
fn shares(weights: &[Weight]) -> Vec<usize> {
    let total: usize = weights.iter().map(|w| usize::from(*w)).sum();
    if total == 0 {
        return vec![0; weights.len()];
    }
    let weighted = weights.iter().filter(|w| **w > 0).count();
    // At least SLOTS - MAX_BACKENDS.
    let to_share = SLOTS - weighted;
    let exact = |w: Weight| usize::from(w) * to_share;
    let mut shares: Vec<usize> = weights
        .iter()
        .map(|w| usize::from(*w > 0) + exact(*w) / total)
        .collect();
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    let remainder = |n: &usize| weights.get(*n).map_or(0, |w| exact(*w) % total);
    by_remainder.sort_by_key(|n| std::cmp::Reverse(remainder(n)));
    let given: usize = shares.iter().sum();
    for n in by_remainder.into_iter().take(SLOTS - given) {
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

    fn counts(slots: &BackendSlots, n: usize) -> Vec<usize> {
        let mut counts = vec![0; n];
        for number in 0..SLOTS as u32 {
            if let Some(backend) = slots.draw(number) {
                counts[backend] += 1;
            }
        }
        counts
    }

    #[test]
    fn equal_weights_have_equal_shares() {
        for n in 1..=MAX_BACKENDS {
            let counts = counts(&BackendSlots::of(&backends(n), &Weights::new()), n);
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{n}: {counts:?}");
            assert_eq!(counts.iter().sum::<usize>(), SLOTS);
        }
    }

    #[test]
    fn without_a_weight_nobody_is_drawn() {
        let backends = backends(3);
        let none = backends.iter().map(|at| (*at, 0)).collect();
        let slots = BackendSlots::of(&backends, &none);
        assert!((0..SLOTS as u32).all(|number| slots.draw(number).is_none()));
        assert_eq!(BackendSlots::of(&[], &Weights::new()).draw(7), None);
    }

    #[test]
    fn more_backends_than_fit_are_left_out() {
        let slots = BackendSlots::of(&backends(MAX_BACKENDS + 100), &Weights::new());
        assert!((0..SLOTS as u32).all(|n| slots.draw(n).unwrap() < MAX_BACKENDS));
    }

    proptest! {
        #[test]
        fn shares_follow_weights(weights in vec(0_u8..=FULL_WEIGHT, 1..=MAX_BACKENDS)) {
            let backends = backends(weights.len());
            let table = backends.iter().copied().zip(weights.iter().copied()).collect();
            let counts = counts(&BackendSlots::of(&backends, &table), weights.len());
            let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            for (count, weight) in counts.iter().zip(&weights) {
                prop_assert_eq!(*count > 0, *weight > 0);
                let meant = if total > 0.0 { f64::from(*weight) / total * SLOTS as f64 } else { 0.0 };
                // One slot whatever the weight takes from the others' shares.
                let off = 2.0 + meant * weights.len() as f64 / SLOTS as f64;
                prop_assert!((*count as f64 - meant).abs() <= off, "{} for {}", count, meant);
            }
        }
    }
}
