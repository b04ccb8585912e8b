//! `test`: every test, with all that they need: root, Cassandra, drivers; then a quick run of
//! the benchmark.

use std::{collections::BTreeSet, path::PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    bench, cassandra, programs, python,
    run::{capture, cargo, require_root, run as run_command},
    setup, skips,
};

/// Tests beyond one for each processor that run at a time. With twice as many as processors a canary
/// misses its second now and then, and the test that waits for its path fails.
const MORE_TESTS: usize = 1;

/// The test programs that are run with [`WAITING_TESTS`]: few of their agents try a path out.
const WAITING: [&str; 2] = ["enrichment", "host"];

/// Tests of [`WAITING`] that run at a time, for each processor.
const WAITING_TESTS: usize = 2;

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

/// Programs that cargo runs one after the other, and the number of their tests that run at a time.
struct Turn {
    selection: Vec<String>,
    threads: usize,
}

/// Chooses all but the examples in doc comments, which `house` forbids; or what the caller has chosen. Most tests
/// wait for another process or for a timer nearly all the time, so that one for each processor would leave the
/// machine idle.
fn turns(args: &Args) -> Result<Vec<Turn>> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = processors + MORE_TESTS;
    if !args.args.is_empty() {
        let selection = args.args.clone();
        return Ok(vec![Turn { selection, threads }]);
    }
    let metadata = capture(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value =
        serde_json::from_slice(&metadata).context("cargo's metadata cannot be read")?;
    let (waiting, others): (Vec<&str>, Vec<&str>) = test_programs(&metadata)
        .into_iter()
        .partition(|name| WAITING.contains(name));
    ensure!(
        waiting.len() == WAITING.len(),
        "no test programs are called {WAITING:?}"
    );
    let by_name = |names: Vec<&str>| -> Vec<String> {
        let words = names.into_iter().flat_map(|name| ["--test", name]);
        words.map(str::to_owned).collect()
    };
    let units = ["--lib", "--bins"].map(str::to_owned);
    Ok(vec![
        Turn {
            selection: units.into_iter().chain(by_name(others)).collect(),
            threads,
        },
        Turn {
            selection: by_name(waiting),
            threads: processors * WAITING_TESTS,
        },
    ])
}

/// Names of the test programs in cargo's description of the workspace.
fn test_programs(metadata: &Value) -> BTreeSet<&str> {
    let targets = list(metadata, "packages").flat_map(|package| list(package, "targets"));
    targets
        .filter(|target| list(target, "kind").any(|kind| kind == "test"))
        .filter_map(|target| target.get("name")?.as_str())
        .collect()
}

fn list<'v>(value: &'v Value, key: &'static str) -> impl Iterator<Item = &'v Value> {
    let list = value.get(key).and_then(Value::as_array);
    list.into_iter().flatten()
}

fn test(args: &Args, node: &cassandra::Up, programs: Vec<(&str, PathBuf)>) -> Result<()> {
    skips::clear()?;
    let run_turn = |turn: Turn| {
        run_command(
            cargo()
                .args(["test", "--workspace"])
                .args(&turn.selection)
                .env("RUST_TEST_THREADS", turn.threads.to_string())
                // Whatever the caller's: tests compare what programs say.
                .env("LC_ALL", "C.UTF-8")
                .envs(node.variables())
                .envs(programs.iter().map(|(name, path)| (name, path)))
                .env("UNDERPASS_REQUIRE_ALL", "1")
                .env("UNDERPASS_SKIPS", skips::file()),
        )
    };
    let tested = turns(args)?.into_iter().try_for_each(run_turn);
    // The skips are of interest after a failure as well.
    let judged = skips::judge();
    tested.context("tests failed").and(judged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_tests_are_found_once_each() {
        let target = |name: &str, kind: &str| serde_json::json!({"name": name, "kind": [kind]});
        let metadata = serde_json::json!({"packages": [
            {"targets": [target("agent", "lib"), target("host", "test"), target("streams", "test")]},
            {"targets": [target("streams", "test"), target("instructions", "example")]},
        ]});
        assert_eq!(
            test_programs(&metadata),
            BTreeSet::from(["host", "streams"])
        );
    }
}
