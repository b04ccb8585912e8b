//! The project's chores. `cargo xtask help` lists them; this file only dispatches.
//!
//! Builds with a Rust toolchain alone: what the other crates need (clang, Java, Python, Go,
//! Node.js) is looked for, and installed, by `setup`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod cassandra;
mod ci;
mod demo;
mod fuzz;
mod gate;
mod generate;
mod generators;
mod go;
mod house;
mod instructions;
mod kernels;
mod kubernetes;
mod package;
mod paths;
mod peers;
mod processor;
mod programs;
mod python;
mod run;
mod setup;
mod signals;
mod skips;
mod soak;
mod test;

/// The project's chores: set up, generate, check, test, show.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Find what this machine lacks, and install it (root on Debian) or say how
    Setup(setup::Args),
    /// Start, stop or look at one Cassandra node for tests, on 127.0.0.1
    Cassandra {
        #[command(subcommand)]
        verb: cassandra::Verb,
    },
    /// Run every test, against a real Cassandra and real drivers; needs root
    Test(test::Args),
    /// Run the tests of which `test` runs a smaller load, with all of it, or for a given time; needs root
    Soak(soak::Args),
    /// Check what must hold before a merge: format, lints, generated files up to date
    Ci,
    /// Hold the source to the rules of the house: import cycles, names, doc comments
    House(house::Args),
    /// Write ebpf/src/abi.rs from the BTF of ebpf/src/abi.h
    Generate(generate::Args),
    /// Build the release binaries and run the demo; needs root
    Demo(demo::Args),
    /// Count the decoder's instructions and hold them to the committed counts
    Instructions(instructions::Args),
    /// Feed everything that reads from outside with any bytes
    Fuzz(fuzz::Args),
    /// Boot other kernels in an emulator: what doctor says there, traffic on each path, the edge, the demo
    Kernels(kernels::Args),
    /// Lint the Helm chart, and run agents at a real API server of Kubernetes; needs root
    Kubernetes(kubernetes::Args),
    /// Make what operators install: a Debian package, its debug information, a tarball
    #[command(after_help = package::HELP)]
    Package(package::Args),
    /// Measure what the README claims, and render it there
    Bench {
        #[command(subcommand)]
        verb: bench::Verb,
    },
}

fn main() -> ExitCode {
    let chore = Cli::parse().chore;
    match signals::install().and_then(|()| dispatch(chore)) {
        Ok(code) => code,
        Err(error) => match signals::received() {
            // Whatever was going on then is not at fault: the chain would blame it.
            Some(signal) => {
                eprintln!("error: {}", error.root_cause());
                signals::exit_code(signal)
            }
            None => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}

fn dispatch(chore: Chore) -> anyhow::Result<ExitCode> {
    match chore {
        Chore::Setup(args) => setup::run(&args)?,
        Chore::Cassandra { verb } => return cassandra::run(&verb),
        Chore::Test(args) => test::run(&args)?,
        Chore::Soak(args) => soak::run(&args)?,
        Chore::Ci => ci::run()?,
        Chore::House(args) => house::run(&args)?,
        Chore::Generate(args) => generate::run(&args)?,
        Chore::Demo(args) => return demo::run(&args),
        Chore::Fuzz(args) => fuzz::run(&args)?,
        Chore::Kernels(args) => kernels::run(&args)?,
        Chore::Kubernetes(args) => kubernetes::run(&args)?,
        Chore::Package(args) => package::run(&args)?,
        Chore::Instructions(args) => instructions::run(&args)?,
        Chore::Bench { verb } => return bench::run(&verb),
    }
    Ok(ExitCode::SUCCESS)
}
