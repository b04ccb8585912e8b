//! `fuzz`: runs the fuzz targets of `userspace/fuzz`.
//!
//! Little of what cargo-fuzz does is needed on a stable compiler, and is done here: compiling with coverage, and starting
//! libFuzzer on a corpus. A sanitizer, which takes a nightly compiler, would find nothing in crates without `unsafe`.
//!
//! Each run adds its processor time and its findings to `userspace/fuzz/results.json`, of which `docs/fuzzing.md` is made.

mod report;
mod results;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use results::{Results, Run};

use crate::{
    paths,
    run::{Forward, capture, cargo, find_program, run as run_command, run_status},
    signals,
};

/// The compiler's flags that libFuzzer needs (as cargo-fuzz 0.13 passes them).
const COVERAGE: [&str; 7] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions",
];

/// The longest input. Longer ones reach no code that these do not, and take longer.
const MAX_INPUT_BYTES: u32 = 4096;
/// An input that takes longer is a finding.
const MAX_INPUT_SECONDS: u32 = 10;
/// A process that takes more is one, too.
const MAX_RSS_MB: u32 = 1024;

/// Options of `fuzz`.
#[derive(clap::Args)]
pub struct Args {
    /// Only these: names of files in `userspace/fuzz/targets`
    targets: Vec<String>,
    /// The seconds that each target runs at a time
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Go on, one target after the other, until all have taken so many hours of a processor
    #[arg(long)]
    hours: Option<f64>,
    /// Afterwards, add to the committed corpus the inputs that reach new code
    #[arg(long)]
    merge: bool,
}

/// Runs the command. Findings are files in `target/fuzz/findings`, and fail it.
pub fn run(args: &Args) -> Result<()> {
    find_program("c++").context("a C++ compiler is needed for libFuzzer: install g++")?;
    let targets = wanted(&args.targets)?;
    let binaries = build(&targets)?;
    let commit = capture(Command::new("git").args(["rev-parse", "--short=8", "HEAD"]))?;
    let commit = String::from_utf8(commit)?.trim().to_owned();
    let mut found = Vec::new();
    let mut cpu_seconds = 0.0;
    loop {
        let mut has_run = false;
        for target in &targets {
            if found.contains(target) {
                continue;
            }
            let run = fuzz(&binaries.join(target), target, args)?;
            has_run = true;
            cpu_seconds += run.cpu_seconds;
            eprintln!("{target}: {run}");
            if run.findings > 0 {
                found.push(target.clone());
            }
            let mut results = Results::read()?;
            results.add(target, &commit, &run);
            results.write()?;
            signals::check()?;
        }
        let wanted = args.hours.map_or(0.0, |hours| hours * 3600.0);
        if !has_run || cpu_seconds >= wanted {
            break;
        }
    }
    if args.merge {
        for target in &targets {
            merge(&binaries.join(target), target)?;
        }
    }
    ensure!(
        found.is_empty(),
        "findings: see {} of {}",
        target_dir().join("findings").display(),
        found.join(", ")
    );
    Ok(())
}

/// All targets, or those that are named.
fn wanted(named: &[String]) -> Result<Vec<String>> {
    let all = targets()?;
    if let Some(unknown) = named.iter().find(|name| !all.contains(name)) {
        bail!(
            "there is no target {unknown}: expected one of {}",
            all.join(", ")
        );
    }
    Ok(match named.is_empty() {
        true => all,
        false => named.to_vec(),
    })
}

/// Lists the targets, by their files.
fn targets() -> Result<Vec<String>> {
    let mut names = names_in("targets", ".rs")?;
    names.sort();
    Ok(names)
}

fn names_in(folder: &str, ending: &str) -> Result<Vec<String>> {
    let folder = home().join(folder);
    let entries =
        fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        match name.strip_suffix(ending) {
            Some(name) => names.push(name.to_owned()),
            None => bail!("{} has {name}: expected *{ending}", folder.display()),
        }
    }
    Ok(names)
}

/// Gives the folder of the binaries.
fn build(targets: &[String]) -> Result<PathBuf> {
    let host = host()?;
    let target_dir = target_dir();
    // Only what needs the agent waits for it to be built.
    let mut features = "libfuzzer";
    for target in targets {
        let file = home().join("targets").join(format!("{target}.rs"));
        let text = fs::read_to_string(&file);
        let text = text.with_context(|| format!("cannot read {}", file.display()))?;
        if text.contains("::fuzzed::") {
            features = "fuzzed";
        }
    }
    let bins = targets.iter().flat_map(|target| ["--bin", target.as_str()]);
    // With a target named, the flags are not applied to build scripts, which have no libFuzzer to
    // link.
    run_command(
        cargo()
            .args(["build", "--profile", "fuzz", "--target", &host])
            .args(["-p", "underpass-fuzz", "--features", features])
            .args(bins)
            .env("CARGO_TARGET_DIR", &target_dir)
            .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\x1f")),
    )?;
    Ok(target_dir.join(host).join("fuzz"))
}

