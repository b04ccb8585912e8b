//! `underpass-bench bars`: the comparisons that carry a bar, and nothing else, each until it is decided.

use std::{
    collections::BTreeSet,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::ensure;
use report::{
    Run,
    bars::{self, ALL, Verdict},
    schema::RunSettings,
    sequential,
};

use super::{Common, Measurement, Planned, every, experiment::FAILED, how};
use crate::databases::Given;

/// The seconds of a path in a round.
const SECONDS: f64 = 0.5;

/// The seconds of a path's turn: a fifth of what other runs have. On a busy machine two directs of one round then differ by 5 to 9 % rather than by 10 to
/// 13 % (standard deviations, with 1 and with 32 connections), and a round takes a sixth longer, for each turn is accounted for.
const TURN_SECONDS: f64 = 0.025;

/// The time after which no further round begins: the command fails, and goes on when it is repeated.
const LIMIT: Duration = Duration::from_secs(45 * 60);

/// Options of `bars`.
#[derive(clap::Args)]
pub struct Args {
    /// Experiments; none: all that have a bar
    only: Vec<String>,
    #[command(flatten)]
    given: Given,
    #[command(flatten)]
    common: Common,
    /// Begin anew, though an interrupted run of the same commit could go on
    #[arg(long)]
    anew: bool,
}

/// Runs the command; exits 1 unless each bar is met or missed.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let planned = planned(&args.only)?;
    let ids: Vec<&str> = planned.iter().map(|p| &*p.variant.id).collect();
    let asked: Vec<&bars::Bar> = ALL
        .iter()
        .filter(|bar| ids.contains(&bar.experiment))
        .collect();
    let paths: BTreeSet<&str> = asked.iter().flat_map(|bar| bar.paths()).collect();
    let paths: Vec<String> = paths.into_iter().map(str::to_owned).collect();
    let out = args.common.result_file("bars", args.only.is_empty());
    let rounds = sequential::MOST_ROUNDS as u32;
    let mut how = how(rounds, SECONDS, args.common.seed);
    how.decides = true;
    how.timing.turn_seconds = TURN_SECONDS;
    how.until = Some(Instant::now() + LIMIT);
    let measurement = Measurement {
        given: args.given.clone(),
        ..Measurement::new(&args.common, &paths, how, out)?
    };
    let mut results = measurement.begin()?;
    if let Some(kept) = kept(&measurement.unfinished(), &results, args.anew) {
        let ids: Vec<&str> = kept.experiments.iter().map(|e| &*e.id).collect();
        eprintln!("goes on; already measured: {}", ids.join(", "));
        results = kept;
    }
    let results = measurement.carry_out(&planned, results)?;
    // Without a noise floor that holds, there is no verdict.
    let mut code = u8::from(!results.experiments.iter().all(bars::has_floor));
    for bar in asked {
        let (word, why) = match bar.verdict(&results) {
            Verdict::Met(_) => ("met", String::new()),
            Verdict::Missed(_) => ("missed", String::new()),
            Verdict::Undecided(_, why) => ("undecided", format!(": {why}")),
            Verdict::NotMeasured(why) => ("not measured", format!(": {why}")),
        };
        code |= u8::from(!why.is_empty());
        println!(
            "{}: {} in {}: {word}{why}",
            bar.path,
            bar.text(),
            bar.experiment
        );
    }
    Ok(ExitCode::from(code))
}

/// The experiments that have bars, each over the paths of these alone.
fn planned(only: &[String]) -> anyhow::Result<Vec<Planned>> {
    for id in only {
        let known: BTreeSet<&str> = ALL.iter().map(|bar| bar.experiment).collect();
        ensure!(
            known.contains(&**id),
            "{id} has no bar; these have: {}",
            Vec::from_iter(known).join(", ")
        );
    }
    let mut planned = every()?;
    planned.retain(|planned| {
        let id = &planned.variant.id;
        bars::of(id).next().is_some() && (only.is_empty() || only.contains(id))
    });
    for planned in &mut planned {
        let paths = bars::of(&planned.variant.id).flat_map(bars::Bar::paths);
        let paths: BTreeSet<&str> = paths.collect();
        planned.variant.paths = paths.into_iter().map(str::to_owned).collect();
    }
    Ok(planned)
}

/// The results of an interrupted run of the same source, in the same way, but for experiments in which a path failed: these are measured again.
/// Says why one that is there is of no use.
fn kept(file: &Path, now: &Run, anew: bool) -> Option<Run> {
    let kept = report::read(file).ok()?;
    let why_not = if anew {
        "as asked"
    } else if kept.source != now.source {
        "the interrupted run was of another commit"
    } else if now.source.dirty {
        "there are local changes"
    } else {
        // `--anew` is part of a command, and of nothing else.
        let command = now.settings.command.clone();
        let settings = RunSettings {
            command,
            ..kept.settings
        };
        if settings == now.settings && kept.paths == now.paths {
            let mut kept = Run { settings, ..kept };
            let has_failed = |why: &String| why.starts_with(FAILED);
            kept.experiments
                .retain(|experiment| !experiment.left_out.values().any(has_failed));
            return Some(kept);
        }
        "the interrupted run was asked for otherwise"
    };
    eprintln!("begins anew: {why_not}");
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_root<T>(run: impl FnOnce() -> T) -> T {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        std::env::set_current_dir(root).expect("the project's root is there");
        run()
    }

    #[test]
    fn every_bar_has_an_experiment_and_paths() {
        let planned = from_root(|| planned(&[])).expect("the workloads are read");
        let known = crate::paths::every();
        assert!(ALL.len() <= 30, "cut those that nobody would act on");
        for bar in ALL {
            let found = planned.iter().find(|p| p.variant.id == bar.experiment);
            let found = found.unwrap_or_else(|| panic!("{}: no such experiment", bar.experiment));
            for path in bar.paths() {
                assert!(found.variant.compares(path), "{path}");
                assert!(known.iter().any(|known| known.name == path), "{path}");
            }
        }
    }
}
