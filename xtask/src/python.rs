//! The Python environments of the driver suites: target/venv, and target/venv-scylla for ScyllaDB's fork of the driver,
//! which has the same module's name.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{paths, run::run};

/// The environments: the variable that names one's Python to the tests, the folder, the file of what it has.
const ENVIRONMENTS: [(&str, &str, &str); 2] = [
    ("UNDERPASS_PYTHON", "venv", "requirements.txt"),
    (
        "UNDERPASS_SCYLLA_PYTHON",
        "venv-scylla",
        "requirements-scylla.txt",
    ),
];

/// Makes the environments unless they are here and as their files want them. Returns each one's Python, behind the
/// variable that names it.
pub fn ensure() -> Result<Vec<(&'static str, PathBuf)>> {
    let drivers = paths::root().join("userspace/sandbox/drivers");
    let all = ENVIRONMENTS.iter();
    all.map(|(variable, folder, file)| Ok((*variable, ensure_one(folder, &drivers.join(file))?)))
        .collect()
}

/// Makes an environment in a folder of `target` unless it is here and as this file of requirements wants it. Returns its
/// Python.
pub fn ensure_one(folder: &str, requirements: &Path) -> Result<PathBuf> {
    let wanted = fs::read_to_string(requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    let venv = paths::target().join(folder);
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
        .arg(requirements))
    .context("pip could not install them; can it reach an index? Then try again")?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(python)
}
