//! The node's process: known by id *and* start time, so that an id which the kernel gave
//! to somebody else in the meantime is never mistaken for it, let alone signalled.

use std::{
    fs,
    io::ErrorKind,
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{cgroup, home};
use crate::run::POLL_INTERVAL;

/// The time limit for a flush of the memtables on a busy disk; usually 5 s.
const TERM_TIME_LIMIT: Duration = Duration::from_secs(30);
/// After SIGKILL only the kernel's own work is left.
const KILL_TIME_LIMIT: Duration = Duration::from_secs(10);

/// The contents of the pid file, in this order, separated by spaces.
#[derive(Debug, PartialEq, Eq)]
pub struct Node {
    /// Process id.
    pub pid: i32,
    /// Field 22 of /proc/PID/stat: clock ticks between boot and the process's start.
    pub start_ticks: u64,
    /// The node's CQL port on 127.0.0.1.
    pub port: u16,
}

/// The running node, if the pid file names one that is still alive.
pub fn find() -> Option<Node> {
    let text = fs::read_to_string(pid_file()).ok()?;
    parse_pid_file(&text).filter(is_alive)
}

/// Writes the pid file for a process that was just started, by a rename: a reader sees all
/// of it or nothing.
pub fn remember(pid: u32, port: u16) -> Result<Node> {
    let pid = i32::try_from(pid).context("a process id beyond i32")?;
    let (_, start_ticks) = stat(pid).context("Cassandra's process ended at once")?;
    let aside = home::dir().join("pid.new");
    fs::write(&aside, format!("{pid} {start_ticks} {port}\n"))
        .and_then(|()| fs::rename(&aside, pid_file()))
        .with_context(|| format!("cannot write {}", pid_file().display()))?;
    Ok(Node {
        pid,
        start_ticks,
        port,
    })
}

/// Removes the pid file, if there is one, and what it was the last to know of.
pub fn forget() -> Result<()> {
    let text = fs::read_to_string(pid_file()).unwrap_or_default();
    if let Some(ended) = parse_pid_file(&text).filter(|node| !is_alive(node)) {
        cgroup::leave(ended.pid);
    }
    match fs::remove_file(pid_file()) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", pid_file().display()))
        }
        _ => Ok(()),
    }
}

/// Ends the process: SIGTERM, then SIGKILL. It is gone when this returns `Ok`. A signal to
/// us does not shorten it: this *is* the cleaning up.
pub fn stop(node: &Node) -> Result<()> {
    for (signal, limit) in [
        (Signal::SIGTERM, TERM_TIME_LIMIT),
        (Signal::SIGKILL, KILL_TIME_LIMIT),
    ] {
        if is_alive(node) {
            // The node may end by itself in between; the wait below tells.
            let _ = kill(Pid::from_raw(node.pid), signal);
        }
        if is_gone_within(node, limit) {
            return Ok(());
        }
        eprintln!(
            "process {} survived {signal} for {} s",
            node.pid,
            limit.as_secs()
        );
    }
    bail!("cannot end Cassandra's process {}", node.pid)
}

/// The very process that was started is there, and not merely as a zombie.
pub fn is_alive(node: &Node) -> bool {
    stat(node.pid).is_some_and(|(state, start_ticks)| {
        start_ticks == node.start_ticks && !matches!(state, 'Z' | 'X')
    })
}

fn is_gone_within(node: &Node, limit: Duration) -> bool {
    let since = Instant::now();
    while is_alive(node) {
        if since.elapsed() > limit {
            return false;
        }
        sleep(POLL_INTERVAL);
    }
    true
}

fn pid_file() -> PathBuf {
    home::dir().join("pid")
}

fn parse_pid_file(text: &str) -> Option<Node> {
    let mut words = text.split_whitespace();
    Some(Node {
        // 0 and -1 mean "many" to kill(2).
        pid: words.next()?.parse().ok().filter(|pid| *pid > 1)?,
        start_ticks: words.next()?.parse().ok()?,
        port: words.next()?.parse().ok()?,
    })
}

/// State and start time of a process.
fn stat(pid: i32) -> Option<(char, u64)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// See proc_pid_stat(5). The name, field 2, is in brackets and may hold brackets itself.
fn parse_stat(text: &str) -> Option<(char, u64)> {
    let mut after_name = text.rsplit_once(')')?.1.split_whitespace();
    let state = after_name.next()?.chars().next()?;
    // Field 3 is gone; 22 is the 19th after it.
    let start_ticks = after_name.nth(18)?.parse().ok()?;
    Some((state, start_ticks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_of_a_name_with_brackets() {
        let tail = (4..=25)
            .map(|n| n.to_string())
            .collect::<Vec<_>>()
            .join(" ");
        let text = format!("7 (a) S) b) Z {tail}");
        assert_eq!(parse_stat(&text), Some(('Z', 22)));
        assert_eq!(parse_stat("7 (a) S 1 2"), None);
    }

    #[test]
    fn pid_file_is_all_or_nothing() {
        let node = Node {
            pid: 12,
            start_ticks: 34,
            port: 9042,
        };
        assert_eq!(parse_pid_file("12 34 9042\n"), Some(node));
        for bad in [
            "",
            "12 34",
            "12 x 9042",
            "-1 34 9042",
            "0 34 9042",
            "12 34 70000",
        ] {
            assert_eq!(parse_pid_file(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn another_start_time_is_another_process() {
        let me = i32::try_from(std::process::id()).unwrap();
        let (_, start_ticks) = stat(me).unwrap();
        assert!(is_alive(&Node {
            pid: me,
            start_ticks,
            port: 1
        }));
        assert!(!is_alive(&Node {
            pid: me,
            start_ticks: start_ticks + 1,
            port: 1
        }));
    }
}
