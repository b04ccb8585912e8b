//! Removal of everything that a dead agent has left: pins, and with them hooks, and routing.

use std::{fs, path::Path};

use crate::{
    gateway, host, incoming,
    pins::{PinsError, at, folders, lock, namespaces, remove_folder},
};

/// Removes the pins that a dead agent left beneath `root`, and with them its hooks; if it steered
/// incoming connections or took virtual addresses, also the routing that it left in their namespaces.
/// Returns whether there were any.
///
/// # Errors
/// An agent that runs holds them; or the file system's.
pub fn detach(root: &Path) -> Result<bool, PinsError> {
    if !root.exists() {
        return Ok(false);
    }
    if !host::is_bpffs(root) {
        return Err(PinsError::NotBpffs(root.to_owned()));
    }
    let _lock = lock(root)?;
    for folder in folders(root)? {
        let pins = folders(&folder)?;
        let steered = pins.iter().any(|pin| incoming::is_pin(pin));
        let took = pins.iter().any(|pin| gateway::is_pin(pin));
        let touched = namespaces(&folder)?;
        remove_folder(&folder)?;
        if steered {
            incoming::remove_unwanted_routes(&[], &touched);
        }
        if took {
            gateway::remove_routes();
        }
    }
    fs::remove_dir(root).map_err(at(root))?;
    Ok(true)
}
