//! Ways past a rule that protects: what the agent cannot serve follows the rule's `fail`, and what a client brings about
//! himself does not pass whatever it says.

use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
};

use rustix::{process::Uid, thread::set_thread_res_uid};
use sandbox::{Agent, Netns, Sandbox, run_in};

use crate::common::*;

/// A user without privileges.
const USER: u32 = 1_000;

const GUARD: &str = "pipeline = [{ transform = \"guard\", refuse = [\"truncate\"] }]";

/// A database on the loopback, and an agent whose rule protects it.
struct Host {
    sandbox: Sandbox,
    listener: TcpListener,
    to: SocketAddr,
}

impl Host {
    fn new() -> Self {
        let sandbox = Sandbox::new().unwrap();
        let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
        let listener = listener.unwrap().unwrap();
        let to = listener.local_addr().unwrap();
        Self {
            sandbox,
            listener,
            to,
        }
    }

    /// `steps`: whether the rule protects; otherwise it only sorts.
    fn agent(&self, settings: &str, fail: &str, steps: &str) -> Agent<'_> {
        let (netns, cgroup) = (Some(&self.sandbox.netns), &self.sandbox.cgroup);
        let rest = format!("{}\nfail = \"{fail}\"\n{steps}", to(&[self.to.port()]));
        let policy = rule("enrich", &rest);
        Agent::start(Path::new(BINARY), netns, cgroup, settings, &policy).unwrap()
    }

    fn dial(&self) -> io::Result<TcpStream> {
        self.sandbox.client(|| TcpStream::connect(self.to)).unwrap()
    }

    /// Dials as a user without privileges, from a socket that is bound to a device.
    fn dial_bound(&self) -> io::Result<TcpStream> {
        let dial = || {
            let uid = Uid::from_raw(USER);
            set_thread_res_uid(Some(uid), Some(uid), Some(uid))?;
            let socket = socket(Family::V4);
            socket.bind_device(Some(b"lo"))?;
            socket.connect(&self.to.into())?;
            Ok(socket.into())
        };
        self.sandbox.client(dial).unwrap()
    }

    /// Whether a connection has come to the database, past the agent, or was refused.
    fn passes(&self, dialled: io::Result<TcpStream>) -> bool {
        match dialled {
            Ok(client) => {
                let (_, source) = accept(&self.listener);
                assert_eq!(source, client.local_addr().unwrap());
                true
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
                false
            }
        }
    }
}

/// Runs `body` with each value of `fail`, and whether it says that what cannot be served passes.
fn with_both(body: impl Fn(&str, bool)) {
    body("open", true);
    body("closed", false);
}

#[test]
fn what_the_agent_cannot_serve_follows_a_protecting_rules_fail() {
    with_both(|fail, passes| {
        let host = Host::new();
        let mut agent = host.agent("max_flows = 1", fail, GUARD);
        let carried = (host.dial().unwrap(), accept(&host.listener));
        assert_eq!(host.passes(host.dial()), passes, "{fail}: full");
        assert_eq!(cause(&agent, "agent_full"), 1.0);
        agent.kill().unwrap();
        drop(carried);
        assert_eq!(host.passes(host.dial()), passes, "{fail}: away");
    });
    with_both(|fail, passes| {
        let host = Host::new();
        let agent = host.agent("max_namespaces = 0", fail, GUARD);
        let container = Netns::new().unwrap();
        let bind = || TcpListener::bind(host.to);
        let listener = run_in(Some(&container), None, bind).unwrap().unwrap();
        let dial = || TcpStream::connect(host.to);
        let dialled = run_in(Some(&container), Some(&host.sandbox.cgroup), dial).unwrap();
        assert_eq!(dialled.is_ok(), passes, "{fail}: not served");
        drop((dialled, listener));
        assert_eq!(cause(&agent, "foreign_netns"), 1.0);
    });
}

#[test]
fn a_user_does_not_get_past_a_protecting_rule_by_a_device() {
    with_both(|fail, _| {
        let host = Host::new();
        let agent = host.agent("", fail, GUARD);
        assert!(!host.passes(host.dial_bound()), "{fail}");
        assert_eq!(cause(&agent, "bound_to_device"), 1.0);
    });
    // A rule that only sorts.
    with_both(|fail, passes| {
        let host = Host::new();
        let _agent = host.agent("", fail, "");
        assert_eq!(host.passes(host.dial_bound()), passes, "{fail}");
    });
}

#[test]
fn a_user_does_not_get_past_a_protecting_rule_by_his_own_quota() {
    with_both(|fail, _| {
        let host = Host::new();
        let agent = host.agent("max_flows = 8", fail, GUARD);
        let dial = || {
            let uid = Uid::from_raw(USER);
            set_thread_res_uid(Some(uid), Some(uid), Some(uid))?;
            TcpStream::connect(host.to)
        };
        let dial = || host.sandbox.client(dial).unwrap();
        let carried: Vec<_> = (0..2)
            .map(|_| (dial().unwrap(), accept(&host.listener)))
            .collect();
        assert!(!host.passes(dial()), "{fail}");
        assert_eq!(cause(&agent, "user_full"), 1.0);
        drop(carried);
    });
}

#[test]
fn a_session_rule_in_front_does_not_let_a_device_past_the_rule_behind_it() {
    let host = Host::new();
    let (netns, cgroup) = (Some(&host.sandbox.netns), &host.sandbox.cgroup);
    let to = to(&[host.to.port()]);
    let rest =
        format!("{to}\nfail = \"closed\"\n{GUARD}").replace("name = \"r\"", "name = \"rest\"");
    let policy = [
        rule(
            "enrich",
            &format!("{to}\nuser = [\"etl\"]\nfail = \"open\""),
        ),
        rule("enrich", &rest).replace("name = \"r\"", "name = \"rest\""),
    ]
    .concat();
    let agent = Agent::start(Path::new(BINARY), netns, cgroup, "", &policy).unwrap();
    assert!(!host.passes(host.dial_bound()));
    assert_eq!(cause(&agent, "bound_to_device"), 1.0);
}
