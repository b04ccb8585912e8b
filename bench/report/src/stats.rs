//! Estimates of what rounds scatter around, with their intervals, and when a difference is one.
//!
//! The estimate is Hodges' and Lehmann's, the median of the means of all pairs of rounds, and the interval Wilcoxon's (signed ranks).
//! An interval of five rounds reaches from the least to the greatest; one of more leaves the outermost out, and narrows as rounds are
//! added. Both take it that figures scatter evenly to both sides of what is true, as those of turns in a random order do (of ratios,
//! the logarithms). They need two thirds of the rounds of a sign test, which assumes nothing.

/// With fewer, all rounds fall on one side by chance more often than [`CHANCE`] says: nothing is claimed of them.
pub const MIN_ROUNDS: usize = 5;

/// The chance that the interval of a path's difference leaves the truth out.
pub const CHANCE: f64 = 1.0 / 16.0;

/// The chance that a second direct, which is the same, is found to differ from the first: two figures of each of eight experiments share
/// an error of 5 %. It is smaller than [`CHANCE`], for a whole column of differences hangs on it.
pub const AGAIN_CHANCE: f64 = 0.05 / 16.0;

/// Histograms keep three digits: two neighbouring values are this far apart, relatively, and so
/// is what is measured twice without a difference.
pub const RESOLUTION: f64 = 0.002;

/// The share of direct's own figure within which a spread must lie to show that there is no difference. A wider one shows nothing.
pub const RESOLVED: f64 = 0.1;

/// The value below which this share (0 to 1) of the values lie, interpolated linearly; None
/// where no value is a number. What is not finite is left out.
pub fn quantile(values: impl IntoIterator<Item = f64>, share: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let place = share.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (
        sorted.get(place.floor() as usize)?,
        sorted.get(place.ceil() as usize)?,
    );
    Some(below + (above - below) * place.fract())
}

/// The median; None where no value is a number.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    quantile(values, 0.5)
}

/// The figure that rounds scatter around, and where it may lie.
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
    /// The estimate of these values, with the narrowest interval that leaves the truth out with at most this chance. Of too few for any
    /// such interval it is from the least to the greatest. None: no value is finite; others are left out.
    pub fn of(values: impl IntoIterator<Item = f64>, chance: f64) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        let outside = outside(values.len(), chance).unwrap_or(0);
        let means = means_of_pairs(&values);
        Some(Self {
            figure: median(means.iter().copied())?,
            low: *means.get(outside)?,
            high: *means.get(means.len().checked_sub(outside + 1)?)?,
            rounds: values.len(),
        })
    }

    /// The estimate of ratios, by their logarithms; otherwise as [`Estimate::of`].
    pub fn of_ratios(ratios: impl IntoIterator<Item = f64>, chance: f64) -> Option<Self> {
        let ratios = ratios.into_iter().filter(|r| r.is_finite());
        let estimate = Self::of(ratios.map(|r| r.max(f64::MIN_POSITIVE).ln()), chance)?;
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

/// How a path differs from `direct`: as a ratio, or as what it adds. Each round is held against
/// the same round of `direct`, so that the machine's moods fall on both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// The estimate of all rounds that both have, with its interval.
    pub estimate: Estimate,
    /// The interval includes no difference, or the difference is less than what the histograms resolve, or the rounds are too
    /// few: nothing may be claimed.
    pub is_noise: bool,
    /// Nothing can be told: it is noise, and its interval reaches beyond [`RESOLVED`]; or two directs differ, too.
    pub is_unresolved: bool,
}

impl Difference {
    /// The ratios path ÷ direct of pairs (path, direct). None where there is no pair whose ratio is a number.
    pub fn of_ratios(pairs: &[(f64, f64)], chance: f64) -> Option<Self> {
        let ratios = pairs.iter().map(|(path, direct)| path / direct);
        let estimate = Estimate::of_ratios(ratios, chance)?;
        Some(Self::new(estimate, 1.0, 1.0))
    }

    /// The differences path − direct of pairs (path, direct). None where there is no pair of numbers.
    pub fn of_sums(pairs: &[(f64, f64)], chance: f64) -> Option<Self> {
        let estimate = Estimate::of(pairs.iter().map(|(path, direct)| path - direct), chance)?;
        let direct = median(pairs.iter().map(|(_, direct)| *direct))?;
        Some(Self::new(estimate, 0.0, direct.abs()))
    }

    /// `direct`: its own figure, of which resolutions are shares.
    fn new(estimate: Estimate, neutral: f64, direct: f64) -> Self {
        let distance = |figure: f64| (figure - neutral).abs();
        let is_inside = estimate.low <= neutral && neutral <= estimate.high;
        let is_small = distance(estimate.figure) <= direct * RESOLUTION;
        let is_noise = estimate.rounds < MIN_ROUNDS || is_inside || is_small;
        let farthest = distance(estimate.low).max(distance(estimate.high));
        Self {
            estimate,
            is_noise,
            is_unresolved: is_noise && farthest > direct * RESOLVED,
        }
    }

    /// Returns what is to be shown where two directs differ as well: that nothing can be told.
    #[must_use]
    pub fn beside_chance(self) -> Self {
        Self {
            is_unresolved: true,
            ..self
        }
    }

