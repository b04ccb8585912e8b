//! `bench gate`: builds the agent of a base commit beside the working tree's, and has `underpass-bench` compare them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, ensure};

use crate::{
    bench, paths,
    run::{capture, require_root, run as run_command},
    setup::{self, Part},
};

/// Options of `gate`.
#[derive(clap::Args)]
pub struct Args {
    /// The commit to compare with [default: the merge base with main]
    #[arg(long, value_name = "COMMIT")]
    base: Option<String>,
    /// Passed to `underpass-bench gate` (`-- --help` shows what it takes)
    #[arg(last = true)]
    pub args: Vec<String>,
}

/// The branch that changes land on.
const MAIN: &str = "main";

/// Builds both, and compares. Returns the bench's own exit code.
pub fn run(args: &Args) -> Result<ExitCode> {
    require_root("bench gate", "loads BPF programs and makes cgroups")?;
    setup::ensure(&[Part::Bench])?;
    let commit = base(args.base.as_deref())?;
    eprintln!("base: {commit}");
    let source = checked_out(&commit)?;
    let target = folder().join("target");
    bench::build(&source, &target).with_context(|| format!("the base {commit} does not build"))?;
    bench::release()?;
    let agent = target.join("release/underpass").display().to_string();
    let mut words = vec![agent];
    words.extend(args.args.iter().cloned());
    bench::without_database("gate", &words)
}

/// The folder of all that belongs to the base; kept, so that the next base is built from where this one differs.
fn folder() -> PathBuf {
    paths::target().join("bench/base")
}

/// The commit to compare with.
fn base(wanted: Option<&str>) -> Result<String> {
    let said = match wanted {
        Some(commit) => git(
            &paths::root(),
            &["rev-parse", "--verify", &format!("{commit}^{{commit}}")],
        ),
        None => git(&paths::root(), &["merge-base", "HEAD", MAIN]),
    };
    let commit = said.context("no commit to compare with: name one with --base COMMIT")?;
    if wanted.is_none() {
        let changed = git(&paths::root(), &["diff", "--name-only", &commit])?;
        ensure!(
            !changed.is_empty(),
            "nothing has changed since {MAIN}: name another commit with --base COMMIT"
        );
    }
    Ok(commit)
}

/// A worktree of its own with this commit.
fn checked_out(commit: &str) -> Result<PathBuf> {
    let source = folder().join("source");
    if source.join("Cargo.toml").exists() {
        let mut checkout = Command::new("git");
        run_command(
            checkout
                .arg("-C")
                .arg(&source)
                .args(["checkout", "--quiet", "--force", "--detach", commit]),
        )?;
        return Ok(source);
    }
    fs::create_dir_all(folder())?;
    let mut add = Command::new("git");
    // One that was removed with `target` is still registered: --force takes its place.
    add.arg("-C")
        .arg(paths::root())
        .args(["worktree", "add", "--quiet", "--force", "--detach"])
        .arg(&source)
        .arg(commit);
    run_command(&mut add).context("git cannot check the base out")?;
    Ok(source)
}

fn git(folder: &Path, words: &[&str]) -> Result<String> {
    let said = capture(Command::new("git").arg("-C").arg(folder).args(words))?;
    Ok(String::from_utf8_lossy(&said).trim().to_owned())
}
