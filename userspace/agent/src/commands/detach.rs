//! `underpass detach`.

use std::{path::Path, process::ExitCode};

use proxy::keeper;
use tokio::runtime;

/// Removes what an agent left.
///
/// # Errors
/// An agent runs, or the pins cannot be removed.
pub fn run(pins: &Path, control: &Path) -> anyhow::Result<ExitCode> {
    if dataplane::detach(pins)? {
        println!("detached: the hooks pinned at {} are gone", pins.display());
    } else {
        println!("nothing is pinned at {}", pins.display());
    }
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    for ended in runtime.block_on(keeper::end_all(control))? {
        println!(
            "keeper {} has ended, and {} flows with it",
            ended.pid, ended.flows
        );
    }
    // Their connections are over now.
    dataplane::remove_routes_left();
    Ok(ExitCode::SUCCESS)
}
