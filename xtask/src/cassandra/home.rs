//! The folder target/cassandra: its parts, and the lock that lets one command change them.

use std::{
    fs::{self, File, OpenOptions},
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

use crate::{paths, run::POLL_INTERVAL, signals};

/// The longest that another `up` may hold the lock: a slow download and a cold start.
const LOCK_TIME_LIMIT: Duration = Duration::from_secs(600);
/// Enough for a stack trace and what led to it.
const TAIL_LINES: usize = 30;

/// The folder, which may not exist yet.
pub fn dir() -> PathBuf {
    paths::target().join("cassandra")
}

/// The node's log; the one of the start before has `.1` at its end.
pub fn log() -> PathBuf {
    dir().join("system.log")
}

/// The folder of the node's data, which is kept from start to start.
pub fn data() -> PathBuf {
    dir().join("data")
}

/// Takes the lock for starting or stopping the node. Waits for another holder. The kernel releases
/// it with its process, and the node does not inherit it.
pub fn lock() -> Result<Flock<File>> {
    let path = dir().join("lock");
    fs::create_dir_all(dir()).with_context(|| format!("cannot make {}", dir().display()))?;
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    let mut file = file.with_context(|| format!("cannot open {}", path.display()))?;
    // When we clean up after a signal, that same signal is no reason to stop.
    let cleaning_up = signals::received().is_some();
    let mut said = false;
    let since = Instant::now();
    while since.elapsed() < LOCK_TIME_LIMIT {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((back, Errno::EWOULDBLOCK)) => file = back,
            Err((_, error)) => bail!("cannot lock {}: {error}", path.display()),
        }
        if !said {
            eprintln!("waiting for another `cargo xtask cassandra` to finish");
            said = true;
        }
        if !cleaning_up {
            signals::check()?;
        }
        sleep(POLL_INTERVAL);
    }
    bail!(
        "another `cargo xtask cassandra` still holds {}",
        path.display()
    )
}

/// The log's last lines, under a heading, for an error's reader.
pub fn show_log_tail() {
    let text = fs::read(log()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(TAIL_LINES);
    eprintln!("--- the end of {}:", log().display());
    for line in lines.iter().skip(from) {
        eprintln!("{line}");
    }
    eprintln!("---");
}
