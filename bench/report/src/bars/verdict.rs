//! Whether a bar is met. "Met" and "missed" are claims: where the figures cannot carry one, the
//! verdict says so.

use super::{Bar, Bound, Measure, Where};
use crate::{
    metric::Metric,
    number,
    schema::{Experiment, Run, Series},
    stats::{MIN_ROUNDS, Spread},
    view::DIRECT,
};

/// The verdict on a bar.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The bar holds, with this value and all of its spread.
    Met(f64),
    /// The bar does not hold, with this value and all of its spread.
    Missed(f64),
    /// The bound is in the spread: more rounds could tell.
    WithinNoise(Value),
    /// Nobody knows, for this reason.
    NotMeasured(String),
}

/// A figure that is held against a bound, with its spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// The figure that the tables show.
    pub figure: f64,
    /// Where its spread begins.
    pub low: f64,
    /// Where its spread ends.
    pub high: f64,
}

impl Bar {
    /// Whether it holds in a run.
    pub fn verdict(&self, run: &Run) -> Verdict {
        match self.values(run) {
            Err(why) => Verdict::NotMeasured(why),
            Ok(values) => self.judged(&values),
        }
    }

    /// Whether the run has its path, and tried what it is about.
    pub fn is_part_of(&self, run: &Run) -> bool {
        let path = run
            .path(self.path)
            .is_some_and(|path| path.absent.is_none());
        let ids = run.experiments.iter().map(|e| &e.id);
        let mut tried = ids.chain(run.failed.keys());
        path && tried.any(|id| self.place.is(id))
    }

    /// Missed in one place is missed, and met is met in all.
    fn judged(&self, values: &[Value]) -> Verdict {
        let is_in = |v: &&Value| self.bound.holds(v.low) != self.bound.holds(v.high);
        let is_missed = |v: &&Value| !self.bound.holds(v.high) && !self.bound.holds(v.low);
        let worst = |values: &mut dyn Iterator<Item = &Value>| self.bound.worst(values).copied();
        if let Some(value) = worst(&mut values.iter().filter(is_missed)) {
            Verdict::Missed(value.figure)
        } else if let Some(value) = worst(&mut values.iter().filter(is_in)) {
            Verdict::WithinNoise(value)
        } else if let Some(value) = worst(&mut values.iter()) {
            Verdict::Met(value.figure)
        } else {
            Verdict::NotMeasured("not part of this run".into())
        }
    }

    /// One of each place; or why one of them has none.
    fn values(&self, run: &Run) -> Result<Vec<Value>, String> {
        let path = run.path(self.path).ok_or("not part of this run")?;
        if let Some(reason) = &path.absent {
            return Err(reason.clone());
        }
        let failed = run.failed.iter().find(|(id, _)| self.place.is(id));
        if let Some((id, reason)) = failed {
            return Err(self.place.told(id, &format!("failed: {reason}")));
        }
        let mut lacking = self.place.named().iter();
        if let Some(id) = lacking.find(|id| run.experiment(id).is_none()) {
            return Err(self.place.told(id, "not part of this run"));
        }
        let places = run.experiments.iter().filter(|e| self.place.is(&e.id));
        let told = |e: &Experiment, why: String| self.place.told(&e.id, &why);
        places
            .map(|e| self.value(e).map_err(|why| told(e, why)))
            .collect()
    }

    fn value(&self, experiment: &Experiment) -> Result<Value, String> {
        if let Some(reason) = &experiment.refused {
            return Err(format!("withheld: {reason}"));
        }
        let Some(series) = experiment.series(self.path) else {
            let reason = experiment.left_out.get(self.path);
            return Err(reason.map_or_else(|| "no figure".into(), Clone::clone));
        };
        for name in [self.path, DIRECT] {
            let errors = experiment.series(name).map_or(0, Series::errors);
            if errors > 0 {
                let errors = number::grouped(errors as f64);
                return Err(format!("{name} had errors: {errors}"));
            }
        }
        let (value, rounds) = self.measure.of(experiment, series).ok_or("no figure")?;
        match rounds < MIN_ROUNDS {
            true => Err(format!("rounds: {rounds}, of the {MIN_ROUNDS} it takes")),
            false => Ok(value),
        }
    }
}

impl Measure {
    /// And of how many rounds it is.
    fn of(self, experiment: &Experiment, series: &Series) -> Option<(Value, usize)> {
        let difference = match self {
            Self::Ratio(metric) => experiment.ratio(series, metric)?,
            Self::Added(metric) => experiment.added(series, metric)?,
            Self::Against(other, metric) => experiment.against(series, other, metric)?,
            Self::Share(other, metric) => experiment.share(series, other, metric)?,
            Self::HandOver => {
                let us = series.hand_overs.as_ref()?.quantile_us(0.99)?;
                return Some((Value::exact(us), series.rounds.len()));
            }
            Self::OfOneCpu => {
                let percents = series.rounds.iter().map(|round| {
                    (round.proxy.user_us + round.proxy.system_us) / (round.seconds * 1e4)
                });
                let spread = Spread::of(percents)?;
                let value = Value {
                    figure: spread.median,
                    low: spread.low,
                    high: spread.high,
                };
                return Some((value, spread.rounds));
            }
            Self::RssMib => {
                // A maximum has no spread: one round above the bound is above it.
                let mib = series.peak(Metric::RssPeak)? / 1024.0;
                let rounds = series.values(Metric::RssPeak).count();
                return Some((Value::exact(mib), rounds));
            }
        };
        let value = Value {
            figure: difference.median,
            low: difference.low,
            high: difference.high,
        };
        Some((value, difference.rounds))
    }
}

impl Value {
    fn exact(figure: f64) -> Self {
        Self {
            figure,
            low: figure,
            high: figure,
        }
    }
}

impl Where {
    fn is(self, id: &str) -> bool {
        match self {
            Self::Id(this) => this == id,
            Self::Begins(with, _) => id.starts_with(with),
        }
    }

    /// The experiments that must be there.
    fn named(&self) -> &[&'static str] {
        match self {
            Self::Id(id) => std::slice::from_ref(id),
            Self::Begins(_, ids) => ids,
        }
    }

    /// A reason, with the experiment that it is of where there are several.
    fn told(self, id: &str, reason: &str) -> String {
        match self {
            Self::Id(_) => reason.to_owned(),
            Self::Begins(..) => format!("{id}: {reason}"),
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

    fn worst<'a>(self, values: &mut dyn Iterator<Item = &'a Value>) -> Option<&'a Value> {
        let by_figure = |a: &&Value, b: &&Value| a.figure.total_cmp(&b.figure);
        match self {
            Self::AtLeast(_) => values.min_by(by_figure),
            Self::AtMost(_) => values.max_by(by_figure),
        }
    }
}
