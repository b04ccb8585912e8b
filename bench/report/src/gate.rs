//! The gate's judgement: whether an agent is slower than another one, by the ratios of rounds that they shared.
//!
//! All comparisons of a gate and all looks at each of them share one error ([`ERROR`]), so that a gate which compares equal
//! agents says "slower" or "faster" of any of them in fewer than one run in twenty.

use std::fmt;

use crate::{
    sequential::{ERROR, NARROW_RATIO},
    stats::Estimate,
};

/// Rounds after which it is looked whether one agent is slower. There is no look between them.
pub const LOOKS: [usize; 5] = [10, 14, 20, 28, 40];
/// The comparisons of a gate.
pub const COMPARISONS: usize = 5;
/// The chance that the interval of one look at one comparison leaves the truth out.
pub const CHANCE: f64 = ERROR / (LOOKS.len() * COMPARISONS) as f64;

/// The direction in which figures get better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// More, as of operations in a second.
    More,
    /// Less, as of time.
    Less,
}

/// The finding of a look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The ratio: the working tree's figure ÷ the base's, and its interval.
    pub ratio: Estimate,
    /// The claim that the interval carries.
    pub verdict: Verdict,
}

/// The claim that an interval carries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// All of the interval is on the better side.
    Faster,
    /// All of the interval is on the worse side.
    Slower,
    /// No difference is seen that is greater than this share.
    Same(f64),
}

/// Judges the ratios of the rounds so far. `None`: they are fewer than the first look has.
pub fn judge(ratios: &[f64], better: Better) -> Option<Found> {
    let looked = LOOKS.iter().rev().find(|look| **look <= ratios.len())?;
    // Rounds after a look belong to the next one: counting them would be a look of its own.
    let ratios = ratios.get(..*looked)?.iter().copied();
    let ratio = Estimate::of_ratios(ratios, CHANCE)?;
    let (is_less, is_more) = (ratio.high < 1.0, ratio.low > 1.0);
    let verdict = match better {
        Better::More if is_less => Verdict::Slower,
        Better::More if is_more => Verdict::Faster,
        Better::Less if is_more => Verdict::Slower,
        Better::Less if is_less => Verdict::Faster,
        _ => Verdict::Same((1.0 - ratio.low).max(ratio.high - 1.0)),
    };
    Some(Found { ratio, verdict })
}

impl Found {
    /// Whether more rounds would tell nothing that matters: there is a difference, or none worth looking for.
    pub fn is_decided(&self) -> bool {
        match self.verdict {
            Verdict::Same(at_most) => at_most <= NARROW_RATIO,
            _ => true,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Faster => f.write_str("faster"),
            Self::Slower => f.write_str("SLOWER"),
            Self::Same(share) => write!(f, "no difference seen above {:.1} %", share * 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ratios that scatter evenly around this one, by ± 3 %.
    fn around(ratio: f64, rounds: usize) -> Vec<f64> {
        let part = |n: usize| (n * 7 % 13) as f64 / 12.0 - 0.5;
        (0..rounds).map(|n| ratio + 0.06 * part(n)).collect()
    }

    #[test]
    fn a_difference_beyond_the_scatter_is_found_and_has_a_direction() {
        let verdict = |ratio, better| judge(&around(ratio, 40), better).unwrap().verdict;
        assert_eq!(verdict(0.95, Better::More), Verdict::Slower);
        assert_eq!(verdict(0.95, Better::Less), Verdict::Faster);
        assert_eq!(verdict(1.05, Better::More), Verdict::Faster);
        assert_eq!(verdict(1.05, Better::Less), Verdict::Slower);
        let Verdict::Same(above) = verdict(1.0, Better::More) else {
            panic!("a difference where there is none");
        };
        assert!(above > 0.0 && above < 0.03, "{above}");
    }

    #[test]
    fn only_looks_count() {
        assert_eq!(judge(&around(0.9, 9), Better::More), None);
        // Thirteen rounds are judged by the first ten.
        let mut rounds = around(0.9, 10);
        rounds.extend([2.0; 3]);
        let found = judge(&rounds, Better::More).unwrap();
        assert_eq!((found.ratio.rounds, found.verdict), (10, Verdict::Slower));
        assert!(found.is_decided());
    }

    #[test]
    fn the_first_look_can_decide() {
        // The signed-rank test of ten rounds can be no surer than 2 ÷ 2^10.
        const { assert!(CHANCE > 2.0 / 1024.0) };
    }
}
