//! `underpass-bench run`: workloads over every way to the databases, into one file.
//!
//! `plan` (the experiments to do) → `experiment` (one of them) → `stage` (what runs meanwhile) →
//! `round` (turns) → `generator`. `host` describes the host.

mod awake;
pub mod bars;
mod check;
mod cores;
pub mod experiment;
pub mod gate;
mod generator;
mod hand_overs;
pub mod headline;
mod headroom;
mod host;
mod lines;
pub mod others;
mod plan;
mod profile;
mod programs;
mod progress;
mod round;
mod shuffle;
mod stage;
mod verify;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::ensure;
use report::schema::{Run, RunSettings, SCHEMA};

pub use generator::SUBCOMMAND;
pub use plan::planned;

use crate::{
    databases::{Databases, Given},
    interrupt,
    paths::AGAIN,
    ways::Ways,
};
use awake::Awake;
use experiment::{How, Setting};
use plan::Planned;
use progress::Progress;
use round::Timing;

/// The folder of workload files, from the project's root.
pub const WORKLOADS: &str = "bench/workloads";

/// The seconds of a path's turn: few, because a shared machine changes its speed from second to
/// second.
const TURN_SECONDS: f64 = 0.5;
/// The seconds of a new generator's first requests.
const SETTLE_SECONDS: f64 = 0.2;
/// The seconds of each path's warm-up. A JVM compiles what it runs often.
const WARM_UP_SECONDS: f64 = 1.0;
/// The seconds of both in a quick run, which compares nothing that they would make fair.
const QUICK_WARM_UP_SECONDS: f64 = 0.05;
/// The factor of the first experiment's warm-up on a Cassandra: it may just have been started.
const COLD_FACTOR: f64 = 5.0;

/// Options of `run`.
#[derive(clap::Args)]
pub struct Args {
    /// Experiments or workloads; none: all (`list` shows them)
    only: Vec<String>,
    #[command(flatten)]
    given: Given,
    /// Few experiments, short rounds: to see that it works; exits 1 when a figure is absurd
    #[arg(long)]
    quick: bool,
    /// The result file [default: bench/results/full.json.gz, or target/bench/part.json if less than
    /// everything is measured]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The paths to compare with `direct`; none: all
    #[arg(long = "path", value_name = "NAME")]
    paths: Vec<String>,
    /// A peer's binary: its path, or another name on PATH
    #[arg(long = "peer-bin", value_name = "NAME=PATH")]
    peer_bins: Vec<String>,
    /// Interleaved rounds [default: 5, with --quick 2]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// The seconds that each path works in a round [default: 1, with --quick 0.25]
    #[arg(long, value_parser = crate::seconds)]
    seconds: Option<f64>,
    /// The seed of the order of turns, and of the keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also profile the whole system under this experiment, over each path; may be repeated
    #[arg(long, value_name = "EXPERIMENT")]
    profile: Vec<String>,
    /// The folder for flame graphs [default: bench/results/flames, or target/bench/flames if less
    /// than everything is measured]
    #[arg(long, value_name = "FOLDER")]
    flames: Option<PathBuf>,
}

/// Runs the command. Measured results are kept, whatever happens afterwards.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let workloads = load::workload::read(Path::new(WORKLOADS))?;
    let planned = plan::choose(&workloads, &args.only, args.quick)?;
    let mut ways = Ways::find(&args.paths, &peers::Overrides::parse(&args.peer_bins)?)?;
    if args.quick {
        ways.leave_out(AGAIN, "a quick run compares nothing");
    }
    for id in &args.profile {
        let is_planned = planned.iter().any(|planned| planned.variant.id == *id);
        ensure!(
            is_planned,
            "--profile {id}: no such experiment is part of this run"
        );
    }
    if !args.profile.is_empty() {
        profile::can_be_taken()?;
    }
    let how = how(args);
    let results = begin(args, how, &ways)?;
    let results = carry_out(args, &planned, &ways, how, results)?;
    let wrong = match args.quick {
        true => check::loose(&results),
        false => check::missing(&results),
    };
    for what in &wrong {
        eprintln!("wrong: {what}");
    }
    Ok(ExitCode::from(u8::from(!wrong.is_empty())))
}

