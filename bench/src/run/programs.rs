//! The cost of a run of each BPF program, while connections are made, and messages sent, over each
//! of our paths. It is measured after the rounds, because counting costs something itself.

use anyhow::Context;
use load::{order::Seed, workload::Variant};
use micro::programs::{Counter, ProgramCost};
use report::schema::Program;

use super::{
    cores::Cores,
    stage::{Lines, Stage},
};
use crate::{
    databases::{Databases, Given},
    paths::OURS,
    ways::{Cgroups, Ways},
};

/// The experiments in which connections are made and closed, and in which messages travel over
/// them.
const EXPERIMENTS: [&str; 2] = ["connect", "node-raw-nonblocking-32"];

/// Whether programs are counted under an experiment.
pub fn is_counted(experiment: &str) -> bool {
    EXPERIMENTS.contains(&experiment)
}

/// The seconds of each path.
const SECONDS: f64 = 1.0;

/// Measures the programs under this load. Programs that did not run are left out.
///
/// # Errors
/// The agent does not start, or the kernel does not count.
pub fn measure(variant: &Variant, ways: &Ways) -> anyhow::Result<Vec<Program>> {
    let databases = Databases::of(variant, &Given::default())?;
    load::prepare(&variant.job, &databases.addresses, None)?;
    let cgroups = Cgroups::new(databases.home.as_ref())?;
    let lines = Lines::new(variant, &databases, ways)?;
    let mut stage = Stage::set(variant, &databases, ways, &cgroups, &lines, Cores::Shared)?;
    let ours = |path: &str| OURS.iter().any(|ours| ours.name == path);
    let agent = stage.lanes.iter().find(|lane| ours(lane.path));
    let Some(pid) = agent.and_then(|lane| lane.proxy_pids.first().copied()) else {
        return Ok(Vec::new());
    };
    let counter = Counter::start(pid).context("the kernel's statistics of BPF programs")?;
    for lane in stage.lanes.iter_mut().filter(|lane| ours(lane.path)) {
        lane.connect(
            variant,
            None,
            Seed {
                value: 0,
                number: 0,
            },
        )?;
        if let Some(generator) = &mut lane.generator {
            generator.work(SECONDS)?;
        }
    }
    let costs = counter.finish()?;
    stage.strike()?;
    let ran = costs.into_iter().filter(|cost| cost.runs > 0);
    Ok(ran.map(|cost| program(cost, &variant.id)).collect())
}

fn program(cost: ProgramCost, experiment: &str) -> Program {
    Program {
        name: cost.name,
        kind: cost.kind,
        experiment: experiment.into(),
        runs: cost.runs,
        mean_ns: cost.mean_ns,
        jited_bytes: cost.jited_bytes,
        verified_instructions: cost.verified_instructions,
    }
}
