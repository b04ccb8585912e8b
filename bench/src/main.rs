//! Drives load over the paths to a database, and compares them.
//!
//! - `path.rs`: direct, bypass, enrich.
//! - `rig/`: an agent, cgroups, a client process for each path, interleaved rounds.
//! - `client/`: what such a process does; `order.rs`: how it is told; `cql.rs`: raw CQL.
//! - `demo/`: shows it and verifies that each flow took its path.
//! - `measure/`: writes a result file; `report.rs`: renders it into the README.

mod client;
mod cql;
mod demo;
mod interrupt;
mod latency;
mod measure;
mod order;
mod path;
mod report;
mod rig;
mod stats;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Drives load over the paths to a database, and compares them.
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
    /// Measure what the README claims, and write the result file
    Measure(measure::Args),
    /// Render the result file into a page's results table
    Report(report::Args),
    #[command(hide = true)]
    Client,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => match interrupt::received() {
            // Whatever failed then failed because of it.
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
        Command::Client => client::run().map(|()| ExitCode::SUCCESS),
        Command::Report(args) => report::run(&args),
        Command::Demo(args) => {
            interrupt::install()?;
            demo::run(&args)
        }
        Command::Measure(args) => {
            interrupt::install()?;
            measure::run(&args).map(|()| ExitCode::SUCCESS)
        }
    }
}
