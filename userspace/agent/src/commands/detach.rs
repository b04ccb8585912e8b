//! `underpass detach`.

use std::{path::Path, process::ExitCode};

use anyhow::ensure;
use dataplane::DEFAULT_PINS;
use nix::unistd::geteuid;
use proxy::keeper;
use tokio::runtime;

use super::whereabouts::{ControlArg, must_be_read, path_in};
use crate::config::DEFAULT_FILE;

/// Removes what an agent left, at the places that its policy file names unless others are said.
///
/// # Errors
/// This is not root, an agent runs, the pins cannot be removed, or the policy file that is named cannot be read.
pub fn run(
    config: Option<&Path>,
    pins: Option<&Path>,
    control: &ControlArg,
) -> anyhow::Result<ExitCode> {
    // Whoever else asks does not see what is pinned.
    ensure!(geteuid().is_root(), "removing pins needs root: run as root");
    // What a mistyped file does not name is not taken for the usual.
    if let Some(config) = config {
        must_be_read(config)?;
    }
    let config = config.unwrap_or(Path::new(DEFAULT_FILE));
    let pins = pins.map(Path::to_owned).or_else(|| path_in(config, "pins"));
    let pins = pins.unwrap_or_else(|| DEFAULT_PINS.into());
    let control = control.find_by(config).at;
    if dataplane::detach(&pins)? {
        say!("detached: the hooks pinned at {} are gone", pins.display());
    } else {
        say!("nothing is pinned at {}", pins.display());
    }
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    for ended in runtime.block_on(keeper::end_all(&control))? {
        say!(
            "keeper {} has ended, and {} flows with it",
            ended.pid,
            ended.flows
        );
    }
    // Their connections are over now.
    dataplane::remove_routes_left();
    Ok(ExitCode::SUCCESS)
}
