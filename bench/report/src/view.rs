//! How the result file is asked: figures of series, and their differences to `direct`.

use base64::{Engine, prelude::BASE64_STANDARD};
use hdrhistogram::{Histogram, serialization::Deserializer};

use crate::{
    metric::Metric,
    schema::{Experiment, Path, PathKind, Round, Run, Series},
    stats::{self, Difference},
};

/// The path without a proxy.
pub const DIRECT: &str = "direct";
/// A second direct under another name, whose difference to the first is what chance does.
pub const AGAIN: &str = "direct-again";

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
        self.beside_chance(series, metric, Difference::of_ratios)
    }

    /// The path − direct, round by round.
    pub fn added(&self, series: &Series, metric: Metric) -> Option<Difference> {
        self.beside_chance(series, metric, Difference::of_sums)
    }

    /// A difference. Where the second direct has one as well, that of others shows nothing.
    fn beside_chance(
        &self,
        series: &Series,
        metric: Metric,
        of: fn(Vec<(f64, f64)>) -> Option<Difference>,
    ) -> Option<Difference> {
        let difference = of(self.pairs(series, metric)?)?;
        let again = self.series(AGAIN).filter(|_| series.path != AGAIN);
        let again = again.and_then(|again| of(self.pairs(again, metric)?));
        Some(match again {
            Some(again) if !again.is_noise => difference.beside_chance(),
            _ => difference,
        })
    }

    /// Rounds that both have and both answer for. An interrupted run has more of one.
    pub fn pairs(&self, series: &Series, metric: Metric) -> Option<Vec<(f64, f64)>> {
        Some(paired(series, self.direct()?, metric))
    }

    /// Whether the experiment's figures may be shown.
    pub fn is_usable(&self) -> bool {
        self.refused.is_none()
    }
}

/// Answers of the rounds that both have and both answer for.
pub(crate) fn paired(a: &Series, b: &Series, metric: Metric) -> Vec<(f64, f64)> {
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
