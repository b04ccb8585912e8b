//! `underpass pages`: man pages and shell completions, for whoever packages the program.

use std::{fs, path::Path, process::ExitCode};

use anyhow::Context as _;
use clap::{CommandFactory as _, ValueEnum as _};
use clap_complete::Shell;

use crate::cli::Cli;

/// Writes a man page for each command into `FOLDER/man`, and a file for each shell into `FOLDER/completions`.
///
/// # Errors
/// The folder cannot be written.
pub fn run(folder: &Path) -> anyhow::Result<ExitCode> {
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    for made in [&man, &completions] {
        fs::create_dir_all(made).with_context(|| format!("cannot make {}", made.display()))?;
    }
    let written = clap_mangen::generate_to(Cli::command(), &man);
    written.with_context(|| format!("cannot write to {}", man.display()))?;
    for shell in Shell::value_variants() {
        let written =
            clap_complete::generate_to(*shell, &mut Cli::command(), "underpass", &completions);
        written.with_context(|| format!("cannot write to {}", completions.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