/// Runs a target for a while. A finding is a file, and no error.
fn fuzz(binary: &Path, target: &str, args: &Args) -> Result<Run> {
    let [found, committed] = corpora(target)?;
    let findings = folder(&target_dir().join("findings").join(target))?;
    let before = files(&findings)?;
    let log = folder(&target_dir().join("logs"))?.join(format!("{target}.log"));
    let log_file =
        fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut prefix = std::ffi::OsString::from("-artifact_prefix=");
    prefix.push(findings.join(""));
    let mut command = Command::new(binary);
    let dictionary = home().join("dictionaries").join(format!("{target}.dict"));
    if dictionary.exists() {
        let mut option = std::ffi::OsString::from("-dict=");
        option.push(dictionary);
        command.arg(option);
    }
    command
        .arg(format!("-max_total_time={}", args.seconds))
        .arg(format!("-max_len={MAX_INPUT_BYTES}"))
        .arg(format!("-timeout={MAX_INPUT_SECONDS}"))
        .arg(format!("-rss_limit_mb={MAX_RSS_MB}"))
        .args(["-use_value_profile=1", "-print_final_stats=1"])
        .arg(prefix)
        .args([&found, &committed])
        .stderr(log_file);
    let began = children_cpu_seconds()?;
    let status = run_status(&mut command, Forward::Child)?;
    let cpu_seconds = children_cpu_seconds()? - began;
    let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let run = Run {
        findings: (files(&findings)? - before) as u64,
        ..Run::of(cpu_seconds, &said)
    };
    ensure!(
        status.success() || run.findings > 0,
        "{target} failed ({status}): see {}",
        log.display()
    );
    Ok(run)
}

/// Keeps, of all inputs, those that reach code that others do not.
fn merge(binary: &Path, target: &str) -> Result<()> {
    let [found, _] = corpora(target)?;
    let committed = target_dir().join("committed").join(target);
    let kept = empty(&target_dir().join("kept").join(target))?;
    run_command(
        Command::new(binary)
            // Inputs are kept for the code that they reach, and not for how often: those would
            // be thousands.
            .args(["-merge=1", "-use_counters=0"])
            .args([&kept, &committed, &found]),
    )?;
    let archive = archive(target);
    corpus::gather(&kept)
        .and_then(|inputs| corpus::write(&archive, &inputs))
        .with_context(|| format!("cannot write {}", archive.display()))
}

/// Two folders: of the inputs that were found on this machine, and of the committed ones, just unpacked.
fn corpora(target: &str) -> Result<[PathBuf; 2]> {
    let archive = archive(target);
    let committed = empty(&target_dir().join("committed").join(target))?;
    // A new target has none.
    if archive.exists() {
        corpus::read(&archive)
            .and_then(|inputs| corpus::scatter(&inputs, &committed))
            .with_context(|| format!("cannot unpack {}", archive.display()))?;
    }
    let found = folder(&target_dir().join("corpus").join(target))?;
    Ok([found, committed])
}

/// The processor time of all children that have ended.
fn children_cpu_seconds() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let seconds = [usage.user_time(), usage.system_time()]
        .map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6);
    Ok(seconds.iter().sum())
}

fn files(folder: &Path) -> Result<usize> {
    Ok(fs::read_dir(folder)?.count())
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
fn archive(target: &str) -> PathBuf {
    let corpus = home().join("corpus");
    corpus.join(format!("{target}{}", corpus::ENDING))
}

/// The folder of the targets' crate.
fn home() -> PathBuf {
    paths::root().join("userspace/fuzz")
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
    use std::collections::BTreeSet;

    use super::*;

    /// The targets that the tests of crates run over their corpora: `("name", check)`.
    fn tested(folder: &Path, tested: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                self::tested(&path, tested);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let Some((_, table)) = text.split_once("corpus::hold(&[") else {
                continue;
            };
            let (table, _) = table.split_once("])").unwrap();
            let names = table.split('"').skip(1).step_by(2);
            tested.extend(names.map(str::to_owned));
        }
    }

    #[test]
    fn every_target_has_a_program_a_corpus_and_a_test() {
        let targets: BTreeSet<_> = targets().unwrap().into_iter().collect();
        let corpora = names_in("corpus", corpus::ENDING).unwrap();
        assert_eq!(corpora.into_iter().collect::<BTreeSet<_>>(), targets);
        let dictionaries = names_in("dictionaries", ".dict").unwrap();
        assert!(dictionaries.iter().all(|name| targets.contains(name)));

        let manifest = fs::read_to_string(home().join("Cargo.toml")).unwrap();
        let bins = manifest.split("[[bin]]\nname = \"").skip(1);
        let bins = bins.map(|bin| bin.split('"').next().unwrap().to_owned());
        assert_eq!(bins.collect::<BTreeSet<_>>(), targets);

        let mut with_tests = BTreeSet::new();
        for crate_folder in fs::read_dir(paths::root().join("userspace")).unwrap() {
            let source = crate_folder.unwrap().path().join("src");
            if source.exists() {
                tested(&source, &mut with_tests);
            }
        }
        assert_eq!(with_tests, targets);
    }
}
