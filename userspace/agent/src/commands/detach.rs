//! `underpass detach`.

use std::{path::Path, process::ExitCode};

/// Removes what a killed agent left.
///
/// # Errors
/// An agent runs, or the pins cannot be removed.
pub fn run(pins: &Path) -> anyhow::Result<ExitCode> {
    if dataplane::detach(pins)? {
        println!("detached: the hooks pinned at {} are gone", pins.display());
    } else {
        println!("nothing is pinned at {}", pins.display());
    }
    Ok(ExitCode::SUCCESS)
}
