//! An operator's orders are the other agent's, too, also those that are given while it takes over.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use sandbox::Agent;
use serde_json::{Value, json};

use super::{Host, underpass};
use crate::common::*;

/// A virtual address.
const VIRTUAL: &str = "10.9.0.10:9042";

/// Long enough for a command that does not wait.
const AT_ONCE: Duration = Duration::from_millis(500);

/// Gives an order by the command line, and says whether it was taken.
fn order(host: &Host, agent: &Agent<'_>, words: &[&str]) -> bool {
    let control = agent.control();
    let control = ["--control", control.to_str().unwrap()];
    underpass(host, &[words, &control].concat())
        .status
        .success()
}

fn backend(agent: &Agent<'_>, at: SocketAddr) -> Value {
    let backends = agent.json("/backends").unwrap();
    let mut backends = backends.as_array().unwrap().iter();
    backends
        .find(|one| one["backend"] == at.to_string())
        .unwrap()
        .clone()
}

#[test]
fn backends_that_are_drained_or_down_stay_so() {
    let host = Host::new();
    let (here, nowhere): (_, SocketAddr) = (host.node.addr(), "127.0.0.1:1".parse().unwrap());
    let rest = format!("to = [\"{VIRTUAL}\"]\nbackends = [\"{here}\", \"{nowhere}\"]\n");
    let (netns, cgroup) = (Some(&host.sandbox.netns), &host.sandbox.cgroup);
    let policy = rule("bypass", &rest);
    let mut agent = Agent::start(Path::new(BINARY), netns, cgroup, "", &policy).unwrap();
    let orders = [(here, "drain"), (nowhere, "down")];
    for (at, what) in orders {
        assert!(order(&host, &agent, &["backend", &at.to_string(), what]));
    }
    let _former = agent.take_over("").unwrap();
    for (at, what) in orders {
        assert_eq!(backend(&agent, at)["order"], what);
    }
    assert!(order(&host, &agent, &["backend", &here.to_string(), "up"]));
    assert_eq!(backend(&agent, here)["order"], Value::Null);
}

/// Begins to take over, and does not go on until the socket is dropped.
fn begins(agent: &Agent<'_>) -> std::os::fd::OwnedFd {
    let mut path = agent.control().into_os_string();
    path.push(".upgrade");
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(PathBuf::from(path)).unwrap()).unwrap();
    let hello = json!({"hello": {"format": 1, "version": "test", "pid": std::process::id()}});
    send(&socket, hello.to_string().as_bytes(), SendFlags::NOSIGNAL).unwrap();
    let mut welcome = vec![0; 64 << 10];
    let (_, bytes) = recv(&socket, &mut welcome[..], RecvFlags::empty()).unwrap();
    let welcome: Value = serde_json::from_slice(&welcome[..bytes]).unwrap();
    assert!(welcome["welcome"].is_object(), "{welcome}");
    socket
}

#[test]
fn a_mark_waits_until_it_is_known_which_agent_goes_on() {
    let host = Host::new();
    let agent = host.agent("");
    assert!(order(&host, &agent, &["mark", "process=one", "deny"]));
    let other = begins(&agent);
    let selectors = || {
        let marks = agent.json("/marks").unwrap();
        let marks = marks.as_array().unwrap().iter();
        marks
            .map(|mark| mark["selector"].clone())
            .collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let set = scope.spawn(|| order(&host, &agent, &["mark", "process=two", "deny"]));
        let ended = scope.spawn(|| order(&host, &agent, &["unmark", "1"]));
        thread::sleep(AT_ONCE);
        assert_eq!(
            selectors(),
            ["process=one"],
            "the other agent would not know"
        );
        drop(other);
        assert!(set.join().unwrap() && ended.join().unwrap());
    });
    assert_eq!(selectors(), ["process=two"]);
}