/// Does the experiments that the results do not have yet. What was measured is written, whatever happens.
fn carry_out(
    args: &Args,
    planned: &[Planned],
    ways: &Ways,
    how: How,
    mut results: Run,
) -> anyhow::Result<Run> {
    let out = out(args);
    // The committed file is replaced by a whole run, or not at all.
    let unfinished = unfinished(&out);
    if let Some(folder) = out.parent() {
        fs::create_dir_all(folder)?;
    }
    let awake = Awake::ask();
    let circumstances = &mut results.machine.circumstances;
    circumstances.insert("idle cores".into(), awake.described());
    let (began, before) = (Instant::now(), results.seconds);
    let measured = all(args, planned, ways, how, &unfinished, &mut results);
    results.seconds = before + began.elapsed().as_secs_f64();
    results.complete = measured.is_ok();
    drop(awake);
    if !results.experiments.is_empty() {
        let kept = match results.complete {
            true => &out,
            false => &unfinished,
        };
        report::write(&results, kept)?;
        if results.complete {
            let _ = fs::remove_file(&unfinished);
        }
        eprintln!("written: {} ({:.0} s)", kept.display(), results.seconds);
    }
    measured?;
    Ok(results)
}

/// The file of a run that has not come to its end.
fn unfinished(out: &Path) -> PathBuf {
    out.with_extension("unfinished.json")
}

/// Every experiment. One that fails is noted; a signal ends them all.
fn all(
    args: &Args,
    planned: &[Planned],
    ways: &Ways,
    how: How,
    out: &Path,
    results: &mut Run,
) -> anyhow::Result<()> {
    let estimate = |planned: &Planned| {
        let compared = planned.variant.paths.len();
        // With the two directs; a variant that names no path compares all.
        let compared = if compared == 0 {
            ways.count()
        } else {
            compared + 2
        };
        planned.estimate(how, compared)
    };
    let estimates: Vec<Duration> = planned.iter().map(estimate).collect();
    let mut progress = Progress::new(&estimates);
    let mut is_cold = true;
    let flames = flames(args);
    for (planned, estimate) in planned.iter().zip(estimates) {
        interrupt::check()?;
        let (workload, variant) = (&planned.workload, &planned.variant);
        if results.experiment(&variant.id).is_some() {
            continue;
        }
        // Of a run that goes on it may have failed before.
        results.failed.remove(&variant.id);
        progress.experiment(&variant.id, &planned.about(), estimate);
        let _others = planned.cores.take_others()?;
        let databases = match Databases::start(
            variant.database,
            variant.nodes,
            variant.topology,
            &args.given,
        ) {
            Ok(databases) => databases,
            Err(error) => {
                fail(results, &variant.id, &error);
                continue;
            }
        };
        results.versions.extend(databases.version.clone());
        let mut how = how;
        if is_cold && variant.database == load::workload::Database::Cassandra && !args.quick {
            how.warm_up_seconds *= COLD_FACTOR;
            is_cold = false;
        }
        let is_profiled = args.profile.contains(&variant.id);
        let setting = Setting {
            databases: &databases,
            ways,
            how,
            cores: planned.cores,
            flames: is_profiled.then_some(&flames),
        };
        let outcome = experiment::run(workload, variant, setting, &mut progress);
        results.profiles.extend(outcome.profiles);
        if let Some(error) = outcome.stopped {
            if !how.decides {
                keep_begun(results, outcome.experiment);
            }
            interrupt::check()?;
            fail(results, &variant.id, &error);
            continue;
        }
        if let Some(why) = &outcome.experiment.refused {
            eprintln!("  refused: {why}");
        }
        results.experiments.push(outcome.experiment);
        // A run that is killed leaves what it has.
        report::write(results, out)?;
    }
    let variants = planned.iter().map(|planned| &planned.variant);
    for variant in variants.filter(|variant| programs::is_counted(&variant.id)) {
        match programs::measure(variant, ways) {
            Ok(programs) => results.programs.extend(programs),
            Err(error) => {
                interrupt::check()?;
                fail(results, "programs", &error);
            }
        }
    }
    Ok(())
}

