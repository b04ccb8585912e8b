//! Other programs: finding them, saying what runs, passing on the signals that we get.

use std::{
    env, fmt,
    io::ErrorKind,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::{Pid, geteuid},
};

use crate::{paths, signals};

/// The interval at which a wait looks at the child and at the signal flag.
pub const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The time limit for a child to end after SIGTERM: a demo takes its namespaces down.
const TERM_GRACE: Duration = Duration::from_secs(30);
/// The folders in which Debian keeps bpftool and ip, which a plain user's PATH leaves out.
const SBIN: [&str; 2] = ["/usr/sbin", "/sbin"];
/// How variables begin in which cargo says what package it runs.
const OF_THIS_PACKAGE: [&str; 2] = ["CARGO_MANIFEST_", "CARGO_PKG_"];

/// The processes that get SIGTERM when we are asked to end.
#[derive(Clone, Copy)]
pub enum Forward {
    /// The child and all its descendants: cargo does not pass signals on to tests.
    Group,
    /// The child alone, which takes care of its own.
    Child,
}

/// Prints a command, runs it to its end, and fails unless it succeeds.
pub fn run(command: &mut Command) -> Result<()> {
    let status = run_status(command, Forward::Group)?;
    must_succeed(command, status)
}

/// Says what it runs, runs it to its end. An error when it cannot start, or when a signal
/// told us to end meanwhile: then the child was told too and is gone.
pub fn run_status(command: &mut Command, forward: Forward) -> Result<ExitStatus> {
    signals::check()?;
    eprintln!("+ {}", Shown(command));
    // The child has a group of its own: a Ctrl-C at the terminal then reaches us alone, and the
    // child once.
    let child = command.stdin(Stdio::null()).process_group(0).spawn();
    let mut child = child.map_err(|error| not_started(command, &error))?;
    wait(&mut child, forward)
}

/// Returns the output of a command that succeeds. Prints nothing; the command's complaints pass
/// through.
pub fn capture(command: &mut Command) -> Result<Vec<u8>> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    let output = output.map_err(|error| not_started(command, &error))?;
    must_succeed(command, output.status)?;
    Ok(output.stdout)
}

/// `cargo` in the workspace's root: the one that runs us. What that one says of this package is not for build scripts: they would
/// run anew whenever the same build is called for by hand.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(paths::root());
    for (name, _) in env::vars_os() {
        let is_ours = |name: &str| OF_THIS_PACKAGE.iter().any(|ours| name.starts_with(ours));
        if name.to_str().is_some_and(is_ours) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// The first executable of this name on PATH or in an sbin folder.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SBIN.into_iter().map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| is_executable(file))
}

/// Fails with one line for a user who is not root, and the reason why root is needed.
pub fn require_root(chore: &str, reason: &str) -> Result<()> {
    ensure!(
        geteuid().is_root(),
        "`cargo xtask {chore}` {reason}: run it as root"
    );
    Ok(())
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata()
        .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Names the program only: its whole line was shown when it started.
fn must_succeed(command: &Command, status: ExitStatus) -> Result<()> {
    let program = command.get_program().to_string_lossy();
    ensure!(status.success(), "{program} failed ({status})");
    Ok(())
}

fn not_started(command: &Command, error: &std::io::Error) -> anyhow::Error {
    let program = command.get_program().to_string_lossy();
    if error.kind() == ErrorKind::NotFound {
        return anyhow::anyhow!("{program} was not found: run `cargo xtask setup`");
    }
    anyhow::anyhow!("cannot run {program}: {error}")
}

/// Waits as long as it takes, because a test run has no bound of ours; but not for ever once a
/// signal told us, and we the child, to end.
fn wait(child: &mut Child, forward: Forward) -> Result<ExitStatus> {
    let pid = Pid::from_raw(i32::try_from(child.id()).context("a process id beyond i32")?);
    let mut told_at: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a child")? {
            signals::check()?;
            return Ok(status);
        }
        match told_at {
            None if signals::received().is_some() => {
                // The child may have ended just now: then there is nobody to tell.
                let _ = match forward {
                    Forward::Group => killpg(pid, Signal::SIGTERM),
                    Forward::Child => kill(pid, Signal::SIGTERM),
                };
                told_at = Some(Instant::now());
            }
            Some(at) if at.elapsed() > TERM_GRACE => {
                let _ = killpg(pid, Signal::SIGKILL);
                let _ = child.wait();
                bail!(
                    "it did not end {} s after SIGTERM: killed",
                    TERM_GRACE.as_secs()
                );
            }
            _ => {}
        }
        sleep(POLL_INTERVAL);
    }
}

/// A command as one would type it, as far as that is plain.
struct Shown<'a>(&'a Command);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = Path::new(self.0.get_program());
        let name = program.file_name().unwrap_or(self.0.get_program());
        write!(f, "{}", name.to_string_lossy())?;
        for arg in self.0.get_args() {
            write!(f, " {}", arg.to_string_lossy())?;
        }
        Ok(())
    }
}
