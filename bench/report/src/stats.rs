//! Medians, their spread, and when a difference is one.
//!
//! The *spread* is where the median of endless rounds lies, with 15 chances in 16, whatever
//! rounds are distributed like: of five rounds from the least to the greatest, of more without
//! the outermost (the sign test's interval). So it narrows as rounds are added, where the full
//! range would widen and hide what many rounds show; the quartiles of five rounds would find
//! differences where there are none, time and again.

/// With fewer, all rounds fall on one side by chance more often than once in 16 times: they
/// have no spread, and nothing is claimed of them.
pub const MIN_ROUNDS: usize = 5;

/// How far from the middle the spread reaches, in roots of the number of rounds: half of the
/// normal distribution's quantile for 15 in 16.
const REACH: f64 = 0.9315;

/// So many rounds at each end are not in the spread.
fn outside(rounds: usize) -> usize {
    let rounds = rounds as f64;
    let outside = rounds / 2.0 - REACH * rounds.sqrt() - 0.5;
    outside.max(0.0).floor() as usize
}

/// The share of comparisons of what is equal in which the spread of so many rounds leaves
/// "equal" out; None: fewer than [`MIN_ROUNDS`], of which nothing is claimed. It is what a
/// coin does: so many heads, or as many tails, at the most.
pub fn chance_of_difference(rounds: usize) -> Option<f64> {
    (rounds >= MIN_ROUNDS).then(|| chance_of_leaving_out(rounds, outside(rounds)))
}

/// The chance that the true median is beyond an interval that has so many rounds outside at each end.
fn chance_of_leaving_out(rounds: usize, outside: usize) -> f64 {
    let all = rounds as f64;
    let mut term = 0.5_f64.powf(all);
    let mut sum = term;
    for heads in 1..=outside {
        let heads = heads as f64;
        term *= (all - heads + 1.0) / heads;
        sum += term;
    }
    2.0 * sum
}

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

/// Values of rounds: their median, and the spread around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Half of the rounds are below.
    pub median: f64,
    /// Where the spread begins.
    pub low: f64,
    /// Where it ends.
    pub high: f64,
    /// How many there were.
    pub rounds: usize,
}

impl Spread {
    /// None where no value is a number.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let rounds = sorted.len();
        let outside = outside(rounds);
        Some(Self {
            median: median(sorted.iter().copied())?,
            low: *sorted.get(outside)?,
            high: *sorted.get(rounds.checked_sub(outside + 1)?)?,
            rounds,
        })
    }

    /// From one end to the other.
    pub fn width(&self) -> f64 {
        self.high - self.low
    }
}

/// How a path differs from `direct`: as a ratio, or as what it adds. Each round is held against
/// the same round of `direct`, so that the machine's moods fall on both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// The median of all rounds that both have.
    pub median: f64,
    /// Where its spread begins.
    pub low: f64,
    /// Where its spread ends.
    pub high: f64,
    /// How many rounds both have.
    pub rounds: usize,
    /// The spread includes no difference, or the difference is less than what the histograms resolve, or the rounds are too
    /// few: nothing may be claimed.
    pub is_noise: bool,
    /// Nothing can be told: it is noise, and its spread reaches beyond [`RESOLVED`]; or two directs differ, too.
    pub is_unresolved: bool,
}

impl Difference {
    /// The ratios path ÷ direct of pairs (path, direct). None where there is no pair of numbers.
    pub fn of_ratios(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let ratios = pairs.into_iter().filter(|(_, direct)| *direct > 0.0);
        let spread = Spread::of(ratios.map(|(path, direct)| path / direct))?;
        Some(Self::new(spread, 1.0, 1.0))
    }

    /// The differences path − direct of pairs (path, direct). None where there is no pair of numbers.
    pub fn of_sums(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let pairs: Vec<_> = pairs.into_iter().collect();
        let spread = Spread::of(pairs.iter().map(|(path, direct)| path - direct))?;
        let direct = median(pairs.iter().map(|(_, direct)| *direct))?;
        Some(Self::new(spread, 0.0, direct.abs()))
    }

    /// `direct`: its own figure, of which resolutions are shares.
    fn new(spread: Spread, neutral: f64, direct: f64) -> Self {
        let distance = |figure: f64| (figure - neutral).abs();
        let is_inside = spread.low <= neutral && neutral <= spread.high;
        let is_small = distance(spread.median) <= direct * RESOLUTION;
        let is_noise = spread.rounds < MIN_ROUNDS || is_inside || is_small;
        let farthest = distance(spread.low).max(distance(spread.high));
        Self {
            median: spread.median,
            low: spread.low,
            high: spread.high,
            rounds: spread.rounds,
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
        self.rounds < MIN_ROUNDS
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
    fn one_bad_round_moves_the_median_little() {
        let spread = Spread::of([1.0, 1.01, 0.99, 0.2, 1.0]).unwrap();
        assert_eq!((spread.median, spread.low, spread.high), (1.0, 0.2, 1.01));
    }

    #[test]
    fn many_rounds_may_have_outliers() {
        // As tables of the sign test have it: so many of so many rounds are outside on each side.
        for (rounds, outside) in [(1, 0), (5, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3)] {
            let spread = Spread::of((0..rounds).map(f64::from)).unwrap();
            assert_eq!(spread.low, f64::from(outside), "{rounds}");
            assert_eq!(spread.high, f64::from(rounds - 1 - outside), "{rounds}");
        }
    }

    #[test]
    fn the_chance_of_a_difference_is_that_of_a_coin() {
        for (rounds, chance) in [
            (4, None),
            (5, Some(2.0 / 32.0)),
            (6, Some(2.0 / 64.0)),
            // One head, or none.
            (9, Some(2.0 * 10.0 / 512.0)),
            (12, Some(2.0 * 79.0 / 4096.0)),
        ] {
            assert_eq!(chance_of_difference(rounds), chance, "{rounds}");
        }
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
        for rounds in [5, 9, 15] {
            let mut claims = |shift: f64| {
                let all = (0..2000).map(|_| {
                    let pairs: Vec<_> = (0..rounds)
                        .map(|_| (1.0 + shift + 0.02 * normal(), 1.0 + 0.02 * normal()))
                        .collect();
                    !Difference::of_ratios(pairs).unwrap().is_noise
                });
                all.filter(|claimed| *claimed).count() as f64 / 2000.0
            };
            // Three standard deviations of so many tries above what is said.
            let said = chance_of_difference(rounds).unwrap();
            let most = said + 3.0 * (said * (1.0 - said) / 2000.0).sqrt();
            assert!(claims(0.0) < most, "{rounds} rounds");
            assert!(claims(-0.10) > 0.95, "{rounds} rounds");
        }
    }

    #[test]
    fn a_difference_within_the_spread_is_none() {
        let against = |ratios: &[f64]| Difference::of_ratios(ratios.iter().map(|r| (*r, 1.0)));
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
        let of = |ratios: [f64; 5]| Difference::of_ratios(ratios.map(|r| (r, 1.0))).unwrap();
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
        assert_eq!(Difference::of_ratios([(1.0, 0.0)]), None);
        let some = Difference::of_ratios([(1.0, 0.0), (1.0, 2.0), (f64::NAN, 1.0)]).unwrap();
        assert_eq!((some.median, some.rounds), (0.5, 1));
    }

    #[test]
    fn sums_know_their_resolution() {
        let added = |us: f64| Difference::of_sums([(1000.0 + us, 1000.0); 5]).unwrap();
        assert!(added(1.5).is_noise);
        assert!(!added(2.5).is_noise);
        assert_eq!(added(-7.0).median, -7.0);
    }
}
