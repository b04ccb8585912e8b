//! A driver's suite: a process that prints one JSON line per case.

use std::{
    cell::Cell,
    collections::BTreeMap,
    ffi::OsStr,
    io::{BufRead, BufReader, Lines},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{PoisonError, RwLock, RwLockWriteGuard},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use sandbox::{Cgroup, run_in};
use serde_json::Value;

use super::cassandra::Cassandra;

/// A suite takes five seconds; this is for a machine under load.
const LIMIT_S: &str = "300";

/// Held by suites that connect directly against those behind an agent. Of the latter the database sees the client's own
/// port, unless a direct connection has that port to the database already.
static PORTS: RwLock<()> = RwLock::new(());

thread_local! {
    /// Whether this thread keeps the others waiting.
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Keeps suites behind agents waiting, but for those of this thread, until it is dropped.
pub struct Alone(#[expect(dead_code, reason = "it is held")] RwLockWriteGuard<'static, ()>);

pub fn alone() -> Alone {
    let ports = PORTS.write().unwrap_or_else(PoisonError::into_inner);
    ALONE.set(true);
    Alone(ports)
}

impl Drop for Alone {
    fn drop(&mut self) {
        ALONE.set(false);
    }
}

/// Reports of the cases, by name.
pub type Details = BTreeMap<String, Value>;

/// Folder of the suites' sources.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../sandbox/drivers")
}

/// The command of a suite: `words`, with where the node is and who logs in.
fn command(cassandra: &Cassandra, words: &[&OsStr], args: &[&str]) -> Command {
    let Cassandra {
        addr,
        user,
        password,
    } = cassandra;
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=5", LIMIT_S])
        .args(words)
        .args(["--host", &addr.ip().to_string()])
        .args(["--port", &addr.port().to_string()])
        .args(["--user", user, "--password", password])
        .args(args);
    command
}

/// A case's name and report. It has to have passed.
fn case(line: &str) -> (String, Value) {
    let case: Value = serde_json::from_str(line).unwrap();
    assert_eq!(case["ok"], true, "{line}");
    let name = case["case"].as_str().unwrap().to_owned();
    (name, case["detail"].clone())
}

/// Runs `words` as an application, of `cgroup` if there is one; all of its cases have to pass.
pub fn run(
    cassandra: &Cassandra,
    cgroup: Option<&Cgroup>,
    words: &[&OsStr],
    args: &[&str],
) -> Details {
    let mut command = command(cassandra, words, args);
    let _apart = match cgroup {
        None => (Some(alone()), None),
        Some(_) if ALONE.get() => (None, None),
        Some(_) => (
            None,
            Some(PORTS.read().unwrap_or_else(PoisonError::into_inner)),
        ),
    };
    let output = run_in(None, cgroup, || command.output()).unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}\n{said}\n{complaints}",
        output.status
    );
    said.lines().map(case).collect()
}

/// An application that is stopped behind one of its cases.
pub struct Stopped {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    details: Details,
}

/// Runs `words` as an application of the cgroup until it has reported this case, and stops it there. Its
/// connections stay.
pub fn stopped_behind(
    last: &str,
    cassandra: &Cassandra,
    cgroup: &Cgroup,
    words: &[&OsStr],
    args: &[&str],
) -> Stopped {
    let mut command = command(cassandra, words, args);
    command.stdout(Stdio::piped());
    let mut child = run_in(None, Some(cgroup), || command.spawn())
        .unwrap()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut details = Details::new();
    while !details.contains_key(last) {
        let line = lines
            .next()
            .unwrap_or_else(|| panic!("no {last}: {details:?}"));
        details.extend([case(&line.unwrap())]);
    }
    signal_all(&child, Signal::SIGSTOP);
    Stopped {
        child,
        lines,
        details,
    }
}

impl Stopped {
    /// Has the application go on to its end; all other cases have to pass, too.
    pub fn goes_on(mut self) -> Details {
        signal_all(&self.child, Signal::SIGCONT);
        self.details
            .extend(self.lines.by_ref().map(|line| case(&line.unwrap())));
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {:?}", self.details);
        std::mem::take(&mut self.details)
    }
}

/// A test that fails leaves no process.
impl Drop for Stopped {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            signal_all(&self.child, Signal::SIGKILL);
        }
    }
}

/// To the whole group of `timeout`, which makes one.
fn signal_all(child: &Child, signal: Signal) {
    let group = Pid::from_raw(child.id().cast_signed());
    killpg(group, signal).unwrap();
}
