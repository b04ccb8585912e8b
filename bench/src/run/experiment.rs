//! An experiment: a workload's variant over every way, in interleaved rounds.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, bail, ensure};
use load::{
    latencies::Latencies,
    order::Seed,
    workload::{Database, Variant, Workload},
};
use report::{
    bars,
    schema::{Experiment, Profile, Published, Series},
    sequential,
};

use super::{
    cores::Cores,
    headroom, profile,
    progress::Progress,
    round::{Timing, play},
    shuffle::Shuffle,
    stage::{Lane, Lines, Stage},
};
use crate::{
    databases::Databases,
    interrupt,
    paths::{AGAIN, DIRECT},
    ways::{Cgroups, Ways},
};

/// The seconds of a round, and of its one turn, where bars are decided on a schedule: most of such a round is the opening of
/// thousands of connections, and of what an idle flow costs little is seen in half a second.
const SCHEDULE_SECONDS: f64 = 3.0;

/// The beginning of the reason why a path has no figures because it failed.
pub const FAILED: &str = "failed: ";

/// The number of the first generator whose work is profiled: beyond those of any round.
const PROFILED: u64 = 1_000;

/// The way in which experiments are done in this run.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Rounds that count; with bars to decide, the most.
    pub rounds: u32,
    /// Whether rounds end where the experiment's bars are decided.
    pub decides: bool,
    /// The lengths of rounds and turns.
    pub timing: Timing,
    /// The seconds of each path before the first round that counts.
    pub warm_up_seconds: f64,
    /// The seed of the order and of the keys.
    pub seed: u64,
    /// The moment after which no further round begins, and the run ends.
    pub until: Option<Instant>,
}

impl How {
    /// Fails where there is no time left.
    pub fn check_time(&self) -> anyhow::Result<()> {
        let is_over = self.until.is_some_and(|until| Instant::now() >= until);
        ensure!(
            !is_over,
            "out of time: the same command goes on behind the experiments that are measured"
        );
        Ok(())
    }

    /// The way for this experiment.
    pub fn under(mut self, variant: &Variant) -> Self {
        if self.decides && variant.database == Database::Cassandra {
            self.timing.seconds *= sequential::CASSANDRA_FACTOR;
            self.timing.turn_seconds *= sequential::CASSANDRA_FACTOR;
        }
        if self.decides && variant.job.rate.is_some() {
            self.timing.seconds = self.timing.seconds.max(SCHEDULE_SECONDS);
            self.timing.turn_seconds = self.timing.seconds;
        }
        self
    }
}

/// The set-up of an experiment.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// The databases.
    pub databases: &'a Databases,
    /// The compared ways.
    pub ways: &'a Ways,
    /// The way in which it is done.
    pub how: How,
    /// The cores of the proxies.
    pub cores: Cores,
    /// The folder for flame graphs; None: no profile is taken.
    pub flames: Option<&'a PathBuf>,
}

/// An experiment, as far as it came.
pub struct Outcome {
    /// The measured experiment; at least its description.
    pub experiment: Experiment,
    /// The profiles, which are taken after the rounds.
    pub profiles: Vec<Profile>,
    /// The reason why the experiment did not come to its end: a signal, or a failure of `direct`.
    pub stopped: Option<anyhow::Error>,
}

/// Prepares the databases, measures, and takes its tables away.
pub fn run(
    workload: &Workload,
    variant: &Variant,
    setting: Setting<'_>,
    progress: &mut Progress,
) -> Outcome {
    let databases = setting.databases;
    let mut outcome = Outcome {
        experiment: describe(workload, variant, setting.cores),
        profiles: Vec::new(),
        stopped: None,
    };
    let credentials = databases.credentials.as_ref();
    let prepared = databases
        .near(|| load::prepare(&variant.job, &databases.addresses, credentials))
        .context("cannot prepare the database");
    let measured = prepared.and_then(|()| measure(variant, setting, progress, &mut outcome));
    let cleared = databases
        .near(|| load::clear(&variant.job, &databases.addresses, credentials))
        .context("cannot take the tables away");
    outcome.experiment.refused = headroom::judge(&outcome.experiment, usable_cores())
        .or_else(|| bars::again_differs(&outcome.experiment));
    outcome.stopped = measured.and(cleared).err();
    outcome
}

fn measure(
    variant: &Variant,
    setting: Setting<'_>,
    progress: &mut Progress,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let Setting {
        databases,
        ways,
        how,
        cores,
        flames,
    } = setting;
    let experiment = &mut outcome.experiment;
    experiment.headroom = headroom::measure(variant, how.seed).context("headroom")?;
    let cgroups = Cgroups::new(databases.home.as_ref())?;
    let lines = Lines::new(variant, databases, ways)?;
    let mut stage = Stage::set(variant, databases, ways, &cgroups, &lines, cores)?;
    let mut all: Vec<(Series, Latencies)> = Vec::new();
    for lane in &stage.lanes {
        let series = Series {
            path: lane.path.into(),
            ..Series::default()
        };
        all.push((series, Latencies::new()?));
    }
    // Rounds that are cut off by a signal are lost; those before them are kept.
    let played = rounds(
        &mut stage, variant, experiment, databases, how, progress, &mut all,
    );
    let verified = match played {
        Ok(()) => stage.verify(),
        Err(_) => Ok(()),
    };
    experiment.left_out.append(&mut stage.left_out);
    for (lane, (mut series, latencies)) in stage.lanes.iter().zip(all) {
        if let Some(why) = &lane.failed {
            experiment
                .left_out
                .insert(lane.path.into(), format!("{FAILED}{why}"));
        } else {
            series.histogram = latencies.into();
            series.hand_overs = lane.hand_overs.clone();
            series.shared = lane.shared.clone();
            experiment.series.push(series);
        }
    }
    let profiled = match (&played, flames) {
        (Ok(()), Some(flames)) => profiles(&mut stage, variant, databases, flames),
        _ => Ok(Vec::new()),
    };
    let struck = stage.strike();
    played?;
    verified?;
    outcome.profiles = profiled?;
    struck
}

