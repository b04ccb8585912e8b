//! Sequential looks: how long to go on measuring until a bound is decided, and what may be claimed when one stops early.
//!
//! Intervals are wrong more often than they say where somebody looks after each round and stops when he likes what he sees. So there
//! are few looks, at numbers of rounds that are fixed beforehand ([`LOOKS`]), and each has its part of the error that all
//! may have together ([`ERROR`], divided evenly: Bonferroni's bound). The interval of a look is the sign test's, for the
//! median of whatever distribution.

use crate::stats::{Spread, quantile};

/// The most rounds that there can be.
pub const MOST_ROUNDS: usize = 80;
/// The least of which anything is claimed.
pub const LEAST_ROUNDS: usize = 10;
/// Rounds after which it is looked whether a bound is decided; each look has about 1.4 times as many as the one before.
pub const LOOKS: [usize; 7] = [LEAST_ROUNDS, 14, 20, 28, 40, 56, MOST_ROUNDS];
/// The chance that a bar's interval leaves the true median out in any of the looks.
pub const ERROR: f64 = 0.05;
/// Half of an interval's width below which the median decides: of a ratio.
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

/// The interval of the median that holds over all looks; None: fewer rounds than the first look has, or none is a number.
pub fn interval(values: &[f64]) -> Option<Spread> {
    interval_at(values, ERROR / LOOKS.len() as f64)
}

/// The interval that leaves the median out with at most this chance; None: as of [`interval`].
pub fn interval_at(values: &[f64], chance: f64) -> Option<Spread> {
    let spread = Spread::at_level(values.iter().copied(), chance)?;
    (spread.rounds >= LEAST_ROUNDS).then_some(spread)
}

/// Why the interval of so many rounds is still wide.
pub fn why_wide(values: &[f64], spread: &Spread) -> &'static str {
    let (first, last) = values.split_at(values.len() / 2);
    let median = |half: &[f64]| quantile(half.iter().copied(), 0.5).unwrap_or(spread.median);
    if (median(first) - median(last)).abs() > DRIFT * spread.width() {
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
    fn intervals_are_the_sign_tests() {
        // 2 · P(Bin(n, ½) ≤ outside) is at most 0.05 / 7, and more with one more outside.
        for (rounds, outside) in [
            (10, 0),
            (14, 1),
            (20, 3),
            (28, 6),
            (40, 11),
            (56, 17),
            (80, 27),
        ] {
            let values: Vec<f64> = (0..rounds).map(f64::from).collect();
            let spread = interval(&values).unwrap();
            assert_eq!(spread.low, f64::from(outside), "{rounds}");
            assert_eq!(spread.high, f64::from(rounds - 1 - outside), "{rounds}");
        }
        assert!(interval(&[1.0; 9]).is_none());
        assert!(interval(&[]).is_none());
    }

    #[test]
    fn whoever_looks_at_each_look_is_wrong_no_more_often_than_said() {
        let mut state = 7;
        let runs = 2000;
        let wrong = (0..runs).filter(|_| {
            let values: Vec<f64> = (0..MOST_ROUNDS).map(|_| normal(&mut state)).collect();
            LOOKS.iter().any(|look| {
                let spread = interval(&values[..*look]).unwrap();
                spread.low > 0.0 || spread.high < 0.0
            })
        });
        let share = wrong.count() as f64 / f64::from(runs);
        assert!(share < ERROR, "{share}");
        // And not because the intervals say nothing at all.
        assert!(share > ERROR / 20.0, "{share}");
    }

    #[test]
    fn a_wide_interval_has_a_reason() {
        let mut state = 11;
        let mut noise = |at: f64| at + 0.01 * normal(&mut state);
        let why = |values: &[f64]| why_wide(values, &interval(values).unwrap());
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
