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
pub mod generator;
mod hand_overs;
pub mod headline;
mod headroom;
mod host;
pub mod others;
mod plan;
mod profile;
mod programs;
mod progress;
mod round;
mod shared;
pub mod shuffle;
mod stage;
mod verify;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use load::workload::Database;
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

/// The seconds of a path's turn. A shared machine changes its speed from second to second, and a turn is shorter than what disturbs a
/// database (a collection of garbage, a flush), which otherwise falls to one path's. With turns of half a second rounds scattered two
/// to three times as far.
const TURN_SECONDS: f64 = 0.125;
/// The seconds of a new generator's first requests.
const SETTLE_SECONDS: f64 = 0.2;
/// The seconds of each path's warm-up. A JVM compiles what it runs often.
const WARM_UP_SECONDS: f64 = 1.0;
/// The seconds of both in a quick run, which compares nothing that they would make fair.
const QUICK_WARM_UP_SECONDS: f64 = 0.05;
/// The factor of the first experiment's warm-up on a Cassandra: it may just have been started.
const COLD_FACTOR: f64 = 5.0;

/// The seed without options.
const SEED: u64 = 1;

/// Options of every command that measures into a result file.
#[derive(Clone, clap::Args)]
pub struct Common {
    /// The result file [default: in bench/results, or in target/bench if less is measured, or in another way, than without options]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// A peer's binary: its path, or another name on PATH
    #[arg(long = "peer-bin", value_name = "NAME=PATH")]
    pub peer_bins: Vec<String>,
    /// The seed of the order of turns, and of the keys
    #[arg(long, default_value_t = SEED)]
    pub seed: u64,
}

impl Common {
    /// Whether it measures what it does without options.
    fn is_usual(&self) -> bool {
        self.peer_bins.is_empty() && self.seed == SEED
    }

    /// The result file: unless another one is asked for the committed one, which a measurement of a part or in another way does not
    /// write over.
    fn result_file(&self, name: &str, is_as_committed: bool) -> PathBuf {
        let default = match is_as_committed && self.is_usual() {
            true => format!("bench/results/{name}.json.gz"),
            false => format!("target/bench/{name}.json"),
        };
        self.out.clone().unwrap_or_else(|| default.into())
    }
}

/// Options of `run`.
#[derive(clap::Args)]
pub struct Args {
    /// Experiments or workloads; none: all (`list` shows them)
    only: Vec<String>,
    #[command(flatten)]
    given: Given,
    #[command(flatten)]
    common: Common,
    /// Few experiments, short rounds: to see that it works; exits 1 when a figure is absurd
    #[arg(long)]
    quick: bool,
    /// The paths to compare with `direct`; none: all
    #[arg(long = "path", value_name = "NAME")]
    paths: Vec<String>,
    /// Interleaved rounds [default: 5, with --quick 2]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// The seconds that each path works in a round [default: 1, with --quick 0.25]
    #[arg(long, value_parser = crate::seconds)]
    seconds: Option<f64>,
    /// Also profile the whole system under this experiment, over each path; may be repeated
    #[arg(long, value_name = "EXPERIMENT")]
    profile: Vec<String>,
    /// The folder for flame graphs [default: bench/results/flames, or target/bench/flames as with
    /// --out]
    #[arg(long, value_name = "FOLDER")]
    flames: Option<PathBuf>,
}

/// A measurement: what is done for whichever of the commands.
struct Measurement {
    ways: Ways,
    how: How,
    given: Given,
    out: PathBuf,
    is_quick: bool,
    /// The experiments that are profiled, and the folder for flame graphs.
    profiled: (Vec<String>, PathBuf),
}

impl Measurement {
    /// A measurement of these paths (none: all), in so many rounds of so many seconds, into this file.
    fn new(common: &Common, paths: &[String], how: How, out: PathBuf) -> anyhow::Result<Self> {
        Ok(Self {
            ways: Ways::find(paths, &peers::Overrides::parse(&common.peer_bins)?)?,
            how,
            given: Given::default(),
            out,
            is_quick: false,
            profiled: Default::default(),
        })
    }
}

