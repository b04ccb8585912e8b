//! `ci`: what must hold before a merge, apart from the tests.

use anyhow::{Context, Result};

use crate::{
    generate, house,
    run::{cargo, run as run_command},
};

/// The command. The first thing that does not hold ends it.
pub fn run() -> Result<()> {
    run_command(cargo().args(["fmt", "--all", "--check"]))
        .context("format: run `cargo fmt --all`")?;
    run_command(cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))
    .context("lints: see above")?;
    generate::check()?;
    house::run(&house::Args::default())?;
    eprintln!("ci: format, lints, generated files and the rules of the house are in order");
    Ok(())
}
