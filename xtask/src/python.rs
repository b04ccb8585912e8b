//! The Python environment of the driver suites, in target/venv.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result};

use crate::{paths, run::run};

/// Makes the environment unless it is here and as requirements.txt wants it; its Python.
pub fn ensure() -> Result<PathBuf> {
    let requirements = paths::root().join("userspace/sandbox/drivers/requirements.txt");
    let wanted = fs::read_to_string(&requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    let venv = paths::target().join("venv");
    let python = venv.join("bin/python");
    // Written last: an environment without it is not complete.
    let stamp = venv.join("requirements.txt");
    // The interpreter is a link, which an upgrade of the system's Python may break.
    if python.exists() && fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(python);
    }
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&venv))
    .context("cannot make a Python environment: run `cargo xtask setup --only python`")?;
    run(Command::new(&python)
        .args([
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            "-r",
        ])
        .arg(&requirements))
    .context("pip could not install the drivers; can it reach an index? Then try again")?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(python)
}
