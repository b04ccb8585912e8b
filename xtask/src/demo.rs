//! `demo`: release binaries, and the bench's demo on top of them.

use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result};

use crate::{
    cassandra, paths,
    run::{Forward, cargo, require_root, run as run_command, run_status},
    setup::{self, Part},
};

/// Options of `demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Against a real Cassandra, which is started if need be, instead of the embedded node
    #[arg(long)]
    cassandra: bool,
    /// Passed to `underpass-bench demo`
    #[arg(last = true)]
    args: Vec<String>,
}

/// The command; the demo's own exit code.
pub fn run(args: &Args) -> Result<ExitCode> {
    require_root("demo", "loads BPF programs and makes network namespaces")?;
    setup::ensure(&[Part::Build])?;
    run_command(
        cargo()
            .args(["build", "--release"])
            .args(["-p", "underpass", "--bin", "underpass"])
            .args(["-p", "underpass-testkit", "--bin", "cql-node"])
            .args(["-p", "underpass-bench", "--bin", "underpass-bench"]),
    )
    .context("the release binaries do not build")?;
    if !args.cassandra {
        return show(args, None).map(exit_code);
    }
    let node = cassandra::up(None)?;
    let shown = show(args, Some(&node));
    if node.started {
        cassandra::down()?;
    }
    shown.map(exit_code)
}

/// Runs the demo to its end. It takes down by itself what it set up, so SIGTERM goes to it
/// alone and not to the agents and nodes that it started.
fn show(args: &Args, node: Option<&cassandra::Up>) -> Result<ExitStatus> {
    let mut demo = Command::new(paths::target().join("release/underpass-bench"));
    demo.arg("demo").current_dir(paths::root());
    if let Some(node) = node {
        demo.args(["--cassandra", &node.address.to_string()]);
    }
    run_status(demo.args(&args.args), Forward::Child)
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}