/// Runs the command. Measured results are kept, whatever happens afterwards.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let workloads = load::workload::read(Path::new(WORKLOADS))?;
    let planned = plan::choose(&workloads, &args.only, args.quick)?;
    let is_part = args.quick || !args.only.is_empty() || !args.paths.is_empty();
    let name = if is_part { "part" } else { "full" };
    let is_as_usual = !is_part && args.rounds.is_none() && args.seconds.is_none();
    let out = args.common.result_file(name, is_as_usual);
    let flames = match is_as_usual && args.common.is_usual() && args.common.out.is_none() {
        true => "bench/results/flames",
        false => "target/bench/flames",
    };
    let mut how = match args.quick {
        true => how(2, 0.25, args.common.seed),
        false => how(5, 1.0, args.common.seed),
    };
    how.rounds = args.rounds.unwrap_or(how.rounds);
    how = self::how(
        how.rounds,
        args.seconds.unwrap_or(how.timing.seconds),
        how.seed,
    );
    let flames = args.flames.clone().unwrap_or_else(|| flames.into());
    let mut measurement = Measurement {
        given: args.given.clone(),
        is_quick: args.quick,
        profiled: (args.profile.clone(), flames),
        ..Measurement::new(&args.common, &args.paths, how, out)?
    };
    if args.quick {
        // It compares nothing that these would make fair.
        measurement.how.timing.settle_seconds = QUICK_WARM_UP_SECONDS;
        measurement.how.warm_up_seconds = QUICK_WARM_UP_SECONDS;
        let ways = &mut measurement.ways;
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
    let results = measurement.begin()?;
    let results = measurement.carry_out(&planned, results)?;
    Ok(match args.quick {
        true => said(&check::loose(&results)),
        false => judged(&results),
    })
}

impl Measurement {
    /// The file of a run that has not come to its end. The committed file is replaced by a whole run, or not at all.
    fn unfinished(&self) -> PathBuf {
        self.out.with_extension("unfinished.json")
    }

    /// The results before anything is measured.
    fn begin(&self) -> anyhow::Result<Run> {
        let how = &self.how;
        let mut versions = host::versions()?;
        versions.extend(self.ways.versions());
        Ok(Run {
            schema: SCHEMA,
            started: host::date()?,
            seconds: 0.0,
            complete: false,
            source: host::source()?,
            machine: host::machine()?,
            versions,
            settings: RunSettings {
                command: command_line(std::env::args().skip(1)),
                rounds: how.rounds,
                seconds: how.timing.seconds,
                warm_up_seconds: how.warm_up_seconds,
                turn_seconds: how.timing.turn_seconds,
                seed: how.seed,
            },
            paths: self.ways.described.clone(),
            experiments: Vec::new(),
            failed: Default::default(),
            programs: Vec::new(),
            profiles: Vec::new(),
        })
    }

    /// Does the experiments that the results do not have yet. What was measured is written, whatever happens.
    fn carry_out(&self, planned: &[Planned], mut results: Run) -> anyhow::Result<Run> {
        if let Some(folder) = self.out.parent() {
            fs::create_dir_all(folder)?;
        }
        let awake = Awake::ask();
        let circumstances = &mut results.machine.circumstances;
        circumstances.insert("idle cores".into(), awake.described());
        let (began, before) = (Instant::now(), results.seconds);
        let measured = self.all(planned, &mut results);
        results.seconds = before + began.elapsed().as_secs_f64();
        results.complete = measured.is_ok();
        drop(awake);
        self.keep(&results)?;
        measured?;
        Ok(results)
    }

    /// Writes the results, unless there are none.
    fn keep(&self, results: &Run) -> anyhow::Result<()> {
        if results.experiments.is_empty() {
            return Ok(());
        }
        let unfinished = self.unfinished();
        let kept = match results.complete {
            true => &self.out,
            false => &unfinished,
        };
        if let Some(folder) = kept.parent() {
            fs::create_dir_all(folder)?;
        }
        report::write(results, kept)?;
        if results.complete {
            let _ = fs::remove_file(&unfinished);
        }
        eprintln!("written: {} ({:.0} s)", kept.display(), results.seconds);
        Ok(())
    }

