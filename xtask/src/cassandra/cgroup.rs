//! The node's own cgroup: an agent that is attached there sees the node's sockets and nobody
//! else's, as the path `shortcut` needs it.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::run::POLL_INTERVAL;

/// The kernel counts a process's last threads a moment longer than their ends can be seen.
const TIME_LIMIT: Duration = Duration::from_secs(2);

/// Moves the process there, before it opens a socket: a socket stays in the cgroup in which it,
/// or its listener, was made. The cgroup is threaded, so that it can have children with
/// processes.
pub fn enter(pid: i32) -> Result<()> {
    let path = path(pid)?;
    fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
    fs::write(path.join("cgroup.type"), "threaded")
        .and_then(|()| fs::write(path.join("cgroup.procs"), pid.to_string()))
        .with_context(|| format!("cannot move a process to {}", path.display()))
        .inspect_err(|_| leave(pid))
}

/// Removes it, if there is one, after the process has ended.
pub fn leave(pid: i32) {
    let Ok(path) = path(pid) else { return };
    let since = Instant::now();
    while path.exists()
        && let Err(error) = fs::remove_dir(&path)
    {
        if since.elapsed() > TIME_LIMIT {
            return eprintln!("{} stays: {error}", path.display());
        }
        sleep(POLL_INTERVAL);
    }
}

fn path(pid: i32) -> Result<PathBuf> {
    let output = Command::new("findmnt")
        .args([
            "--noheadings",
            "--types",
            "cgroup2",
            "--output",
            "TARGET",
            "--first-only",
        ])
        .stdin(Stdio::null())
        .output()
        .context("cannot run findmnt (package util-linux)")?;
    let root = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(!root.is_empty(), "no cgroup2 is mounted");
    Ok(PathBuf::from(root).join(format!("underpass-cassandra-{pid}")))
}
