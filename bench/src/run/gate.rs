//! `underpass-bench gate`: this build's agent against another one's, in interleaved rounds, before a change to the hot path
//! lands.
//!
//! Both agents run at the same time, each for a cgroup of its own; their generators work in turns. Each round starts them
//! anew: where a process lies in memory is luck, and would favour one of them in every round.

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use load::order::Seed;
use report::{
    gate::{Better, COMPARISONS, Found, LOOKS, Verdict, judge},
    metric::Metric,
    number,
    stats::Estimate,
};
use sandbox::Cgroup;

use super::{
    Planned, one,
    round::{Done, Timing, play},
    shuffle::Shuffle,
    stage::{Lane, rule, start},
    verify,
};
use crate::{
    databases::{Databases, Given},
    interrupt,
    paths::{OURS, Ours},
    server::binary,
};

/// The time of all comparisons together: what a person waits for before a change lands.
const MOST_TIME: Duration = Duration::from_secs(6 * 60);
/// A round of one agent, in two turns.
const TIMING: Timing = Timing {
    seconds: 0.5,
    turn_seconds: 0.25,
    settle_seconds: 0.2,
};
/// The names of the two agents' lanes.
const TREE: &str = "this build";
const BASE: &str = "base";

/// Options of `gate`.
#[derive(clap::Args)]
pub struct Args {
    /// The agent to compare with
    base: PathBuf,
    /// The seed of the order of turns, and of the keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A path under a load in which a change of it shows.
struct Comparison {
    path: &'static str,
    experiment: &'static str,
    metric: Metric,
}

/// All of them: bytes that pass each path, and what is paid for each connection.
const ALL: [Comparison; COMPARISONS] = [
    comparison("bypass", "connect", Metric::P50),
    comparison("tap", "node-raw-nonblocking-32", Metric::OpS),
    comparison("splice", "node-raw-nonblocking-32", Metric::OpS),
    comparison("enrich", "node-raw-nonblocking-32", Metric::OpS),
    comparison("enrich", "node-raw-nonblocking-1", Metric::P50),
];

const fn comparison(path: &'static str, experiment: &'static str, metric: Metric) -> Comparison {
    Comparison {
        path,
        experiment,
        metric,
    }
}

/// Runs the command; exits 1 when this build is slower.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let agents = [binary("underpass")?, args.base.clone()];
    let base = args.base.display();
    ensure!(args.base.is_file(), "{base} is not there");
    let deadline = Instant::now() + MOST_TIME;
    let mut is_slower = false;
    for (number, comparison) in ALL.iter().enumerate() {
        let path = OURS.into_iter().find(|path| path.name == comparison.path);
        let left = deadline.saturating_duration_since(Instant::now());
        let contest = Contest {
            path: path.context("no such path")?,
            planned: one(comparison.experiment)?,
            metric: comparison.metric,
            ends: Instant::now() + left / (ALL.len() - number) as u32,
        };
        let found = contest
            .held(&agents, args.seed)
            .with_context(|| format!("{} under {}", comparison.path, comparison.experiment))?;
        is_slower |= found.verdict == Verdict::Slower;
        println!("{}", line(comparison, &found));
    }
    Ok(ExitCode::from(u8::from(is_slower)))
}

fn line(comparison: &Comparison, found: &Found) -> String {
    let Estimate {
        figure,
        low,
        high,
        rounds,
    } = found.ratio;
    let [figure, low, high] = [figure, low, high].map(number::ratio);
    format!(
        "{path} under {experiment}: {metric} {figure} × the base's ({low} … {high}, {rounds} rounds): {verdict}",
        path = comparison.path,
        experiment = comparison.experiment,
        metric = comparison.metric.name(),
        verdict = found.verdict,
    )
}

/// One comparison, while it is measured.
struct Contest {
    path: &'static Ours,
    planned: Planned,
    metric: Metric,
    ends: Instant,
}