/// Profiles every way, one after the other.
fn profiles(
    stage: &mut Stage<'_>,
    variant: &Variant,
    databases: &Databases,
    flames: &Path,
) -> anyhow::Result<Vec<Profile>> {
    let mut profiles = Vec::new();
    for lane in stage.lanes.iter_mut().filter(|lane| lane.failed.is_none()) {
        interrupt::check()?;
        let seed = Seed {
            value: 0,
            number: PROFILED,
        };
        lane.connect(variant, databases.credentials.as_ref(), seed)?;
        profiles.push(profile::take(lane, &variant.id, &databases.pids, flames)?);
        lane.generator = None;
    }
    Ok(profiles)
}

fn rounds(
    stage: &mut Stage<'_>,
    variant: &Variant,
    experiment: &Experiment,
    databases: &Databases,
    how: How,
    progress: &mut Progress,
    all: &mut [(Series, Latencies)],
) -> anyhow::Result<()> {
    let mut shuffle = Shuffle::new(how.seed);
    let credentials = databases.credentials.as_ref();
    for number in 0..=how.rounds {
        let began = Instant::now();
        how.check_time()?;
        // Round 0 warms up, and does not count.
        let timing = Timing {
            seconds: if number == 0 {
                how.warm_up_seconds
            } else {
                how.timing.seconds
            },
            ..how.timing
        };
        let lanes = stage.lanes.len() as u64;
        for at in shuffle.order(stage.lanes.len()) {
            interrupt::check()?;
            let seed = Seed {
                value: how.seed + u64::from(number),
                // 0 filled the tables.
                number: 1 + u64::from(number) * lanes + at as u64,
            };
            if let Some(lane) = stage.lanes.get_mut(at).filter(|lane| lane.works()) {
                let connected = lane.connect(variant, credentials, seed);
                if let Err(error) = connected {
                    interrupt::check()?;
                    lane.fail(&error);
                }
            }
        }
        let done = play(&mut stage.lanes, &databases.pids, timing, &mut shuffle)?;
        let direct = stage.lanes.first().and_then(|lane| lane.failed.clone());
        if let Some(why) = direct {
            bail!("{DIRECT}: {why}");
        }
        if number == 0 {
            continue;
        }
        progress.round(number, how.rounds, &stage.lanes, &done, began.elapsed());
        for ((series, latencies), done) in all.iter_mut().zip(done) {
            if let Some(done) = done {
                latencies.add(&done.answer.latencies)?;
                series.rounds.push(done.round);
            }
        }
        if how.decides && sequential::is_look(number as usize) {
            let series = all.iter().map(|(series, _)| series.clone()).collect();
            let so_far = Experiment {
                series,
                ..experiment.clone()
            };
            if !rest(&mut stage.lanes, &so_far) {
                break;
            }
        }
    }
    Ok(())
}

/// Has the lanes rest whose bars are decided. Returns whether there is a bar that is not, or a noise floor that is not known well
/// enough. A lane that rests does so for good:
/// its next round would be held against another one of direct's. A bar of such a lane was decided before.
fn rest(lanes: &mut [Lane<'_>], so_far: &Experiment) -> bool {
    let has_lane = |path: &str| lanes.iter().any(|lane| lane.path == path && lane.works());
    let undecided: BTreeSet<&str> = bars::of(&so_far.id)
        .filter(|bar| bar.paths().all(has_lane) && !bars::is_done(bar, so_far))
        .flat_map(bars::Bar::paths)
        .collect();
    for lane in lanes {
        lane.rests |= ![DIRECT, AGAIN].contains(&lane.path) && !undecided.contains(lane.path);
    }
    !undecided.is_empty() || !bars::is_floor_resolved(so_far)
}

/// Returns the number of cores that clients may use; 1 where it cannot be found out, which refuses more.
fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The experiment before it is measured.
pub fn describe(workload: &Workload, variant: &Variant, cores: Cores) -> Experiment {
    let job = &variant.job;
    let of_variant = |published: &&Published| {
        let name = published.variant.as_deref();
        name.is_none_or(|name| variant.id == format!("{}-{name}", workload.name))
    };
    Experiment {
        id: variant.id.clone(),
        workload: workload.name.clone(),
        title: workload.title.clone(),
        origin: workload.origin.clone(),
        published: workload
            .published
            .iter()
            .filter(of_variant)
            .cloned()
            .collect(),
        database: name(variant.database),
        nodes: variant.nodes,
        client: name(job.client),
        threads: job.threads,
        connections: job.connections,
        depth: job.depth,
        rate: job.rate,
        is_proxy_apart: cores != Cores::Shared,
        headroom: None,
        refused: None,
        series: Vec::new(),
        left_out: Default::default(),
    }
}

/// The name of a kind of database or client in result files.
pub fn name(kind: impl std::fmt::Debug) -> String {
    format!("{kind:?}").to_lowercase()
}
