//! The benchmark: drives load over the ways to a database, and compares them.
//!
//! - `paths/`: our paths; `ways.rs`: the ones of them and of the peers that are
//!   compared.
//! - `gateway/`: networks with a gateway between clients and a database.
//! - `databases/`: databases and stand-ins; `server.rs`: one as a process of ours.
//! - `run/`: experiments in interleaved rounds, into a result file; `account/`: the kernel's
//!   account of what they used. The generator itself is the crate `load`, peers are `peers`.
//! - `others/`: load generators of others, a file each.
//! - `results.rs`: the pages that are made of result files, by the crate `report`.
//! - `demo/`: shows the paths, and verifies that each flow took its path.

mod account;
mod databases;
mod demo;
mod gateway;
mod interrupt;
mod others;
mod paths;
mod results;
mod run;
mod server;
mod ways;
mod worker;

use std::{net::SocketAddr, process::ExitCode};

use clap::{Parser, Subcommand};
use micro::programs::Counter;

/// Drives load over the ways to a database, and compares them.
#[derive(Parser)]
#[command(name = "underpass-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show what the paths cost and what enrichment sees; exits 1 unless each flow took its path
    Demo(demo::Args),
    /// Measure workloads over every path and peer, into a result file
    Run(run::Args),
    /// Measure what carries a bar until each is decided, into bench/results/bars.json.gz; exits 1 unless all are
    Bars(run::bars::Args),
    /// Measure what a user sees first, into bench/results/headline.json.gz: latency at rates that leave room, with cores shared
    /// and with one for the proxy
    Headline(run::headline::Args),
    /// Measure the loads of somebody else's generator over every path
    Other(run::others::Args),
    /// Compare the agent with another build of it; exits 1 if it is slower
    Gate(run::gate::Args),
    /// Render result files: the README's section, tables, a picture
    Report(results::ReportArgs),
    /// Compare two result files, and print the figures that moved beyond noise; exits 1 if one got
    /// worse
    Compare(results::CompareArgs),
    /// Workloads, experiments, paths and peers
    List(results::ListArgs),
    #[command(hide = true, name = run::SUBCOMMAND)]
    Generator,
    #[command(hide = true)]
    Null { listen: SocketAddr },
    /// The BPF programs that a process holds, one a line: name, type, instructions that the verifier looked at, bytes of machine code
    #[command(hide = true)]
    Programs { pid: u32 },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => match interrupt::received() {
            // A failure after the signal came from it.
            Some(interrupted) => {
                eprintln!("underpass-bench: {interrupted}");
                interrupted.exit_code()
            }
            None => {
                eprintln!("underpass-bench: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Generator => load::serve().map(|()| ExitCode::SUCCESS),
        Command::Null { listen } => load::null::serve(listen).map(|()| ExitCode::SUCCESS),
        Command::Programs { pid } => programs(pid),
        Command::Report(args) => results::report(&args),
        Command::Compare(args) => results::compare(&args),
        Command::List(args) => results::list(&args),
        Command::Demo(args) => {
            interrupt::install()?;
            demo::run(&args)
        }
        Command::Bars(args) => {
            interrupt::install()?;
            run::bars::run(&args)
        }
        Command::Headline(args) => {
            interrupt::install()?;
            run::headline::run(&args)
        }
        Command::Other(args) => {
            interrupt::install()?;
            run::others::run(&args)
        }
        Command::Gate(args) => {
            interrupt::install()?;
            run::gate::run(&args)
        }
        Command::Run(args) => {
            interrupt::install()?;
            run::run(&args)
        }
    }
}

fn programs(pid: u32) -> anyhow::Result<ExitCode> {
    for program in Counter::start(pid)?.finish()? {
        println!(
            "{} {} {} {}",
            program.name, program.kind, program.verified_instructions, program.jited_bytes
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// A number of seconds that a person would wait for.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds, from 0.1 to 600".to_owned()),
    }
}
