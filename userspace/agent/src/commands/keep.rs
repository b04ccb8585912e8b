//! `underpass keep`, which the agent runs.

use std::{path::Path, process::ExitCode};

use super::run::log_to_stderr;

/// Holds flows for agents with this control socket.
///
/// # Errors
/// Nobody has started it who knows how.
pub fn run(control: &Path) -> anyhow::Result<ExitCode> {
    log_to_stderr();
    proxy::keeper::run(control)
}
