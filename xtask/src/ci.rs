//! `ci`: what must hold before a merge, apart from the tests.

use std::{env, process::Command};

use anyhow::{Context, Result};

use crate::{
    generate, house,
    run::{cargo, run as run_command},
};

/// The variable with the program that compiles the workspace in place of the compiler. With the one that lints, one build is enough.
pub const COMPILED_BY: &str = "RUSTC_WORKSPACE_WRAPPER";

/// The command. The first thing that does not hold ends it.
pub fn run() -> Result<()> {
    run_command(cargo().args(["fmt", "--all", "--check"]))
        .context("format: run `cargo fmt --all`")?;
    run_command(&mut lints()).context("lints: see above")?;
    generate::check()?;
    house::run(&house::Args::default())?;
    eprintln!("ci: format, lints, generated files and the rules of the house are in order");
    Ok(())
}

fn lints() -> Command {
    let mut lints = cargo();
    match env::var_os(COMPILED_BY) {
        Some(_) => lints.args(["build", "--workspace", "--all-targets"]),
        None => lints.args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]),
    };
    lints
}
