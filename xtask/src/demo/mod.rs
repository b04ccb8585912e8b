//! `demo`: release binaries, and the bench's demo on top of them.

use std::process::ExitCode;

use anyhow::Result;

use crate::{bench, run::require_root};

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
    require_root("demo", "loads BPF programs and makes cgroups")?;
    bench::with_database("demo", args.cassandra, &args.args)
}
