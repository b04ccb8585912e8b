//! Whether a bar is met. "Met" and "missed" are claims: where the figures cannot carry one, the
//! verdict says so, and why.

use super::{Bar, Bound, Measure};
use crate::{
    metric::Metric,
    number,
    schema::{Experiment, Run, Series},
    sequential::{self, NARROW_RATIO, NARROW_US},
    stats::{AGAIN_CHANCE, Estimate},
    view::{AGAIN, DIRECT, Pairs, paired},
};

/// The verdict on a bar.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The bar holds: with all of the interval, or with the median of one that is narrow.
    Met(Estimate),
    /// The bar does not hold, likewise.
    Missed(Estimate),
    /// The bound is in a wide interval, which has this reason.
    Undecided(Estimate, &'static str),
    /// Nobody knows, for this reason.
    NotMeasured(String),
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
            Verdict::Undecided(value, sequential::why_wide(&figures, &value))
        })
    }
}

/// Why an experiment's two directs differ; None: they do not, or there are not two.
pub fn again_differs(experiment: &Experiment) -> Option<String> {
    let differs = |measure: Measure, same: f64| {
        let value = again(measure, experiment)?;
        let is_same = value.low <= same && same <= value.high;
        (!is_same).then(|| {
            let [figure, low, high] =
                [value.figure, value.low, value.high].map(|v| measure.text(v));
            format!("two directs differ: {figure} ({low} … {high})")
        })
    };
    differs(Measure::Ratio(Metric::OpS), 1.0).or_else(|| differs(Measure::Added(Metric::P50), 0.0))
}

/// How the second direct differs from the first; None: there is no figure.
pub(super) fn again(measure: Measure, experiment: &Experiment) -> Option<Estimate> {
    let figures = measure.figures(experiment, AGAIN).ok()?;
    measure.estimate(&figures, AGAIN_CHANCE)
}

/// A path's figure in an experiment.
///
/// # Errors
/// There is none, for this reason.
fn measured(measure: Measure, experiment: &Experiment, path: &str) -> Result<Estimate, String> {
    for name in [path, DIRECT, AGAIN] {
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
        return Ok(Estimate {
            figure,
            low: figure,
            high: figure,
            rounds: experiment.series(path).map_or(0, |s| s.rounds.len()),
        });
    }
    let least = sequential::LEAST_ROUNDS;
    let estimate = measure.estimate(&figures, sequential::chance(rounds));
    estimate.ok_or_else(|| format!("rounds: {rounds}, of the {least} it takes"))
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
        let ours = series(path)?;
        let no_direct = || format!("no figure of {DIRECT}");
        let ratios = |pairs: Pairs| {
            let pairs = pairs.into_iter().filter(|(_, other)| *other > 0.0);
            pairs.map(|(ours, other)| ours / other).collect()
        };
        let added = |series, metric| {
            let pairs = experiment.by_sums(series, metric);
            let pairs = pairs.ok_or_else(no_direct)?.into_iter();
            Ok::<_, String>(pairs.map(|(path, direct)| path - direct))
        };
        Ok(match self {
            Self::Ratio(metric) => {
                ratios(experiment.by_ratios(ours, metric).ok_or_else(no_direct)?)
            }
            Self::Against(other, metric) => ratios(paired(ours, series(other)?, metric)),
            Self::Added(metric) => added(ours, metric)?.collect(),
            Self::Share(other, metric) => {
                let both = added(ours, metric)?.zip(added(series(other)?, metric)?);
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

    /// The estimate of its figures. None: they are fewer than [`sequential::LEAST_ROUNDS`].
    fn estimate(self, figures: &[f64], chance: f64) -> Option<Estimate> {
        let values = figures.iter().copied();
        let estimate = match self {
            Self::Ratio(_) | Self::Against(..) | Self::Share(..) => {
                Estimate::of_ratios(values, chance)
            }
            _ => Estimate::of(values, chance),
        };
        estimate.filter(|estimate| estimate.rounds >= sequential::LEAST_ROUNDS)
    }

    /// Whether a value's interval is so narrow that its median decides.
    fn is_narrow(self, value: Estimate) -> bool {
        let half = (value.high - value.low) / 2.0;
        match self {
            Self::Added(_) => half <= NARROW_US,
            _ => half <= NARROW_RATIO * value.figure.abs(),
        }
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
