//! How the result file is asked: figures of series, and their differences to `direct`.

use base64::{Engine, prelude::BASE64_STANDARD};
use hdrhistogram::{Histogram, serialization::Deserializer};

use crate::{
    metric::Metric,
    schema::{Experiment, Path, PathKind, Round, Run, Series},
    stats::{self, AGAIN_CHANCE, CHANCE, Difference},
};

/// The path without a proxy.
pub const DIRECT: &str = "direct";
/// A second direct under another name, whose difference to the first is what chance does.
pub const AGAIN: &str = "direct-again";

/// Figures of two series, round by round.
pub(crate) type Pairs = Vec<(f64, f64)>;

impl Series {
    /// No proxy: nothing to say of one.
    pub fn is_direct(&self) -> bool {
        self.path == DIRECT
    }

    /// Rounds' answers, those without one left out.
    pub fn values(&self, metric: Metric) -> impl Iterator<Item = f64> {
        self.rounds.iter().filter_map(move |r| metric.of(r))
    }

    /// The median of all rounds; None where no round has an answer.
    pub fn median(&self, metric: Metric) -> Option<f64> {
        stats::median(self.values(metric))
    }

    /// The largest of all rounds.
    pub fn peak(&self, metric: Metric) -> Option<f64> {
        self.values(metric).max_by(f64::total_cmp)
    }

    /// The latencies of all rounds, in ns; None where there are none, or none that can be read.
    pub fn latencies(&self) -> Option<Histogram<u64>> {
        let bytes = BASE64_STANDARD.decode(&self.histogram).ok()?;
        let histogram = Deserializer::new().deserialize(&mut bytes.as_slice());
        histogram
            .ok()
            .filter(|all: &Histogram<u64>| !all.is_empty())
    }

    /// Operations that failed, of all rounds.
    pub fn errors(&self) -> u64 {
        self.rounds
            .iter()
            .fold(0, |sum, r| sum.saturating_add(r.errors))
    }

    /// The share of operations that failed; None where none was tried.
    pub fn error_rate(&self) -> Option<f64> {
        let sum = |count: fn(&Round) -> u64| self.rounds.iter().map(|r| count(r) as f64).sum();
        let (errors, ops): (f64, f64) = (sum(|r| r.errors), sum(|r| r.ops));
        (errors + ops > 0.0).then(|| errors / (errors + ops))
    }

    /// Why the first one did.
    pub fn first_error(&self) -> Option<&str> {
        self.rounds.iter().find_map(|r| r.first_error.as_deref())
    }
}

impl Experiment {
    /// The path's, if it was measured.
    pub fn series(&self, path: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.path == path)
    }

    /// The one that others are held against.
    pub fn direct(&self) -> Option<&Series> {
        self.series(DIRECT)
    }

    /// The path ÷ direct, round by round.
    pub fn ratio(&self, series: &Series, metric: Metric) -> Option<Difference> {
        self.beside_chance(series, |series| {
            Difference::of_ratios(&self.by_ratios(series, metric)?, chance(series))
        })
    }

    /// The path − direct, round by round.
    pub fn added(&self, series: &Series, metric: Metric) -> Option<Difference> {
        self.beside_chance(series, |series| {
            Difference::of_sums(&self.by_sums(series, metric)?, chance(series))
        })
    }

    /// A difference. Where the second direct has one as well, that of others shows nothing.
    fn beside_chance(
        &self,
        series: &Series,
        of: impl Fn(&Series) -> Option<Difference>,
    ) -> Option<Difference> {
        let difference = of(series)?;
        let again = self.series(AGAIN).filter(|_| series.path != AGAIN);
        Some(match again.and_then(of) {
            Some(again) if !again.is_noise => difference.beside_chance(),
            _ => difference,
        })
    }

    /// A path's figures with direct's, of the rounds that both have: for ratios.
    pub(crate) fn by_ratios(&self, series: &Series, metric: Metric) -> Option<Pairs> {
        self.against_directs(series, metric, |a, b| (a * b).sqrt())
    }

    /// A path's figures with direct's, of the rounds that both have: for differences.
    pub(crate) fn by_sums(&self, series: &Series, metric: Metric) -> Option<Pairs> {
        self.against_directs(series, metric, f64::midpoint)
    }

    /// A path's figures with the mean of both directs', which scatters less than one of them; with the first's alone for the second,
    /// and where there is no second. An interrupted run has more rounds of one.
    fn against_directs(
        &self,
        series: &Series,
        metric: Metric,
        mean: fn(f64, f64) -> f64,
    ) -> Option<Pairs> {
        let first = self.direct()?;
        let Some(second) = self.series(AGAIN).filter(|_| series.path != AGAIN) else {
            return Some(paired(series, first, metric));
        };
        let all = series.rounds.iter().zip(&first.rounds).zip(&second.rounds);
        let pairs = all.filter_map(|((path, first), second)| {
            let direct = mean(metric.of(first)?, metric.of(second)?);
            Some((metric.of(path)?, direct))
        });
        Some(pairs.collect())
    }

    /// Whether the experiment's figures may be shown.
    pub fn is_usable(&self) -> bool {
        self.refused.is_none()
    }
}

/// The chance that the interval of a path's difference leaves the truth out.
fn chance(series: &Series) -> f64 {
    match &*series.path {
        AGAIN => AGAIN_CHANCE,
        _ => CHANCE,
    }
}

/// Answers of the rounds that both have and both answer for.
pub(crate) fn paired(a: &Series, b: &Series, metric: Metric) -> Pairs {
    let both = a.rounds.iter().zip(&b.rounds);
    let pairs = both.filter_map(|(a, b)| Some((metric.of(a)?, metric.of(b)?)));
    pairs.collect()
}

impl Run {
    /// Experiments whose figures may be shown.
    pub fn usable(&self) -> impl Iterator<Item = &Experiment> {
        self.experiments.iter().filter(|e| e.is_usable())
    }

    /// The experiment of this id, whether its figures may be shown or not.
    pub fn experiment(&self, id: &str) -> Option<&Experiment> {
        self.experiments.iter().find(|e| e.id == id)
    }

    /// The path of this name.
    pub fn path(&self, name: &str) -> Option<&Path> {
        self.paths.iter().find(|path| path.name == name)
    }

    /// The path of this name is one of underpass's.
    pub fn is_ours(&self, name: &str) -> bool {
        self.path(name).is_some_and(|p| p.kind == PathKind::Ours)
    }

    /// Paths that were measured, in the order of tables.
    pub fn measured(&self) -> impl Iterator<Item = &Path> {
        self.paths.iter().filter(|path| path.absent.is_none())
    }
}
