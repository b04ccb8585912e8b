//! `underpass log`.

use std::process::ExitCode;

use serde_json::json;

use super::{control::ask, flows::shown, whereabouts::Control};
use crate::log::LogLevel;

/// Shows the level of a running agent's log, or puts another into force.
///
/// # Errors
/// No agent answers, or this is not root.
pub fn run(level: Option<&LogLevel>, control: &Control) -> anyhow::Result<ExitCode> {
    match level {
        None => say!("{}", shown(&ask(control, "GET", "/log", "")?, "level")),
        Some(level) => {
            let wanted = json!({"level": level.to_string()}).to_string();
            let answer = ask(control, "POST", "/log", &wanted)?;
            say!(
                "{} (before: {})",
                shown(&answer, "level"),
                shown(&answer, "before")
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}
