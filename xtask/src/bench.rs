//! `bench`: release binaries, and the measurements and the README's results from them.

use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result};
use clap::Subcommand;

use crate::{
    cassandra, paths,
    run::{Forward, cargo, require_root, run as run_command, run_status},
    setup::{self, Part},
};

/// The page with the results.
const PAGE: &str = "README.md";

/// Measure, report.
#[derive(Subcommand)]
pub enum Verb {
    /// Measure what the README claims, into bench/results/slice.json; needs root and a quiet
    /// machine
    Measure {
        /// Also against a real Cassandra, which is started if need be
        #[arg(long)]
        cassandra: bool,
        /// Passed to `underpass-bench measure`
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Render bench/results/slice.json into the README
    Report {
        /// Change nothing; exit 1 when the README is out of date
        #[arg(long)]
        check: bool,
    },
}

/// The command; the bench's own exit code.
pub fn run(verb: &Verb) -> Result<ExitCode> {
    match verb {
        Verb::Measure { cassandra, args } => {
            require_root("bench measure", "loads BPF programs and makes cgroups")?;
            with_database("measure", *cassandra, args)
        }
        Verb::Report { check } => {
            let mut report = cargo();
            report.args([
                "run",
                "--quiet",
                "-p",
                "underpass-bench",
                "--",
                "report",
                PAGE,
            ]);
            if *check {
                report.arg("--check");
            }
            run_status(&mut report, Forward::Group).map(exit_code)
        }
    }
}

/// Builds, starts Cassandra if it is wanted, runs a command of the bench, and stops the
/// Cassandra that it started.
pub fn with_database(command: &str, with_cassandra: bool, args: &[String]) -> Result<ExitCode> {
    setup::ensure(&[Part::Build])?;
    build()?;
    if !with_cassandra {
        return bench(command, None, args).map(exit_code);
    }
    let node = cassandra::up(None)?;
    let done = bench(command, Some(&node), args);
    if node.started {
        cassandra::down()?;
    }
    done.map(exit_code)
}

fn build() -> Result<()> {
    run_command(
        cargo()
            .args(["build", "--release"])
            .args(["-p", "underpass", "--bin", "underpass"])
            .args(["-p", "underpass-testkit", "--bin", "cql-node"])
            .args(["-p", "underpass-bench", "--bin", "underpass-bench"]),
    )
    .context("the release binaries do not build")
}

/// Runs the bench to its end. It takes down by itself what it set up, so SIGTERM goes to it
/// alone and not to the agents and nodes that it started.
fn bench(command: &str, node: Option<&cassandra::Up>, args: &[String]) -> Result<ExitStatus> {
    let mut bench = Command::new(paths::target().join("release/underpass-bench"));
    bench.arg(command).current_dir(paths::root());
    if let Some(node) = node {
        bench
            .args(["--cassandra", &node.address.to_string()])
            .args(["--user", cassandra::USER])
            .args(["--password", cassandra::PASSWORD]);
    }
    run_status(bench.args(args), Forward::Child)
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}
