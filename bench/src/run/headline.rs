//! `underpass-bench headline`: what a user sees first, at rates that are shares of what direct reaches at most.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;
use load::workload::Variant;
use report::{
    Run,
    headline::{CONNECTIONS, SHARES, id},
    metric::Metric,
};

use super::{Planned, WORKLOADS, begin, carry_out, cores::Cores, how, plan};
use crate::{databases::Given, ways::Ways};

/// The committed file.
const OUT: &str = "bench/results/headline.json.gz";
/// The workload and the variant that are asked: half reads, half writes, of sockets that wait as drivers' do.
const LIKE: &str = "node-raw-nonblocking-32";
/// The paths, beside the two directs.
const PATHS: [&str; 7] = [
    "bypass", "tap", "splice", "enrich", "haproxy", "envoy", "shotover",
];
/// Rounds and seconds that let twelve experiments end within a quarter of an hour.
const ROUNDS: u32 = 7;
const SECONDS: f64 = 0.5;

/// Options of `headline`.
#[derive(clap::Args)]
pub struct Args {
    /// The result file [default: bench/results/headline.json.gz]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// A peer's binary: its path, or another name on PATH
    #[arg(long = "peer-bin", value_name = "NAME=PATH")]
    peer_bins: Vec<String>,
    /// Interleaved rounds
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// The seed of the order of turns, and of the keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the command: first the maxima, then the shares of what they are for direct.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let paths = PATHS.map(str::to_owned).to_vec();
    let ways = Ways::find(&paths, &peers::Overrides::parse(&args.peer_bins)?)?;
    let as_run = super::Args {
        only: Vec::new(),
        given: Given::default(),
        quick: false,
        out: Some(args.out.clone().unwrap_or_else(|| OUT.into())),
        paths,
        peer_bins: args.peer_bins.clone(),
        rounds: Some(args.rounds),
        seconds: Some(SECONDS),
        seed: args.seed,
        profile: Vec::new(),
        flames: None,
    };
    let how = how(&as_run);
    let maxima = maxima()?;
    let results = begin(&as_run, how, &ways)?;
    let results = carry_out(&as_run, &maxima, &ways, how, results)?;
    let mut rates = Vec::new();
    for maximum in &maxima {
        rates.extend(at_rates(maximum, &results)?);
    }
    let results = carry_out(&as_run, &rates, &ways, how, results)?;
    for (id, why) in &results.failed {
        eprintln!("wrong: {id}: {why}");
    }
    Ok(ExitCode::from(u8::from(!results.failed.is_empty())))
}

/// The closed loops: with all cores shared, and with one for the proxy.
fn maxima() -> anyhow::Result<Vec<Planned>> {
    let workloads = load::workload::read(WORKLOADS.as_ref())?;
    let like = plan::choose(&workloads, &[LIKE.to_owned()], false)?;
    let like = like.first().context("no workload")?;
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
