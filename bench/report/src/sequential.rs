//! Sequential looks: how long to go on measuring until a bound is decided, and what may be claimed when one stops early.
//!
//! Intervals are wrong more often than they say where somebody looks after each round and stops when he likes what he sees. So there
//! are few looks, at numbers of rounds that are fixed beforehand ([`LOOKS`]), and each has its part of the error that all
//! may have together ([`ERROR`], by Bonferroni's bound): the last has half of it, because most of what is hard to
//! decide gets there, and the others share the rest.
//!
//! The interval of a look is Wilcoxon's signed-rank interval, and the estimate in it Hodges' and Lehmann's: the median of the means
//! of all pairs of rounds. They take it that figures scatter evenly to both sides of what is true, as those of turns in
//! a random order do (of ratios, the logarithms), and need two thirds of the rounds of a sign test, which assumes nothing.

use crate::stats::median;

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

/// A figure with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The estimate of rounds, or a figure of them all.
    pub figure: f64,
    /// Where its interval begins.
    pub low: f64,
    /// Where its interval ends.
    pub high: f64,
    /// The rounds that it is of.
    pub rounds: usize,
}

impl Estimate {
    /// The estimate of what these values scatter around, with the narrowest interval that leaves it out with at most this chance;
    /// None: they are fewer than [`LEAST_ROUNDS`], or too few for such an interval. What is not finite is left out.
    pub fn of(values: &[f64], chance: f64) -> Option<Self> {
        let values: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
        let rounds = values.len();
        if rounds < LEAST_ROUNDS {
            return None;
        }
        let outside = outside(rounds, chance)?;
        let means = means_of_pairs(&values);
        Some(Self {
            figure: median(means.iter().copied())?,
            low: *means.get(outside)?,
            high: *means.get(means.len().checked_sub(outside + 1)?)?,
            rounds,
        })
    }

    /// The estimate of ratios, by their logarithms; otherwise as [`Estimate::of`].
    pub fn of_ratios(ratios: &[f64], chance: f64) -> Option<Self> {
        let logarithms: Vec<f64> = ratios
            .iter()
            .map(|r| r.max(f64::MIN_POSITIVE).ln())
            .collect();
        let estimate = Self::of(&logarithms, chance)?;
        Some(Self {
            figure: estimate.figure.exp(),
            low: estimate.low.exp(),
            high: estimate.high.exp(),
            ..estimate
        })
    }

    /// Whether it has no interval.
    pub fn is_exact(&self) -> bool {
        self.low == self.high
    }

    /// The interval's width.
    pub fn width(&self) -> f64 {
        self.high - self.low
    }
}

/// The means of all pairs of values, each with itself too, in order.
fn means_of_pairs(values: &[f64]) -> Vec<f64> {
    let mut means = Vec::with_capacity(values.len() * (values.len() + 1) / 2);
    for (n, a) in values.iter().enumerate() {
        means.extend(values.iter().skip(n).map(|b| f64::midpoint(*a, *b)));
    }
    means.sort_by(f64::total_cmp);
    means
}

/// The number of means of pairs outside of the interval at each end; None: even the widest is left out more often.
fn outside(rounds: usize, chance: f64) -> Option<usize> {
    // `shares[n]`: the share of all sets of ranks whose sum is n. (Each round is above or below by a coin.)
    let half = rounds * (rounds + 1) / 4;
    let mut shares = vec![0.0; half + 1];
    if let Some(none) = shares.first_mut() {
        *none = 1.0;
    }
    for rank in 1..=rounds {
        for sum in (0..=half).rev() {
            let with = sum.checked_sub(rank).and_then(|rest| shares.get(rest));
            let with = with.copied().unwrap_or(0.0);
            if let Some(share) = shares.get_mut(sum) {
                *share = f64::midpoint(*share, with);
            }
        }
    }
    let up_to = shares.iter().scan(0.0, |sum, share| {
        *sum += 2.0 * share;
        Some(*sum)
    });
    up_to
        .take_while(|share| *share <= chance)
        .count()
        .checked_sub(1)
}

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
    fn as_many_means_are_outside_as_tables_have_it() {
        // Of tables of the signed-rank test, two-sided: the greatest sum of ranks that is significant.
        for (rounds, chance, outside) in [
            (10, 0.05, 8),
            (10, 0.01, 3),
            (20, 0.05, 52),
            (50, 0.01, 373),
        ] {
            assert_eq!(super::outside(rounds, chance), Some(outside), "{rounds}");
        }
        assert_eq!(outside(4, 0.05), None);
        let values: Vec<f64> = (0..10).map(f64::from).collect();
        // All ten on one side: one chance in 512, the least that ten rounds can have.
        let estimate = Estimate::of(&values, 0.002).unwrap();
        assert_eq!(
            (estimate.figure, estimate.low, estimate.high),
            (4.5, 0.0, 9.0)
        );
        assert_eq!(Estimate::of(&[1.0; 9], 0.5), None);
        assert_eq!(Estimate::of(&[], 0.5), None);
    }

    #[test]
    fn a_ratio_and_its_inverse_are_the_same_finding() {
        let ratios: Vec<f64> = (0..12)
            .map(|n| 0.8 + f64::from(n * 5 % 12) / 20.0)
            .collect();
        let inverse: Vec<f64> = ratios.iter().map(|r| 1.0 / r).collect();
        let [of, inverse] = [ratios, inverse].map(|r| Estimate::of_ratios(&r, 0.05).unwrap());
        assert!((of.figure * inverse.figure - 1.0).abs() < 1e-9);
        assert!((of.low * inverse.high - 1.0).abs() < 1e-9);
    }

    #[test]
    fn one_bad_round_moves_little() {
        let mut ratios = [1.0; 20];
        ratios[3] = 0.0;
        let estimate = Estimate::of_ratios(&ratios, 0.05).unwrap();
        assert_eq!((estimate.figure, estimate.high), (1.0, 1.0));
    }

    #[test]
    fn whoever_looks_at_each_look_is_wrong_no_more_often_than_said() {
        let mut state = 7;
        let runs = 1_600;
        let outside: Vec<usize> = LOOKS
            .iter()
            .map(|n| outside(*n, chance(*n)).unwrap())
            .collect();
        let wrong = (0..runs).filter(|_| {
            let values: Vec<f64> = (0..MOST_ROUNDS).map(|_| normal(&mut state)).collect();
            LOOKS.iter().zip(&outside).any(|(look, outside)| {
                let means = means_of_pairs(&values[..*look]);
                means[*outside] > 0.0 || means[means.len() - 1 - outside] < 0.0
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
        let why =
            |values: &[f64]| why_wide(values, &Estimate::of(values, chance(values.len())).unwrap());
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
