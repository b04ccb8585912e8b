//! `underpass schema`

use std::process::ExitCode;

use anyhow::Result;

use crate::config;

/// Prints the schema.
///
/// # Errors
/// None.
pub fn run() -> Result<ExitCode> {
    say!("{:#}", config::schema());
    Ok(ExitCode::SUCCESS)
}