impl Contest {
    /// Plays rounds until a look decides, or the next look would come too late.
    fn held(&self, agents: &[PathBuf; 2], seed: u64) -> anyhow::Result<Found> {
        let variant = &self.planned.variant;
        let databases = Databases::of(variant, &Given::default())?;
        load::prepare(&variant.job, &databases.addresses, None)?;
        let cgroups = [Cgroup::new()?, Cgroup::new()?];
        let mut shuffle = Shuffle::new(seed);
        let mut ratios = Vec::new();
        let began = Instant::now();
        let better = match self.metric {
            Metric::OpS => Better::More,
            _ => Better::Less,
        };
        loop {
            let ratio = self.round(agents, &cgroups, &databases, &mut shuffle, seed)?;
            eprintln!(
                "  round {} of {}: {}",
                ratios.len() + 1,
                self.path.name,
                number::or_none(ratio, number::ratio)
            );
            ratios.extend(ratio);
            let found = judge(&ratios, better).filter(|_| LOOKS.contains(&ratios.len()));
            let next = LOOKS.iter().find(|look| **look > ratios.len());
            let Some(next) = next else {
                return judge(&ratios, better).context("no round has a figure");
            };
            let each = began.elapsed().as_secs_f64() / ratios.len().max(1) as f64;
            let rest = Duration::from_secs_f64(each * (next - ratios.len()) as f64);
            let is_late = Instant::now() + rest > self.ends;
            match found {
                Some(found) if found.is_decided() || is_late => return Ok(found),
                None if Instant::now() > self.ends => {
                    return judge(&ratios, better).context(
                        "too few rounds came to their end in time: is the machine busy with something else?",
                    );
                }
                _ => {}
            }
        }
    }

    /// Plays a round with agents of its own. Returns this build's figure ÷ the base's; None: one has none.
    fn round(
        &self,
        programs: &[PathBuf; 2],
        cgroups: &[Cgroup; 2],
        databases: &Databases,
        shuffle: &mut Shuffle,
        seed: u64,
    ) -> anyhow::Result<Option<f64>> {
        interrupt::check()?;
        let mut agents = Vec::new();
        let mut lanes = Vec::new();
        for ((program, cgroup), name) in programs.iter().zip(cgroups).zip([TREE, BASE]) {
            let policy = rule(self.path, cgroup, databases);
            let agent = start(program, self.path.agent, cgroup, &policy);
            let agent = agent.with_context(|| format!("the agent of {name}"))?;
            let mut lane = Lane::within(name, &databases.addresses, Some(cgroup));
            lane.proxy_pids = vec![agent.pid()];
            agents.push(agent);
            lanes.push(lane);
        }
        for at in shuffle.order(lanes.len()) {
            let seed = Seed {
                value: seed,
                // 0 filled the tables.
                number: 1 + at as u64,
            };
            if let Some(lane) = lanes.get_mut(at) {
                lane.connect(&self.planned.variant, None, seed)?;
            }
        }
        let done = play(&mut lanes, &databases.pids, TIMING, shuffle)?;
        for (lane, agent) in lanes.iter().zip(&agents) {
            let metrics = agent.metrics()?;
            let failed = lane.failed.clone();
            if let Some(why) = failed.or_else(|| verify::taken(self.path, 0, &metrics)) {
                anyhow::bail!("{}: {why}", lane.path);
            }
        }
        for agent in &mut agents {
            agent.stop()?;
        }
        let of = |done: &Option<Done>| self.metric.of(&done.as_ref()?.round);
        let [Some(tree), Some(base)] = [0, 1].map(|at| done.get(at).and_then(of)) else {
            return Ok(None);
        };
        Ok((base > 0.0).then(|| tree / base))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_are_of_paths_and_experiments_that_there_are() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        std::env::set_current_dir(root).expect("the project's root is there");
        for comparison in &ALL {
            let path = OURS.iter().find(|path| path.name == comparison.path);
            let path = path.unwrap_or_else(|| panic!("{}: no such path", comparison.path));
            let found = one(comparison.experiment).expect("an experiment");
            assert_eq!((path.carries)(&found.variant.job), Ok(()), "{}", path.name);
        }
    }
}
