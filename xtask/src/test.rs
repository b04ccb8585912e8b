//! `test`: every test, with all that they need: root, Cassandra, drivers; then a quick run of
//! the benchmark.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::{
    bench, cassandra, programs, python,
    run::{cargo, require_root, run as run_command},
    setup, skips,
};

/// Tests beyond one for each processor that run at a time. With twice as many as processors a canary
/// misses its second now and then, and the test that waits for its path fails.
const MORE_TESTS: usize = 1;

/// Options of `test`.
#[derive(clap::Args)]
pub struct Args {
    /// Passed to `cargo test --workspace`
    #[arg(last = true)]
    args: Vec<String>,
}

/// The command. Cassandra is stopped at the end if it was not running before, also after a
/// failure and on SIGINT or SIGTERM.
pub fn run(args: &Args) -> Result<()> {
    require_root("test", "loads BPF programs and makes network namespaces")?;
    setup::ensure(&setup::ALL)?;
    let mut programs = programs::ensure()?;
    programs.extend(python::ensure()?);
    // Built before Cassandra starts, which would only compete with the compiler. The programs that
    // the quick run measures are among them.
    run_command(cargo().args(["build", "--workspace", "--bins", "--tests"]))
        .context("the workspace does not build")?;
    let node = cassandra::up(None)?;
    let tested = test(args, &node, programs).and_then(|()| bench::quick(&node));
    tested.and(node.finish())
}

/// Tests of a program that run at a time. Most of them wait for another process or for a timer
/// nearly all the time, so that one for each processor would leave the machine idle.
fn threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors + MORE_TESTS
}

fn test(args: &Args, node: &cassandra::Up, programs: Vec<(&str, PathBuf)>) -> Result<()> {
    skips::clear()?;
    // All but the examples in doc comments, which `house` forbids; or what the caller has chosen.
    let all = ["--lib", "--bins", "--tests"];
    let selection = if args.args.is_empty() { &all[..] } else { &[] };
    let tested = run_command(
        cargo()
            .args(["test", "--workspace"])
            .args(selection)
            .args(&args.args)
            .env("RUST_TEST_THREADS", threads().to_string())
            .envs(node.variables())
            .envs(programs)
            .env("UNDERPASS_REQUIRE_ALL", "1")
            .env("UNDERPASS_SKIPS", skips::file()),
    )
    .context("tests failed");
    // The skips are of interest after a failure as well.
    let judged = skips::judge();
    tested.and(judged)
}
