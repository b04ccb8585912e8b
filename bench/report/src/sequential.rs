//! Sequential looks: how long to go on measuring until a bound is decided, and what may be claimed when one stops early.
//!
//! Intervals are wrong more often than they say where somebody looks after each round and stops when he likes what he sees. So there
//! are few looks, at numbers of rounds that are fixed beforehand ([`LOOKS`]), and each has its part of the error that all
//! may have together ([`ERROR`], by Bonferroni's bound): the last has half of it, because most of what is hard to
//! decide gets there, and the others share the rest.
//!
//! The interval of a look is that of every estimate ([`crate::stats`]).

use crate::stats::{Estimate, median};

/// The most rounds that there can be.
pub const MOST_ROUNDS: usize = 108;
/// The least of which anything is claimed.
pub const LEAST_ROUNDS: usize = 10;
/// Rounds after which it is looked whether a bound is decided; each look has about 1.5 times as many as the one before.
pub const LOOKS: [usize; 7] = [LEAST_ROUNDS, 15, 22, 33, 49, 73, MOST_ROUNDS];
/// Rounds on Cassandra are longer by this factor: its memtables, garbage and compiler come in between.
pub const CASSANDRA_FACTOR: f64 = 2.0;
/// The chance that a bar's interval leaves the truth out in any of the looks.
pub const ERROR: f64 = 0.05;
/// Half of an interval's width below which the estimate decides: of a ratio.
pub const NARROW_RATIO: f64 = 0.02;
/// And of an addition, in µs.
pub const NARROW_US: f64 = 0.5;

/// The share of the median's distance between first and last half of the rounds, in widths of the interval, beyond which
/// they are called a drift.
const DRIFT: f64 = 1.0;
/// The share of the middle rounds' range beyond which a gap between two neighbours makes two groups of them.
const GAP: f64 = 0.4;

/// Whether it is looked after so many rounds.
pub fn is_look(rounds: usize) -> bool {
    LOOKS.contains(&rounds)
}

/// The chance that the interval of a look at so many rounds leaves the truth out.
pub fn chance(rounds: usize) -> f64 {
    match rounds >= MOST_ROUNDS {
        true => ERROR / 2.0,
        false => ERROR / 2.0 / (LOOKS.len() - 1) as f64,
    }
}

/// Why the interval of so many rounds is still wide.
pub fn why_wide(values: &[f64], estimate: &Estimate) -> &'static str {
    let (first, last) = values.split_at(values.len() / 2);
    let middle_of = |half: &[f64]| median(half.iter().copied()).unwrap_or(estimate.figure);
    if (middle_of(first) - middle_of(last)).abs() > DRIFT * estimate.width() {
        return "it drifts: the first half of the rounds and the last have different medians";
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let tenth = sorted.len() / 10;
    let middle = sorted.get(tenth..sorted.len() - tenth).unwrap_or(&sorted);
    let range = middle.last().unwrap_or(&0.0) - middle.first().unwrap_or(&0.0);
    let widest = middle
        .iter()
        .zip(middle.iter().skip(1))
        .map(|(a, b)| b - a)
        .fold(0.0, f64::max);
    if widest > GAP * range {
        return "it has two modes: the rounds fall into two groups";
    }
    "its rounds scatter"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A linear congruential generator; sums of twelve are about normal.
    fn normal(state: &mut u64) -> f64 {
        (0..12).fold(-6.0, |sum, _| {
            *state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            sum + (*state >> 11) as f64 / (1_u64 << 53) as f64
        })
    }

    #[test]
    fn whoever_looks_at_each_look_is_wrong_no_more_often_than_said() {
        let mut state = 7;
        let runs = 1_600;
        let wrong = (0..runs).filter(|_| {
            let values: Vec<f64> = (0..MOST_ROUNDS).map(|_| normal(&mut state)).collect();
            LOOKS.iter().any(|look| {
                let values = values[..*look].iter().copied();
                let estimate = Estimate::of(values, chance(*look)).unwrap();
                estimate.low > 0.0 || estimate.high < 0.0
            })
        });
        let share = wrong.count() as f64 / f64::from(runs);
        assert!(share < ERROR, "{share}");
        // And not because the intervals say nothing at all.
        assert!(share > ERROR / 10.0, "{share}");
    }

    #[test]
    fn a_wide_interval_has_a_reason() {
        let mut state = 11;
        let mut noise = |at: f64| at + 0.01 * normal(&mut state);
        let why = |values: &[f64]| {
            let estimate = Estimate::of(values.iter().copied(), chance(values.len()));
            why_wide(values, &estimate.unwrap())
        };
        let drift: Vec<f64> = (0..80)
            .map(|n| noise(if n < 40 { 0.9 } else { 1.1 }))
            .collect();
        // The halves are far apart, and the interval of all lies between them.
        assert!(why(&drift).contains("drifts") || why(&drift).contains("two modes"));
        let slow: Vec<f64> = (0..80).map(|n| noise(1.0 + f64::from(n) * 0.01)).collect();
        assert!(why(&slow).contains("drifts"), "{}", why(&slow));
        let modes: Vec<f64> = (0..80)
            .map(|n| noise(if n % 2 == 0 { 0.9 } else { 1.1 }))
            .collect();
        assert!(why(&modes).contains("two modes"), "{}", why(&modes));
        let scatter: Vec<f64> = (0..80).map(|_| 1.0 + 0.2 * normal(&mut state)).collect();
        assert!(why(&scatter).contains("scatter"), "{}", why(&scatter));
    }
}
