//! Notices to the service manager that has started the agent: the test is the service manager.

use std::{
    io::ErrorKind,
    os::unix::net::UnixDatagram,
    path::Path,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::Signal,
    time::{ClockId, clock_gettime},
};
use sandbox::{Agent, Sandbox};

use crate::common::*;

/// The time after which the agent counts as stuck.
const PATIENCE_MS: u64 = 600;

/// The socket by which a service manager is told.
pub struct Manager(UnixDatagram);

impl Manager {
    pub fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    /// The next notice.
    fn hears(&self) -> String {
        let mut bytes = [0; 4096];
        // A time limit makes a signal end the wait.
        let length = loop {
            match self.0.recv(&mut bytes) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                received => break received.unwrap(),
            }
        };
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    /// The next notice that says this.
    pub fn waits_for(&self, what: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let notice = self.hears();
            if notice.lines().any(|line| line == what) {
                return notice;
            }
            assert!(Instant::now() < deadline, "never told: {what}");
        }
    }

    /// Whether nothing is said for that long, beginning with the next silence.
    fn is_silent_for(&self, time: Duration) -> bool {
        self.0.set_nonblocking(true).unwrap();
        while self.0.recv(&mut [0; 4096]).is_ok() {}
        self.0.set_nonblocking(false).unwrap();
        self.0.set_read_timeout(Some(time)).unwrap();
        let heard = self.0.recv(&mut [0; 4096]);
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        heard.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}

fn monotonic_us() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    now.tv_sec() as u64 * 1_000_000 + now.tv_nsec() as u64 / 1000
}

#[test]
fn a_service_manager_is_told_of_the_start_of_reloads_of_life_and_of_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("notify");
    let manager = Manager::at(&socket);
    let binary = folder.path().join("underpass");
    let patience = PATIENCE_MS * 1000;
    let text = format!(
        "NOTIFY_SOCKET={} WATCHDOG_USEC={patience} exec {BINARY} \"$@\"",
        socket.display()
    );
    sandbox::program::script(&binary, &text).unwrap();
    let sandbox = Sandbox::new().unwrap();
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let policy = rule("observe", &to(&[9]));
    let mut agent = Agent::start(&binary, netns, cgroup, "max_flows = 100", &policy).unwrap();
    assert_eq!(manager.hears(), "READY=1\n");
    for _ in 0..3 {
        let alive = manager.waits_for("WATCHDOG=1");
        assert_eq!(
            alive,
            "WATCHDOG=1\nSTATUS=1 rules in force, 0 flows go through the agent\n"
        );
    }
    // An agent that does not run says nothing, and so is found out.
    agent.signal(Signal::SIGSTOP).unwrap();
    assert!(manager.is_silent_for(Duration::from_millis(PATIENCE_MS)));
    agent.signal(Signal::SIGCONT).unwrap();
    manager.waits_for("WATCHDOG=1");
    // A file with a mistake ends a reload like any other: the old policy is in force.
    for policy in [policy.replace(":9", ":10"), "?".into()] {
        agent.write_policy(&policy).unwrap();
        let before = monotonic_us();
        agent.signal(Signal::SIGHUP).unwrap();
        let reloading = manager.waits_for("RELOADING=1");
        let at = reloading
            .lines()
            .find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
        let at: u64 = at.unwrap().parse().unwrap();
        assert!((before..=monotonic_us()).contains(&at), "{reloading}");
        manager.waits_for("READY=1");
    }
    assert!(agent.stop().unwrap().success());
    assert_eq!(
        manager.waits_for("STOPPING=1"),
        "STOPPING=1\nSTATUS=detaching\n"
    );
}
