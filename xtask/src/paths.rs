//! The places of things in the checkout.

use std::{env, path::PathBuf};

/// The workspace's root: the folder above this crate.
pub fn root() -> PathBuf {
    // Cargo names the crate's present place at run time; the compiler may have seen another.
    let here = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map_or_else(|| here.clone(), PathBuf::from)
}

/// Cargo's target folder, which also holds all that the chores make.
pub fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        // Resolved as cargo does it: relative to the current folder.
        Some(dir) => std::path::absolute(&dir).unwrap_or_else(|_| PathBuf::from(dir)),
        None => root().join("target"),
    }
}
