//! The file that a command writes.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use anyhow::Context;

/// Makes the file that `--out` names, for its owner alone.
///
/// # Errors
/// There is one, or it cannot be made.
pub fn make(out: &Path) -> anyhow::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(out);
    file.with_context(|| format!("cannot make {}: name another by --out", out.display()))
}
