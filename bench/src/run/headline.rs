//! `underpass-bench headline`: what a user sees first, at rates that are shares of what direct reaches at most.

use std::process::ExitCode;

use anyhow::Context;
use load::workload::Variant;
use report::{
    Run,
    headline::{CONNECTIONS, PATHS, SHARES, id},
    metric::Metric,
    sequential,
};

use super::{Common, Measurement, Planned, cores::Cores, how, judged, one};

/// The workload and the variant that are asked: half reads, half writes, of sockets that wait as drivers' do.
const LIKE: &str = "node-raw-nonblocking-32";
/// Rounds, and seconds of a path in each, that let twelve experiments end within 20 minutes. Many short ones scatter less than few
/// long ones that take as long.
const ROUNDS: u32 = 2 * sequential::LEAST_ROUNDS as u32;
const SECONDS: f64 = 0.25;
/// The seconds of a path's turn, half of what other commands have: in trials, rounds scattered less by a third.
const TURN_SECONDS: f64 = SECONDS / 4.0;
/// The seconds of a new generator's first requests: an embedded node has nothing to warm up.
const SETTLE_SECONDS: f64 = 0.1;

/// Options of `headline`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Interleaved rounds
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
}

/// Runs the command: first the maxima, then the shares of what they are for direct.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let paths = PATHS.map(str::to_owned).to_vec();
    let mut how = how(args.rounds, SECONDS, args.common.seed);
    how.timing.turn_seconds = TURN_SECONDS;
    how.timing.settle_seconds = SETTLE_SECONDS;
    let out = args.common.result_file("headline", args.rounds == ROUNDS);
    let measurement = Measurement::new(&args.common, &paths, how, out)?;
    let maxima = maxima()?;
    let results = measurement.begin()?;
    let results = measurement.carry_out(&maxima, results)?;
    let mut rates = Vec::new();
    for maximum in &maxima {
        rates.extend(at_rates(maximum, &results)?);
    }
    let results = measurement.carry_out(&rates, results)?;
    Ok(judged(&results))
}

/// The closed loops: with all cores shared, and with one for the proxy.
fn maxima() -> anyhow::Result<Vec<Planned>> {
    let like = one(LIKE)?;
    let mut planned = Vec::new();
    for cores in [Cores::Shared, Cores::apart()?] {
        for connections in CONNECTIONS {
            let mut one = like.clone();
            one.cores = cores;
            let Variant { id, job, paths, .. } = &mut one.variant;
            *id = self::id(connections, None, cores != Cores::Shared);
            job.connections = connections;
            job.threads = job.threads.min(connections);
            *paths = PATHS.map(str::to_owned).to_vec();
            planned.push(one);
        }
    }
    Ok(planned)
}

/// The open loops at shares of what direct reached here.
fn at_rates(maximum: &Planned, results: &Run) -> anyhow::Result<Vec<Planned>> {
    let measured = results.experiment(&maximum.variant.id);
    let direct = measured.and_then(|e| e.direct()?.median(Metric::OpS));
    let direct = direct.with_context(|| format!("{}: direct has no figure", maximum.variant.id))?;
    let at = |share: u32| {
        let mut one = maximum.clone();
        let job = &mut one.variant.job;
        job.rate = Some((direct * f64::from(share) / 100.0).round());
        one.variant.id = id(job.connections, Some(share), one.cores != Cores::Shared);
        one
    };
    Ok(SHARES.map(at).to_vec())
}