/// An experiment that was cut off counts as far as every path has a round.
fn keep_begun(results: &mut Run, experiment: report::schema::Experiment) {
    let has_rounds = |series: &report::schema::Series| !series.rounds.is_empty();
    if !experiment.series.is_empty() && experiment.series.iter().all(has_rounds) {
        results.experiments.push(experiment);
    }
}

fn fail(results: &mut Run, id: &str, error: &anyhow::Error) {
    eprintln!("  failed: {error:#}");
    results.failed.insert(id.to_owned(), format!("{error:#}"));
}

/// A part does not write over what a full run found.
fn out(args: &Args) -> PathBuf {
    let default = match is_part(args) {
        true => "target/bench/part.json",
        false => "bench/results/full.json.gz",
    };
    args.out.clone().unwrap_or_else(|| default.into())
}

fn flames(args: &Args) -> PathBuf {
    let default = match is_part(args) || args.out.is_some() {
        true => "target/bench/flames",
        false => "bench/results/flames",
    };
    args.flames.clone().unwrap_or_else(|| default.into())
}

fn is_part(args: &Args) -> bool {
    args.quick || !args.only.is_empty() || !args.paths.is_empty()
}

fn how(args: &Args) -> How {
    let (rounds, seconds, settle_seconds, warm_up_seconds) = match args.quick {
        true => (2, 0.25, QUICK_WARM_UP_SECONDS, QUICK_WARM_UP_SECONDS),
        false => (5, 1.0, SETTLE_SECONDS, WARM_UP_SECONDS),
    };
    let seconds = args.seconds.unwrap_or(seconds);
    How {
        rounds: args.rounds.unwrap_or(rounds),
        decides: false,
        timing: Timing {
            seconds,
            turn_seconds: TURN_SECONDS.min(seconds),
            settle_seconds: settle_seconds.min(seconds),
        },
        warm_up_seconds: warm_up_seconds.min(seconds),
        seed: args.seed,
    }
}

fn begin(args: &Args, how: How, ways: &Ways) -> anyhow::Result<Run> {
    let mut versions = host::versions()?;
    versions.extend(ways.versions());
    Ok(Run {
        schema: SCHEMA,
        started: host::date()?,
        seconds: 0.0,
        complete: false,
        source: host::source()?,
        machine: host::machine()?,
        versions,
        settings: RunSettings {
            command: command_line(),
            rounds: how.rounds,
            seconds: how.timing.seconds,
            warm_up_seconds: how.warm_up_seconds,
            turn_seconds: how.timing.turn_seconds,
            interval_ms: load::INTERVAL_MS,
            seed: args.seed,
        },
        paths: ways.described.clone(),
        experiments: Vec::new(),
        failed: Default::default(),
        programs: Vec::new(),
        profiles: Vec::new(),
    })
}

/// Returns the command line as it was typed, without passwords, and without paths on this host.
fn command_line() -> String {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let secret = words.iter().position(|word| word == "--password");
    if let Some(word) = secret.and_then(|at| words.get_mut(at + 1)) {
        "…".clone_into(word);
    }
    for word in words
        .iter_mut()
        .filter(|word| word.starts_with("--password="))
    {
        "--password=…".clone_into(word);
    }
    for word in &mut words {
        if let Some((name, file)) = word.split_once('=').filter(|(_, file)| file.contains('/')) {
            let file = file.rsplit('/').next().unwrap_or_default();
            *word = format!("{name}={file}");
        }
    }
    format!("underpass-bench {}", words.join(" "))
}