    /// There are not enough rounds to tell.
    pub fn is_unknown(&self) -> bool {
        self.estimate.rounds < MIN_ROUNDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([f64::NAN, 7.0]), Some(7.0));
        assert_eq!(median([]), None);
        assert_eq!(quantile([1.0, 2.0, 3.0, 4.0, 5.0], 0.25), Some(2.0));
        assert_eq!(quantile([0.0, 10.0], 0.9), Some(9.0));
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
        let estimate = Estimate::of(values, 0.002).unwrap();
        assert_eq!(
            (estimate.figure, estimate.low, estimate.high),
            (4.5, 0.0, 9.0)
        );
        // Too few for such an interval: from the least to the greatest.
        let estimate = Estimate::of([3.0, f64::NAN, 1.0], 0.002).unwrap();
        assert_eq!(
            (estimate.figure, estimate.low, estimate.high),
            (2.0, 1.0, 3.0)
        );
        assert_eq!(estimate.rounds, 2);
        assert_eq!(Estimate::of([f64::NAN], 0.5), None);
    }

    #[test]
    fn a_ratio_and_its_inverse_are_the_same_finding() {
        let ratios: Vec<f64> = (0..12)
            .map(|n| 0.8 + f64::from(n * 5 % 12) / 20.0)
            .collect();
        let inverse: Vec<f64> = ratios.iter().map(|r| 1.0 / r).collect();
        let [of, inverse] = [ratios, inverse].map(|r| Estimate::of_ratios(r, 0.05).unwrap());
        assert!((of.figure * inverse.figure - 1.0).abs() < 1e-9);
        assert!((of.low * inverse.high - 1.0).abs() < 1e-9);
    }

    #[test]
    fn one_bad_round_moves_little() {
        let mut ratios = [1.0; 20];
        ratios[3] = 0.0;
        let estimate = Estimate::of_ratios(ratios, 0.05).unwrap();
        assert_eq!((estimate.figure, estimate.high), (1.0, 1.0));
    }

    #[test]
    fn noise_is_seldom_taken_for_a_difference() {
        // A linear congruential generator; sums of twelve are about normal.
        let mut state = 42_u64;
        let mut normal = || {
            (0..12).fold(-6.0, |sum, _| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                sum + (state >> 11) as f64 / (1_u64 << 53) as f64
            })
        };
        for rounds in [5, 9, 15, 40] {
            let mut claims = |shift: f64| {
                let all = (0..2000).map(|_| {
                    let pairs: Vec<_> = (0..rounds)
                        .map(|_| (1.0 + shift + 0.02 * normal(), 1.0 + 0.02 * normal()))
                        .collect();
                    !Difference::of_ratios(&pairs, CHANCE).unwrap().is_noise
                });
                all.filter(|claimed| *claimed).count() as f64 / 2000.0
            };
            // Three standard deviations of so many tries above what is said.
            let most = CHANCE + 3.0 * (CHANCE * (1.0 - CHANCE) / 2000.0).sqrt();
            assert!(claims(0.0) < most, "{rounds} rounds");
            assert!(claims(-0.10) > 0.95, "{rounds} rounds");
        }
    }

    #[test]
    fn a_difference_within_the_spread_is_none() {
        let against = |ratios: &[f64]| {
            let pairs: Vec<_> = ratios.iter().map(|r| (*r, 1.0)).collect();
            Difference::of_ratios(&pairs, CHANCE)
        };
        let noise = |ratios: &[f64]| against(ratios).unwrap().is_noise;
        assert!(noise(&[0.97, 0.98, 0.99, 1.01, 1.02]));
        assert!(!noise(&[0.90, 0.91, 0.92, 0.91, 0.90]));
        // All agree, but by less than the histograms' digits.
        assert!(noise(&[1.001; 9]));
        assert!(!noise(&[1.003; 9]));
        // Four rounds show nothing, however far they are.
        assert!(noise(&[0.5; 4]));
        assert!(against(&[]).is_none());
    }

    #[test]
    fn a_wide_spread_does_not_show_that_there_is_no_difference() {
        let of =
            |ratios: [f64; 5]| Difference::of_ratios(&ratios.map(|r| (r, 1.0)), CHANCE).unwrap();
        let [narrow, wide, apart] = [
            of([0.95, 0.98, 1.0, 1.02, 1.09]),
            of([0.85, 0.98, 1.0, 1.02, 1.09]),
            of([0.5, 0.6, 0.7, 0.8, 0.9]),
        ];
        let told = |d: Difference| (d.is_noise, d.is_unresolved);
        assert_eq!(told(narrow), (true, false));
        assert_eq!(told(wide), (true, true));
        assert_eq!(told(apart), (false, false), "wide, and all on one side");
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        assert_eq!(Difference::of_ratios(&[(1.0, 0.0)], CHANCE), None);
        let pairs = [(1.0, 0.0), (1.0, 2.0), (f64::NAN, 1.0)];
        let Estimate { figure, rounds, .. } =
            Difference::of_ratios(&pairs, CHANCE).unwrap().estimate;
        assert_eq!((figure, rounds), (0.5, 1));
    }

    #[test]
    fn sums_know_their_resolution() {
        let added = |us: f64| Difference::of_sums(&[(1000.0 + us, 1000.0); 5], CHANCE).unwrap();
        assert!(added(1.5).is_noise);
        assert!(!added(2.5).is_noise);
        assert_eq!(added(-7.0).estimate.figure, -7.0);
    }
}
