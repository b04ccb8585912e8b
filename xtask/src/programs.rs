//! The driver suites in Go, JavaScript and Java, each built once into a folder of target/drivers.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{cassandra, go::go_in, paths, run::run};

/// A suite's language.
struct Language {
    /// The folder of its source, and of what is built.
    name: &'static str,
    /// Names the program to the tests.
    variable: &'static str,
    /// Makes `built/suite` of the source.
    build: fn(source: &Path, built: &Path) -> Result<()>,
}

const LANGUAGES: [Language; 4] = [
    Language {
        name: "go",
        variable: "UNDERPASS_GO_SUITE",
        build: go,
    },
    Language {
        name: "go-scylla",
        variable: "UNDERPASS_GO_SCYLLA_SUITE",
        build: go,
    },
    Language {
        name: "node",
        variable: "UNDERPASS_NODE_SUITE",
        build: node,
    },
    Language {
        name: "java",
        variable: "UNDERPASS_JAVA_SUITE",
        build: java,
    },
];

/// Java's options for a program that runs for seconds, beside a database and an agent: the better
/// compiler, and the threads of the other garbage collectors, would only be in their way.
const SHORT_LIVED: &str = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC";

/// Builds the programs that are not here as their source and this file want them. Returns the
/// programs, each after the environment variable that names it.
pub fn ensure() -> Result<Vec<(&'static str, PathBuf)>> {
    let sources = paths::root().join("userspace/sandbox/drivers");
    let mut programs = Vec::new();
    for language in &LANGUAGES {
        let built = paths::target().join("drivers").join(language.name);
        language
            .ensure(&sources.join(language.name), &built)
            .with_context(|| format!("cannot build the {} suite", language.name))?;
        programs.push((language.variable, built.join("suite")));
    }
    Ok(programs)
}

impl Language {
    fn ensure(&self, source: &Path, built: &Path) -> Result<()> {
        // The build's commands are in this file.
        let wanted = text_of(source)? + include_str!("programs.rs");
        // The stamp is written last: a folder without it is not complete.
        let stamp = built.join("built-from.txt");
        if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
            return Ok(());
        }
        if built.exists() {
            fs::remove_dir_all(built)
                .with_context(|| format!("cannot remove {}", built.display()))?;
        }
        fs::create_dir_all(built).with_context(|| format!("cannot make {}", built.display()))?;
        (self.build)(source, built)?;
        fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))
    }
}

/// All files of a folder, one after the other.
fn text_of(folder: &Path) -> Result<String> {
    let read = || -> std::io::Result<String> {
        let mut files = Vec::new();
        for entry in fs::read_dir(folder)? {
            files.push(entry?.path());
        }
        files.sort();
        files.iter().map(fs::read_to_string).collect()
    };
    read().with_context(|| format!("cannot read {}", folder.display()))
}

/// Modules come through Go's own cache, and are those of go.sum.
fn go(source: &Path, built: &Path) -> Result<()> {
    run(go_in(source)?
        // The build uses no C, and nothing of the checkout's history.
        .env("CGO_ENABLED", "0")
        .args(["build", "-mod=readonly", "-buildvcs=false", "-o"])
        .arg(built.join("suite"))
        .arg("."))
    .context("can it reach a module proxy? Then try again")
}

/// Packages are those of package-lock.json.
fn node(source: &Path, built: &Path) -> Result<()> {
    for name in ["package.json", "package-lock.json", "suite.js"] {
        fs::copy(source.join(name), built.join(name))
            .with_context(|| format!("cannot copy {name}"))?;
    }
    run(Command::new("npm")
        .current_dir(built)
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .args(["--loglevel", "error"]))
    .context("can npm reach a registry? Then try again")?;
    let program = built.join("suite.js");
    script(built, &format!("node {}", quoted(&program)))
}

/// Jars are those of pom.xml; the compiler is that of PATH, and so is what runs it.
fn java(source: &Path, built: &Path) -> Result<()> {
    let jars = built.join("jars");
    run(Command::new("mvn")
        .args(["-B", "-q", "-Dstyle.color=never", "-f"])
        .arg(source.join("pom.xml"))
        .arg(cassandra::COPY_JARS)
        .arg("-DincludeScope=runtime")
        .arg(format!("-DoutputDirectory={}", jars.display())))
    .context("can Maven reach a repository? Then try again")?;
    let class_path = format!("{}:{}/*", built.display(), jars.display());
    run(Command::new("javac")
        .args(["--release", "11", "-encoding", "UTF-8"])
        .args(["-cp", &class_path, "-d"])
        .arg(built)
        .arg(source.join("Suite.java")))?;
    script(
        built,
        &format!(
            "java {SHORT_LIVED} -cp {} Suite",
            quoted(Path::new(&class_path))
        ),
    )
}

/// `built/suite`, which becomes `command` with its own arguments behind.
fn script(built: &Path, command: &str) -> Result<()> {
    let program = built.join("suite");
    fs::write(&program, format!("#!/bin/sh\nexec {command} \"$@\"\n"))
        .and_then(|()| fs::set_permissions(&program, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot write {}", program.display()))
}

/// Quotes a path as one word for a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}
