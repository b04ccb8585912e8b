//! Load generators of others, each made once into a folder of target/generators: latte from its crate, YCSB's core from Maven Central.
//!
//! `cassandra-stress` is not among them: no registry has it, neither as a jar nor as an archive.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    cassandra::COPY_JARS,
    paths,
    run::{cargo, run},
    setup::Part,
};

/// The version of latte that its report is read from.
const LATTE: &str = "0.29.0";

/// A load generator of others.
#[derive(Clone, Copy)]
pub enum Generator {
    Latte,
    Ycsb,
}

impl Generator {
    /// Returns the name for `underpass-bench other`, and of the folder.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latte => "latte",
            Self::Ycsb => "ycsb",
        }
    }

    /// Returns the parts of `setup` without which it can be neither made nor run.
    pub fn needs(self) -> &'static [Part] {
        match self {
            Self::Latte => &[Part::Generators],
            Self::Ycsb => &[Part::Generators, Part::Drivers],
        }
    }
}

/// The folder of a generator's programs.
pub fn home(name: &str) -> PathBuf {
    paths::target().join("generators").join(name)
}

/// Makes a generator, if it is not here. The first time it takes minutes.
pub fn ensure(generator: Generator) -> Result<()> {
    let name = generator.name();
    let home = home(name);
    let made = match generator {
        Generator::Latte => latte(&home),
        Generator::Ycsb => ycsb(&home),
    };
    made.with_context(|| format!("{name} cannot be made"))
}

fn latte(home: &Path) -> Result<()> {
    let stamp = home.join("version.txt");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == LATTE) {
        return Ok(());
    }
    run(cargo()
        .args([
            "install",
            "latte-cli",
            "--locked",
            "--version",
            LATTE,
            "--root",
        ])
        .arg(home)
        .arg("--target-dir")
        .arg(home.join("build")))
    .context("it needs OpenSSL's headers, and a registry of crates")?;
    copy(
        &source()?.join("workloads/basic"),
        &home.join("workloads/basic"),
    )?;
    fs::write(&stamp, LATTE).with_context(|| format!("cannot write {}", stamp.display()))
}

/// The crate's own files, where cargo has unpacked them: its workloads are not installed.
fn source() -> Result<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    let registries = home
        .context("neither CARGO_HOME nor HOME is set")?
        .join("registry/src");
    let entries = fs::read_dir(&registries)
        .with_context(|| format!("cannot read {}", registries.display()))?;
    let mut crates = entries
        .flatten()
        .map(|entry| entry.path().join(format!("latte-cli-{LATTE}")));
    crates.find(|folder| folder.is_dir()).with_context(|| {
        format!(
            "cargo has not unpacked latte-cli in {}",
            registries.display()
        )
    })
}

fn ycsb(home: &Path) -> Result<()> {
    let source = paths::root().join("bench/ycsb");
    let read = |name: &str| {
        let file = source.join(name);
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    };
    let wanted = read("pom.xml")? + &read("CqlBinding.java")?;
    // Written last: a folder without it is not complete.
    let stamp = home.join("built-from.txt");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(());
    }
    if home.exists() {
        fs::remove_dir_all(home).with_context(|| format!("cannot remove {}", home.display()))?;
    }
    let (classes, jars) = (home.join("classes"), home.join("jars"));
    fs::create_dir_all(&classes).with_context(|| format!("cannot make {}", classes.display()))?;
    run(Command::new("mvn")
        .args(["-B", "-q", "-Dstyle.color=never", "-f"])
        .arg(source.join("pom.xml"))
        .arg(COPY_JARS)
        .arg("-DincludeScope=runtime")
        .arg(format!("-DoutputDirectory={}", jars.display())))
    .context("can Maven reach a repository? Then try again")?;
    run(Command::new("javac")
        .args(["--release", "11", "-encoding", "UTF-8", "-cp"])
        .arg(jars.join("*"))
        .arg("-d")
        .arg(&classes)
        .arg(source.join("CqlBinding.java")))?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("cannot copy {} to {}", from.display(), to.display());
    fs::create_dir_all(to).with_context(failed)?;
    for entry in fs::read_dir(from).with_context(failed)? {
        let file = entry.with_context(failed)?.path();
        if let Some(name) = file.file_name() {
            fs::copy(&file, to.join(name)).with_context(failed)?;
        }
    }
    Ok(())
}
