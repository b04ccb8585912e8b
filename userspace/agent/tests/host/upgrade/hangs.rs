//! One of two agents hangs while the other one takes over.

use std::{
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{DRAINED, Host, kills::hooked};
use crate::common::*;

/// The time in which an agent that may take connections does.
const SETTLED: Duration = Duration::from_secs(1);

/// A connection takes milliseconds, and an agent that hangs is waited for for seconds.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Whether a process is stopped by a signal.
fn is_stopped(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Behind the name, which is in parentheses and may hold any.
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('T'))
}

#[test]
fn connections_are_taken_while_the_agent_before_hangs() {
    let host = Host::new();
    hooked(&host, "hangs_at=went", |mut agent| {
        let old = Pid::from_raw(agent.pid() as i32);
        thread::scope(|scope| {
            let takes_over = scope.spawn(|| agent.take_over("").unwrap());
            eventually("the old one hangs", || is_stopped(old));
            thread::sleep(SETTLED);
            let begun = Instant::now();
            host.serves();
            let took = begun.elapsed();
            kill(old, Signal::SIGCONT).unwrap();
            assert!(took < AT_ONCE, "{took:?}");
            let log = takes_over.join().unwrap().ends_within(DRAINED).unwrap();
            assert!(log.contains("why=Drained"), "{log}");
        });
        host.serves();
    });
}
