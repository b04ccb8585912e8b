//! The experiment in which every path does the same work: what latencies and costs are compared
//! by.
//!
//! It is chosen by what happened, not by its name: at a rate that one path cannot keep, that
//! path's latencies are a queue's; far below it, idle CPUs falling asleep are measured. So it is
//! the highest rate that all of them keep.

use std::collections::BTreeSet;

use crate::schema::{Experiment, Run};

/// The workload that compares paths doing the same work in the same time.
pub const WORKLOAD: &str = "const-rate";

/// The experiment by which the summary compares paths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// The experiment's rate, in op/s.
    pub rate: f64,
    /// All paths kept up, in every round and without errors. False: at no rate did they, and
    /// this is the lowest.
    pub is_kept: bool,
}

impl Choice<'_> {
    /// Why this one.
    pub fn reason(&self) -> &'static str {
        match self.is_kept {
            true => "the highest rate at which every path kept up in every round, without errors",
            false => "the lowest rate, for at none every path kept up without errors",
        }
    }
}

/// The choice among the experiments of [`WORKLOAD`]; where there is none, among all that have a rate.
pub fn choose(run: &Run) -> Option<Choice<'_>> {
    let with_rate = || {
        let all = run.usable();
        all.filter_map(|e| Some((e, e.rate.filter(|rate| rate.is_finite())?)))
    };
    let mut all: Vec<_> = with_rate()
        .filter(|(e, _)| e.workload == WORKLOAD)
        .collect();
    if all.is_empty() {
        all = with_rate().collect();
    }
    // Stable: of equal rates, the first is the lowest.
    all.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let compared: BTreeSet<&str> = all
        .iter()
        .flat_map(|(e, _)| &e.series)
        .map(|s| &*s.path)
        .collect();
    let kept = all.iter().filter(|(e, _)| is_kept(e, &compared));
    // Of equal rates, again the first.
    let highest = kept.reduce(|best, one| if one.1 > best.1 { one } else { best });
    let (experiment, rate) = *highest.or_else(|| all.first())?;
    Some(Choice {
        experiment,
        rate,
        is_kept: highest.is_some(),
    })
}

/// A path that is in other rates and not in this one did not keep up either.
fn is_kept(experiment: &Experiment, compared: &BTreeSet<&str>) -> bool {
    compared.iter().all(|path| {
        let series = experiment.series(path);
        series.is_some_and(|s| !s.rounds.is_empty() && experiment.flaw(s).is_none())
    })
}