    /// Every experiment. One that fails is noted; a signal ends them all.
    fn all(&self, planned: &[Planned], results: &mut Run) -> anyhow::Result<()> {
        let estimate = |planned: &Planned| {
            let how = self.how.under(&planned.variant);
            // With the two directs; a variant that names no path compares all.
            let compared = match planned.variant.paths.len() {
                0 => self.ways.count(),
                named => named + 2,
            };
            planned.estimate(how, compared)
        };
        let is_left = |planned: &&Planned| results.experiment(&planned.variant.id).is_none();
        let left: Vec<&Planned> = planned.iter().filter(is_left).collect();
        let estimates: Vec<Duration> = left.iter().copied().map(estimate).collect();
        let mut progress = Progress::new(&estimates, self.how.until);
        let mut is_cold = !self.is_quick;
        for (planned, estimate) in left.into_iter().zip(estimates) {
            interrupt::check()?;
            self.how.check_time()?;
            let variant = &planned.variant;
            // Of a run that goes on it may have failed before.
            results.failed.remove(&variant.id);
            progress.experiment(&variant.id, &planned.about(), estimate);
            let _others = planned.cores.take_others()?;
            let databases = match Databases::of(variant, &self.given) {
                Ok(databases) => databases,
                Err(error) => {
                    fail(results, &variant.id, &error);
                    continue;
                }
            };
            results.versions.extend(databases.version.clone());
            let mut how = self.how.under(variant);
            if is_cold && variant.database == Database::Cassandra {
                how.warm_up_seconds *= COLD_FACTOR;
                is_cold = false;
            }
            let (profiled, flames) = &self.profiled;
            let setting = Setting {
                databases: &databases,
                ways: &self.ways,
                how,
                cores: planned.cores,
                flames: profiled.contains(&variant.id).then_some(flames),
            };
            let outcome = experiment::run(&planned.workload, variant, setting, &mut progress);
            results.profiles.extend(outcome.profiles);
            if let Some(error) = outcome.stopped {
                if !how.decides {
                    keep_begun(results, outcome.experiment);
                }
                interrupt::check()?;
                how.check_time()?;
                fail(results, &variant.id, &error);
                continue;
            }
            if let Some(why) = &outcome.experiment.refused {
                eprintln!("  refused: {why}");
            }
            results.experiments.push(outcome.experiment);
            // A run that is killed leaves what it has.
            report::write(results, &self.unfinished())?;
        }
        let variants = planned.iter().map(|planned| &planned.variant);
        for variant in variants.filter(|variant| programs::is_counted(&variant.id)) {
            match programs::measure(variant, &self.ways) {
                Ok(programs) => results.programs.extend(programs),
                Err(error) => {
                    interrupt::check()?;
                    fail(results, "programs", &error);
                }
            }
        }
        Ok(())
    }
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

/// The way of so many rounds of so many seconds.
fn how(rounds: u32, seconds: f64, seed: u64) -> How {
    How {
        rounds,
        decides: false,
        timing: Timing {
            seconds,
            turn_seconds: TURN_SECONDS.min(seconds),
            settle_seconds: SETTLE_SECONDS.min(seconds),
        },
        warm_up_seconds: WARM_UP_SECONDS.min(seconds),
        seed,
        until: None,
    }
}

/// Says what was not measured, or is withheld: 1 where anything is.
fn judged(results: &Run) -> ExitCode {
    said(&check::missing(results))
}

/// Says what is wrong: 1 where anything is.
fn said(wrong: &[String]) -> ExitCode {
    for what in wrong {
        eprintln!("wrong: {what}");
    }
    ExitCode::from(u8::from(!wrong.is_empty()))
}

/// All experiments that there are.
fn every() -> anyhow::Result<Vec<Planned>> {
    plan::choose(&load::workload::read(Path::new(WORKLOADS))?, &[], false)
}

/// The experiment of this id.
fn one(id: &str) -> anyhow::Result<Planned> {
    let mut all = every()?.into_iter();
    let one = all.find(|planned| planned.variant.id == id);
    one.with_context(|| format!("there is no experiment {id}"))
}

/// Returns a command line as it was typed, without passwords, and without folders of this host.
fn command_line(words: impl Iterator<Item = String>) -> String {
    let mut words: Vec<String> = words.collect();
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
        let (name, value) = match word.split_once('=') {
            Some((name, value)) if value.contains('/') => (format!("{name}="), value),
            None if word.starts_with('/') => ("…/".to_owned(), &**word),
            _ => continue,
        };
        let file = value.trim_end_matches('/').rsplit('/').next();
        *word = format!("{name}{}", file.unwrap_or_default());
    }
    format!("underpass-bench {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::command_line;

    #[test]
    fn a_command_line_tells_neither_passwords_nor_folders_of_this_host() {
        let said = |words: &[&str]| command_line(words.iter().map(|&word| word.to_owned()));
        for (words, kept) in [
            (
                &[
                    "other",
                    "latte",
                    "--home",
                    "/home/me/latte",
                    "--password",
                    "xyzzy",
                ][..],
                "other latte --home …/latte --password …",
            ),
            (
                &["bars", "--password=xyzzy", "--agent=/home/me/underpass"],
                "bars --password=… --agent=underpass",
            ),
            (
                &["run", "agent-2=../builds/", "--cassandra", "127.0.0.1:9042"],
                "run agent-2=builds --cassandra 127.0.0.1:9042",
            ),
        ] {
            assert_eq!(said(words), format!("underpass-bench {kept}"));
        }
    }
}
