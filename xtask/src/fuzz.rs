//! `fuzz`: runs the fuzz targets of `cql`, `cql-edit` and `capture`.
//!
//! They are laid out as cargo-fuzz wants it, and `cargo fuzz run --sanitizer none` runs them, too.
//! On a stable compiler little of what it does is needed, and is done here: compiling with
//! coverage, and starting libFuzzer on a corpus. A sanitizer, which takes a nightly compiler, would
//! find nothing in a crate without `unsafe`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    paths,
    run::{capture, cargo, find_program, run as run_command},
};

/// The targets: a file each in `fuzz/fuzz_targets` of a crate in `userspace`.
const TARGETS: [Target; 8] = [
    Target::new("frame", "cql"),
    Target::new("segment", "cql"),
    Target::new("body", "cql"),
    Target::new("handshake", "cql"),
    Target::new("statement", "cql"),
    Target::new("edit", "cql-edit"),
    Target::new("capture", "capture"),
    Target::new("request", "capture"),
];

/// The crates that have targets.
const CRATES: [&str; 3] = ["cql", "cql-edit", "capture"];

/// A fuzz target.
#[derive(Clone, Copy)]
struct Target {
    name: &'static str,
    crate_name: &'static str,
}

impl Target {
    const fn new(name: &'static str, crate_name: &'static str) -> Self {
        Self { name, crate_name }
    }
}

/// The compiler's flags that libFuzzer needs (as cargo-fuzz 0.13 passes them).
const COVERAGE: [&str; 8] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Cdebug-assertions",
];

/// The longest input. Longer ones reach no code that these do not, and take longer.
const MAX_INPUT_BYTES: u32 = 4096;
/// An input that takes longer is a finding.
const MAX_INPUT_SECONDS: u32 = 10;
/// A process that takes more is one, too.
const MAX_RSS_MB: u32 = 1024;

/// The ending of a corpus' archive.
const ARCHIVE: &str = ".tar.gz";

/// Options of `fuzz`.
#[derive(clap::Args)]
pub struct Args {
    /// Only this one
    #[arg(value_parser = TARGETS.map(|target| target.name))]
    target: Option<String>,
    /// The seconds that each target runs
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Afterwards, add to the committed corpus the inputs that reach new code
    #[arg(long)]
    merge: bool,
}

/// Runs the command. Findings are files in `target/fuzz/findings`, and fail it.
pub fn run(args: &Args) -> Result<()> {
    find_program("c++").context("a C++ compiler is needed for libFuzzer: install g++")?;
    let wanted = |target: &Target| {
        let only = args.target.as_deref();
        only.is_none_or(|only| only == target.name)
    };
    for crate_name in CRATES {
        let targets = TARGETS.into_iter().filter(wanted);
        let targets: Vec<_> = targets.filter(|t| t.crate_name == crate_name).collect();
        if targets.is_empty() {
            continue;
        }
        let binaries = build(crate_name)?;
        for target in targets {
            fuzz(&binaries.join(target.name), target, args)?;
        }
    }
    Ok(())
}

/// Gives the folder of the binaries.
fn build(crate_name: &str) -> Result<PathBuf> {
    let host = host()?;
    let target_dir = target_dir();
    // With a target named, the flags are not applied to build scripts, which have no libFuzzer to
    // link.
    run_command(
        cargo()
            .args(["build", "--release", "--bins", "--target", &host])
            .arg("--manifest-path")
            .arg(fuzz_dir(crate_name).join("Cargo.toml"))
            .env("CARGO_TARGET_DIR", &target_dir)
            .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\x1f")),
    )?;
    Ok(target_dir.join(host).join("release"))
}

fn fuzz(binary: &Path, target: Target, args: &Args) -> Result<()> {
    let home = fuzz_dir(target.crate_name);
    let name = target.name;
    let archive = archive(target);
    let committed = empty(&target_dir().join("committed").join(name))?;
    let inputs = corpus::read(&archive);
    inputs
        .and_then(|inputs| corpus::scatter(&inputs, &committed))
        .with_context(|| format!("cannot unpack {}", archive.display()))?;
    let found = folder(&target_dir().join("corpus").join(name))?;
    let findings = folder(&target_dir().join("findings").join(name))?;
    let mut prefix = std::ffi::OsString::from("-artifact_prefix=");
    prefix.push(findings.join(""));
    let mut command = Command::new(binary);
    let dictionary = home.join(format!("{name}.dict"));
    if dictionary.exists() {
        let mut option = std::ffi::OsString::from("-dict=");
        option.push(dictionary);
        command.arg(option);
    }
    run_command(
        command
            .arg(format!("-max_total_time={}", args.seconds))
            .arg(format!("-max_len={MAX_INPUT_BYTES}"))
            .arg(format!("-timeout={MAX_INPUT_SECONDS}"))
            .arg(format!("-rss_limit_mb={MAX_RSS_MB}"))
            .args(["-use_value_profile=1", "-print_final_stats=1"])
            .arg(prefix)
            .args([&found, &committed]),
    )
    .with_context(|| format!("{name}: see {}", findings.display()))?;
    if args.merge {
        run_command(
            Command::new(binary)
                // Inputs are kept for the code that they reach, and not for how often: those would
                // be thousands.
                .args(["-merge=1", "-use_counters=0"])
                .args([&committed, &found]),
        )?;
        corpus::gather(&committed)
            .and_then(|inputs| corpus::write(&archive, &inputs))
            .with_context(|| format!("cannot write {}", archive.display()))?;
    }
    Ok(())
}

fn folder(path: &Path) -> Result<PathBuf> {
    fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path.to_owned())
}

/// Makes a folder in which nothing is.
fn empty(path: &Path) -> Result<PathBuf> {
    if path.exists() {
        fs::remove_dir_all(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    folder(path)
}

/// The committed inputs of a target.
fn archive(target: Target) -> PathBuf {
    let corpus = fuzz_dir(target.crate_name).join("corpus");
    corpus.join(format!("{}{ARCHIVE}", target.name))
}

fn fuzz_dir(crate_name: &str) -> PathBuf {
    paths::root()
        .join("userspace")
        .join(crate_name)
        .join("fuzz")
}

fn target_dir() -> PathBuf {
    paths::target().join("fuzz")
}

fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = String::from_utf8(capture(Command::new(rustc).arg("-vV"))?)?;
    match said.lines().find_map(|line| line.strip_prefix("host: ")) {
        Some(host) => Ok(host.to_owned()),
        None => bail!("rustc does not say what it compiles for"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_target_has_a_file_and_a_corpus() {
        for crate_name in CRATES {
            let names = |folder: &str, ending: &str| {
                let entries = fs::read_dir(fuzz_dir(crate_name).join(folder)).unwrap();
                let name = |entry: std::io::Result<fs::DirEntry>| {
                    let name = entry.unwrap().file_name().into_string().unwrap();
                    name.strip_suffix(ending).unwrap().to_owned()
                };
                entries.map(name).collect::<BTreeSet<_>>()
            };
            let targets = TARGETS.iter().filter(|t| t.crate_name == crate_name);
            let targets: BTreeSet<_> = targets.map(|t| t.name.to_owned()).collect();
            assert_eq!(names("fuzz_targets", ".rs"), targets);
            assert_eq!(names("corpus", ARCHIVE), targets);
        }
    }
}
