//! `bench`: builds the programs that are measured and those that measure, starts what they need,
//! and hands over to `underpass-bench`.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode, ExitStatus},
};

use anyhow::{Context, Result, ensure};
use clap::Subcommand;

use crate::{
    cassandra, gate,
    generators::{self, Generator},
    paths, peers,
    run::{Forward, cargo, require_root, run as run_command, run_status},
    setup::{self, Part},
};

/// Run, compare, report, list.
#[derive(Subcommand)]
pub enum Verb {
    /// Measure every workload over every path and peer, into bench/results/full.json.gz; needs root
    /// and a quiet machine
    Run {
        /// Run without a Cassandra; experiments that need one are noted as failed
        #[arg(long)]
        without_cassandra: bool,
        /// Passed to `underpass-bench run` (`-- --help` shows what it takes)
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Measure the comparisons that carry a bar until each is decided, for at most 45 minutes, into
    /// bench/results/bars.json.gz; goes on behind the experiments that an interrupted run has measured; needs root and a quiet machine
    Bars {
        /// Passed to `underpass-bench bars` (`-- --help` shows what it takes)
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Measure what a user sees first, into bench/results/headline.json.gz: latency at rates that leave room, CPU per operation, the
    /// maximum; 20 minutes; needs root and a quiet machine
    Headline {
        /// Passed to `underpass-bench headline` (`-- --help` shows what it takes)
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Measure reads and writes of latte over every path and peer, into bench/results/latte.json.gz; 10 minutes; needs root
    Latte {
        /// Passed to `underpass-bench other` (`-- --help` shows what it takes)
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Measure YCSB's workload A over every path and peer, into bench/results/ycsb.json.gz; 15 minutes; needs root
    Ycsb {
        /// Passed to `underpass-bench other` (`-- --help` shows what it takes)
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Compare the working tree's agent with the merge base's, in five comparisons and at most six minutes of measuring; exits
    /// 1 if it is slower; needs root and a quiet machine
    Gate(gate::Args),
    /// Render the committed results into their pages, the README's table and the pictures
    Report {
        /// Passed to `underpass-bench report`
        #[arg(last = true)]
        args: Vec<String>,
        /// Change nothing; exit 1 when a committed file is out of date
        #[arg(long)]
        check: bool,
    },
    /// Compare two result files, and print the figures that moved beyond noise; exits 1 if one got
    /// worse
    Compare {
        /// The result file before
        first: String,
        /// The result file after
        second: String,
    },
    /// Workloads, experiments, paths and peers
    List,
}

/// Runs the command. Returns the bench's own exit code.
pub fn run(verb: &Verb) -> Result<ExitCode> {
    if let Some(command) = verb.help() {
        return built(&[command, "--help"]);
    }
    match verb {
        Verb::Run {
            without_cassandra,
            args,
        } => {
            begin("run")?;
            with_database("run", !without_cassandra, args)
        }
        Verb::Bars { args } => {
            begin("bars")?;
            with_database("bars", true, args)
        }
        Verb::Headline { args } => {
            begin("headline")?;
            with_database("headline", false, args)
        }
        Verb::Latte { args } => other(Generator::Latte, args),
        Verb::Ycsb { args } => other(Generator::Ycsb, args),
        Verb::Gate(args) => gate::run(args),
        Verb::Report { args, check } => {
            let mut words = vec!["report"];
            words.extend(args.iter().map(String::as_str));
            words.extend(check.then_some("--check"));
            built(&words)
        }
        Verb::Compare { first, second } => built(&["compare", first, second]),
        Verb::List => built(&["list"]),
    }
}

/// Has a load generator of others made, and measures by it.
fn other(generator: Generator, args: &[String]) -> Result<ExitCode> {
    let name = generator.name();
    begin(name)?;
    setup::ensure(generator.needs())?;
    generators::ensure(generator)?;
    let home = generators::home(name).display().to_string();
    let mut words = vec![name.to_owned(), "--home".into(), home];
    words.extend(args.iter().cloned());
    with_database("other", true, &words)
}

/// Says what is missing for a command that measures, and installs what can be.
fn begin(name: &str) -> Result<()> {
    require_root(
        &format!("bench {name}"),
        "loads BPF programs and makes cgroups",
    )?;
    setup::ensure(&[Part::Bench])
}

impl Verb {
    /// The command of `underpass-bench` whose options are asked for, which takes neither root nor a database.
    fn help(&self) -> Option<&'static str> {
        let (command, args) = match self {
            Self::Run { args, .. } => ("run", args),
            Self::Bars { args } => ("bars", args),
            Self::Headline { args } => ("headline", args),
            Self::Latte { args } | Self::Ycsb { args } => ("other", args),
            Self::Gate(args) => ("gate", &args.args),
            _ => return None,
        };
        let asks = |word: &String| ["-h", "--help"].contains(&word.as_str());
        args.iter().any(asks).then_some(command)
    }
}

/// Builds, starts Cassandra if it is wanted, runs a command of the bench, and stops the
/// Cassandra that it started.
pub fn with_database(command: &str, with_cassandra: bool, args: &[String]) -> Result<ExitCode> {
    release()?;
    if !with_cassandra {
        return without_database(command, args);
    }
    let node = cassandra::up(None)?;
    let done = bench(Built::ForRelease, command, Some(&node), args);
    if node.started {
        cassandra::down()?;
    }
    done.map(exit_code)
}

/// Runs a command of the release build of the bench.
pub fn without_database(command: &str, args: &[String]) -> Result<ExitCode> {
    bench(Built::ForRelease, command, None, args).map(exit_code)
}

/// Builds the programs for release. Returns that which measures and shows.
pub fn release() -> Result<PathBuf> {
    setup::ensure(&[Part::Build])?;
    build(&paths::root(), &paths::target())?;
    Ok(paths::target()
        .join(Built::ForRelease.folder())
        .join("underpass-bench"))
}

/// A quick run of the programs that the tests have built, which fails when a figure is absurd. Its
/// figures are compared with nothing but each other, so no release build is worth its minutes.
pub fn quick(node: &cassandra::Up) -> Result<()> {
    let status = bench(
        Built::ForTests,
        "run",
        Some(node),
        &["--quick", "--rounds", "1"].map(str::to_owned),
    )?;
    ensure!(status.success(), "the quick benchmark failed: see above");
    Ok(())
}

/// Builds the programs that are measured and those that measure, at once: each set of packages has
/// its own features of what they depend on, and would build that again.
pub fn build(source: &Path, target: &Path) -> Result<()> {
    run_command(
        cargo()
            .current_dir(source)
            .env("CARGO_TARGET_DIR", target)
            .args(["build", "--release"])
            .args(["-p", "underpass", "--bin", "underpass"])
            .args(["-p", "underpass-cql-node", "--bin", "cql-node"])
            .args(["-p", "underpass-bench", "--bin", "underpass-bench"]),
    )
    .context("the release binaries do not build")
}

/// A command that measures nothing.
fn built(words: &[&str]) -> Result<ExitCode> {
    let mut bench = cargo();
    bench
        .args(["run", "--quiet", "-p", "underpass-bench", "--"])
        .args(words)
        .env("PATH", peers::path());
    run_status(&mut bench, Forward::Group).map(exit_code)
}

/// The build that a run takes its programs from.
#[derive(Clone, Copy)]
enum Built {
    ForRelease,
    ForTests,
}

impl Built {
    /// The name of cargo's folder for it.
    fn folder(self) -> &'static str {
        match self {
            Self::ForRelease => "release",
            Self::ForTests => "debug",
        }
    }
}

/// Runs the bench to its end. It takes down by itself what it set up, so SIGTERM goes to it
/// alone and not to the agents and nodes that it started.
fn bench(
    built: Built,
    command: &str,
    node: Option<&cassandra::Up>,
    args: &[String],
) -> Result<ExitStatus> {
    let programs = paths::target().join(built.folder());
    let mut bench = Command::new(programs.join("underpass-bench"));
    bench
        .arg(command)
        .current_dir(paths::root())
        .env("PATH", peers::path());
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
