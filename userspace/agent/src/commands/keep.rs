//! `underpass keep`, which the agent runs.

use std::{path::Path, process::ExitCode};

use crate::log::{Log, LogFormat, LogLevel};

/// Holds flows for agents with this control socket.
///
/// # Errors
/// Nobody has started it who knows how.
pub fn run(control: &Path, format: LogFormat) -> anyhow::Result<ExitCode> {
    Log::begin(format, &LogLevel::default());
    proxy::keeper::run(control)
}
