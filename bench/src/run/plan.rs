//! The choice of experiments, and the time that a run takes.

use std::time::Duration;

use anyhow::ensure;
use load::workload::{Variant, Workload};

use super::{
    cores::Cores,
    experiment::{How, name},
};
use crate::paths;

/// The seconds for starting and stopping an experiment's set-up, and for its headroom.
const AROUND: f64 = 6.0;
/// Connecting a generator.
const CONNECT: f64 = 0.1;

/// An experiment to do.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The experiment's workload.
    pub workload: Workload,
    /// The experiment's variant.
    pub variant: Variant,
    /// The cores of the proxies.
    pub cores: Cores,
}

/// Chooses the experiments: `only` are ids of experiments or names of workloads, empty for all.
///
/// # Errors
/// One of them does not exist, or compares a path that does not.
pub fn choose(
    workloads: &[Workload],
    only: &[String],
    quick: bool,
) -> anyhow::Result<Vec<Planned>> {
    let mut all: Vec<Planned> = workloads.iter().flat_map(planned).collect();
    let paths = paths::every();
    for Planned { variant, .. } in &all {
        for name in &variant.paths {
            ensure!(
                paths.iter().any(|path| path.name == *name),
                "{}: no path is called {name}",
                variant.id
            );
        }
    }
    for name in only {
        let ids: Vec<&str> = all.iter().map(|p| &*p.variant.id).collect();
        ensure!(
            all.iter().any(|planned| planned.is(name)),
            "no workload or experiment is called {name}; there are: {}",
            ids.join(", ")
        );
    }
    all.retain(|planned| match only {
        [] => planned.variant.quick || !quick,
        only => only.iter().any(|name| planned.is(name)),
    });
    Ok(all)
}

/// A workload's experiments.
pub fn planned(workload: &Workload) -> Vec<Planned> {
    let planned = |variant: &Variant| Planned {
        workload: workload.clone(),
        variant: variant.clone(),
        cores: Cores::Shared,
    };
    workload.variants.iter().map(planned).collect()
}

impl Planned {
    fn is(&self, name: &str) -> bool {
        self.variant.id == name || self.workload.name == name
    }

    /// About how long it takes with so many ways.
    pub fn estimate(&self, how: How, ways: usize) -> Duration {
        let rounds = f64::from(how.rounds);
        let each = how.timing.settle_seconds + CONNECT;
        let worked = how.warm_up_seconds + each + rounds * (how.timing.seconds + each);
        Duration::from_secs_f64(AROUND + worked * ways as f64)
    }

    /// Describes the experiment in a few words.
    pub fn about(&self) -> String {
        let job = &self.variant.job;
        let mode = match job.rate {
            Some(rate) => format!("{rate} op/s on a schedule"),
            None => "closed loop".into(),
        };
        let nodes = match self.variant.nodes {
            1 => String::new(),
            nodes => format!("{nodes} × "),
        };
        format!(
            "{nodes}{}, {}, {} threads, {} connections, depth {}, {mode}",
            name(self.variant.database),
            name(job.client),
            job.threads,
            job.connections,
            job.depth,
        )
    }
}
