//! Whether a bar is met. "Met" and "missed" are claims: where the figures cannot carry one, the
//! verdict says so, and why.

use super::{Bar, Bound, Measure};
use crate::{
    metric::Metric,
    number,
    schema::{Experiment, Run, Series},
    sequential::{self, NARROW_RATIO, NARROW_US},
    stats::Spread,
    view::{AGAIN, DIRECT, paired},
};

/// The verdict on a bar.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The bar holds: with all of the interval, or with the median of one that is narrow.
    Met(Value),
    /// The bar does not hold, likewise.
    Missed(Value),
    /// The bound is in a wide interval, which has this reason.
    Undecided(Value, &'static str),
    /// Nobody knows, for this reason.
    NotMeasured(String),
}

/// A figure that is held against a bound, with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// The median of the rounds, or a figure of them all.
    pub figure: f64,
    /// Where its interval begins.
    pub low: f64,
    /// Where its interval ends.
    pub high: f64,
    /// The rounds that it is of.
    pub rounds: usize,
}

impl Bar {
    /// Whether it holds in a run.
    pub fn verdict(&self, run: &Run) -> Verdict {
        let absent = run.path(self.path).and_then(|path| path.absent.clone());
        let failed = run.failed.get(self.experiment);
        let experiment = run.experiment(self.experiment);
        let judged = match (absent, failed, experiment) {
            (Some(why), _, _) => Err(why),
            (None, Some(why), _) => Err(format!("failed: {why}")),
            (None, None, None) => Err("not part of this run".into()),
            (None, None, Some(experiment)) => self.judged(experiment),
        };
        judged.unwrap_or_else(Verdict::NotMeasured)
    }

    /// The verdict that the rounds of its experiment allow so far.
    ///
    /// # Errors
    /// There is no figure, for this reason.
    pub fn judged(&self, experiment: &Experiment) -> Result<Verdict, String> {
        if let Some(reason) = &experiment.refused {
            return Err(format!("withheld: {reason}"));
        }
        let value = measured(self.measure, experiment, self.path)?;
        let holds = |figure| self.bound.holds(figure);
        Ok(if holds(value.low) && holds(value.high) {
            Verdict::Met(value)
        } else if !holds(value.low) && !holds(value.high) {
            Verdict::Missed(value)
        } else if self.measure.is_narrow(value) {
            match holds(value.figure) {
                true => Verdict::Met(value),
                false => Verdict::Missed(value),
            }
        } else {
            let figures = self.measure.figures(experiment, self.path)?;
            let spread = Spread {
                median: value.figure,
                low: value.low,
                high: value.high,
                rounds: value.rounds,
            };
            Verdict::Undecided(value, sequential::why_wide(&figures, &spread))
        })
    }
}

/// Why an experiment's two directs differ; None: they do not, or there are not two.
pub fn again_differs(experiment: &Experiment) -> Option<String> {
    let differs = |measure: Measure, same: f64| {
        let value = measured(measure, experiment, AGAIN).ok()?;
        let is_same = value.low <= same && same <= value.high;
        (!is_same).then(|| {
            let [figure, low, high] =
                [value.figure, value.low, value.high].map(|v| measure.text(v));
            format!("two directs differ: {figure} ({low} … {high})")
        })
    };
    differs(Measure::Ratio(Metric::OpS), 1.0).or_else(|| differs(Measure::Added(Metric::P50), 0.0))
}

/// A path's figure in an experiment.
///
/// # Errors
/// There is none, for this reason.
pub(super) fn measured(
    measure: Measure,
    experiment: &Experiment,
    path: &str,
) -> Result<Value, String> {
    for name in [path, DIRECT] {
        let errors = experiment.series(name).map_or(0, Series::errors);
        if errors > 0 {
            let errors = number::grouped(errors as f64);
            return Err(format!("{name} had errors: {errors}"));
        }
    }
    let figures = measure.figures(experiment, path)?;
    let rounds = figures.len();
    if let Measure::RssMib | Measure::HandOver = measure {
        // A maximum has no interval: one round above the bound is above it.
        let figure = figures.iter().copied().fold(f64::NAN, f64::max);
        return Ok(Value {
            figure,
            low: figure,
            high: figure,
            rounds: experiment.series(path).map_or(0, |s| s.rounds.len()),
        });
    }
    let least = sequential::LEAST_ROUNDS;
    let spread = sequential::interval(&figures);
    let spread = spread.ok_or_else(|| format!("rounds: {rounds}, of the {least} it takes"))?;
    Ok(Value {
        figure: spread.median,
        low: spread.low,
        high: spread.high,
        rounds: spread.rounds,
    })
}

impl Measure {
    /// A figure of each round; of what only all rounds together have, one.
    fn figures(self, experiment: &Experiment, path: &str) -> Result<Vec<f64>, String> {
        let series = |name: &str| {
            experiment.series(name).ok_or_else(|| {
                let reason = experiment.left_out.get(name);
                reason.map_or_else(|| format!("no figure of {name}"), Clone::clone)
            })
        };
        let (ours, direct) = (series(path)?, series(DIRECT)?);
        let ratios = |other: &Series, metric| {
            let pairs = paired(ours, other, metric).into_iter();
            let pairs = pairs.filter(|(_, other)| *other > 0.0);
            pairs.map(|(ours, other)| ours / other).collect()
        };
        Ok(match self {
            Self::Ratio(metric) => ratios(direct, metric),
            Self::Against(other, metric) => ratios(series(other)?, metric),
            Self::Added(metric) => {
                let pairs = paired(ours, direct, metric).into_iter();
                pairs.map(|(ours, direct)| ours - direct).collect()
            }
            Self::Share(other, metric) => {
                let added = |series| {
                    let pairs = paired(series, direct, metric).into_iter();
                    pairs.map(|(path, direct)| path - direct)
                };
                let both = added(ours).zip(added(series(other)?));
                // Over the rounds in which the other adds anything.
                let both = both.filter(|(_, other)| *other > 0.0);
                both.map(|(ours, other)| ours / other).collect()
            }
            Self::OfOneCpu => {
                let of_one = |seconds: f64, us: f64| us / (seconds * 1e4);
                let rounds = ours.rounds.iter();
                rounds
                    .map(|r| of_one(r.seconds, r.proxy.user_us + r.proxy.system_us))
                    .collect()
            }
            Self::HandOver => {
                let all = ours.hand_overs.as_ref();
                let us = all.and_then(|all| all.quantile_us(0.99));
                vec![us.ok_or("no flow was handed over")?]
            }
            Self::RssMib => {
                let kib = ours.peak(Metric::RssPeak).ok_or("no figure")?;
                vec![kib / 1024.0]
            }
        })
    }

    /// Whether a value's interval is so narrow that its median decides.
    fn is_narrow(self, value: Value) -> bool {
        let half = (value.high - value.low) / 2.0;
        match self {
            Self::Added(_) => half <= NARROW_US,
            _ => half <= NARROW_RATIO * value.figure.abs(),
        }
    }
}

impl Value {
    /// Whether it has no interval.
    pub fn is_exact(&self) -> bool {
        self.low == self.high
    }
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }
}
