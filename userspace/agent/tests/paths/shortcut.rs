//! The shortcut: bytes skip TCP between two sockets of this host, and neither application notices
//! but where this file says so.

mod asks;
mod bounds;
mod listed;
mod resets;
mod seen;
mod storms;

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

use dataplane::probe_traffic::Random;
use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
    signal::Signal,
};
use sandbox::{Agent, pattern, run_in};
use socket2::{Domain, Protocol, Socket, Type};

use crate::common::*;

/// `UP_SHORTCUT_FLOW_BYTES`.
const FLOW_BYTES: usize = 1 << 20;

/// `UP_SHORTCUT_MARKS` times `UP_SHORTCUT_MARK_STEP`.
const FLOW_MESSAGES: u64 = 1024;

/// A database beneath the cgroup that the agent is attached to.
fn listen(hosts: &Hosts, family: Family) -> TcpListener {
    hosts.client(|| TcpListener::bind((family.loopback(), 0)).unwrap())
}

fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().unwrap().port()
}

fn shortcut(ports: &[u16]) -> String {
    rule("bypass", &format!("{}\nshortcut = true", to(ports)))
}

fn pair(hosts: &Hosts, listener: &TcpListener, family: Family) -> (TcpStream, TcpStream) {
    let dialled = family.dialled(family.loopback(), port(listener));
    let client = hosts.client(|| connect(family, dialled).unwrap());
    let (server, _) = accept(listener);
    for end in [&client, &server] {
        end.set_nodelay(true).unwrap();
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        end.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (client, server)
}

fn messages(agent: &Agent<'_>, way: &str) -> u64 {
    let name = format!("underpass_shortcut_messages_total{{way=\"{way}\"}}");
    agent.metric(&name).unwrap() as u64
}

fn bytes(agent: &Agent<'_>, way: &str) -> u64 {
    let name = format!("underpass_shortcut_bytes_total{{way=\"{way}\"}}");
    agent.metric(&name).unwrap() as u64
}

fn flows(agent: &Agent<'_>) -> u64 {
    agent.metric("underpass_shortcut_flows").unwrap() as u64
}

fn safer(agent: &Agent<'_>, cause: &str) -> u64 {
    let name = format!("underpass_safer_path_total{{cause=\"{cause}\"}}");
    agent.metric(&name).unwrap() as u64
}

/// One of TCP's counters in the hosts' namespace, by its name in `/proc/net/netstat`.
fn tcp_counter(hosts: &Hosts, name: &str) -> u64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let netstat = hosts.client(read);
    let lines: Vec<&str> = netstat
        .lines()
        .filter(|l| l.starts_with("TcpExt:"))
        .collect();
    let [names, values] = lines[..] else {
        panic!("{netstat}");
    };
    let mut both = names.split(' ').zip(values.split(' '));
    let (_, value) = both.find(|(found, _)| *found == name).unwrap();
    value.parse().unwrap()
}

fn exchange(client: &mut TcpStream, server: &mut TcpStream) {
    let mut seen = [0; 8];
    for _ in 0..100 {
        client.write_all(b"question").unwrap();
        server.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"question");
        server.write_all(b"response").unwrap();
        client.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"response");
    }
}

#[test]
fn both_ends_of_every_family_take_it() {
    let hosts = Hosts::new();
    let listeners = FAMILIES.map(|family| (family, listen(&hosts, family)));
    let ports: Vec<u16> = listeners.iter().map(|(_, l)| port(l)).collect();
    let other = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&ports));
    let mut open = Vec::new();
    for (n, (family, listener)) in listeners.iter().enumerate() {
        let before = messages(&agent, "shortcut");
        let (mut client, mut server) = pair(&hosts, listener, *family);
        exchange(&mut client, &mut server);
        assert_eq!(messages(&agent, "shortcut") - before, 200, "{family:?}");
        assert_eq!(flows(&agent), n as u64 + 1, "{family:?}");
        open.push((client, server));
    }
    // Nobody else's socket is touched.
    let before = agent.metrics().unwrap();
    let (mut client, mut server) = pair(&hosts, &other, Family::V4);
    exchange(&mut client, &mut server);
    assert_eq!(flows(&agent), 3);
    let after = agent.metrics().unwrap();
    for (name, value) in before.iter().filter(|(n, _)| n.contains("_shortcut_")) {
        assert_eq!(after.get(name), Some(value), "{name}");
    }
    drop(open);
    eventually("all flows are gone", || flows(&agent) == 0);
}

#[test]
fn what_is_not_beneath_the_cgroup_or_not_here_stays_on_tcp() {
    let hosts = Hosts::new();
    let unseen = hosts.listen(Distance::Here, Family::V4);
    let far = hosts.listen(Distance::There, Family::V4);
    let elsewhere = || TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let elsewhere = run_in(Some(&hosts.database), Some(&hosts.app.cgroup), elsewhere).unwrap();
    let agent = hosts.agent(&shortcut(&[port(&unseen), port(&far), port(&elsewhere)]));

    let (mut client, mut server) = pair(&hosts, &unseen, Family::V4);
    exchange(&mut client, &mut server);
    assert_eq!(messages(&agent, "alone"), 100);

    let to = far.local_addr().unwrap();
    let mut client = hosts.client(|| connect(Family::V4, to).unwrap());
    exchange(&mut client, &mut accept(&far).0);
    assert_eq!(safer(&agent, "shortcut_remote"), 1);

    let to = elsewhere.local_addr().unwrap();
    let dial = || connect(Family::V4, to).unwrap();
    let mut client = run_in(Some(&hosts.database), Some(&hosts.app.cgroup), dial).unwrap();
    exchange(&mut client, &mut accept(&elsewhere).0);
    assert_eq!(safer(&agent, "foreign_netns"), 1);
    assert_eq!((flows(&agent), messages(&agent, "shortcut")), (0, 0));
}

/// On a kernel that cannot have it.
#[test]
fn without_the_shortcut_flows_stay_on_tcp() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let policy = shortcut(&[port(&listener)]);
    let agent = hosts.switched("UNDERPASS_TEST_HOOKS=without=shortcut", "", &policy);
    let reason = "UNDERPASS_TEST_HOOKS names it";
    let off = format!("underpass_path_available{{path=\"shortcut\",reason=\"{reason}\"}}");
    eventually("it is said", || {
        agent.metrics().unwrap().get(&off) == Some(&0.0)
    });
    let said = agent.wait_for_log("path=\"shortcut\"").unwrap();
    assert!(
        said.contains("path is off") && said.contains(reason),
        "{said}"
    );
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    exchange(&mut client, &mut server);
    assert_eq!(safer(&agent, "shortcut_off"), 1);
    assert_eq!((flows(&agent), messages(&agent, "shortcut")), (0, 0));
}

/// Multipath TCP: its subflows are TCP sockets, of which nobody reads.
#[test]
fn multipath_tcp_stays_on_tcp() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&listener)]));
    let to = listener.local_addr().unwrap();
    let mut client: TcpStream = hosts.client(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).unwrap();
        socket.connect(&to.into()).unwrap();
        socket.into()
    });
    let (mut server, _) = accept(&listener);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(safer(&agent, "shortcut_refused"), 1);
    assert_eq!((flows(&agent), messages(&agent, "shortcut")), (0, 0));
}

/// kTLS that is set up on a flow that takes the shortcut, which the kernel need not have: a switch
/// has the database's socket pass for such. What either end sends takes TCP.
#[test]
fn what_is_encrypted_after_its_enrolment_takes_tcp() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let switch = format!("UNDERPASS_TEST_HOOKS=upper_layer_port={}", port(&listener));
    let agent = hosts.switched(&switch, "", &shortcut(&[port(&listener)]));
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    assert_eq!(flows(&agent), 1);
    exchange(&mut client, &mut server);
    assert_eq!(messages(&agent, "upper_layer"), 200);
    assert_eq!(messages(&agent, "shortcut"), 0);
}

#[derive(Clone, Copy, Debug)]
enum Reader {
    Blocks,
    /// Told by levels.
    Polls,
    /// Told by edges, and takes a short read for the end.
    TrustsEdges,
}

/// A policy that no longer asks for it leaves flows where they are.
#[test]
fn rules_come_and_go() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&rule("bypass", &to(&[port(&listener)])));
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    exchange(&mut client, &mut server);
    assert_eq!(flows(&agent), 0);
    agent.write_policy(&shortcut(&[port(&listener)])).unwrap();
    agent.signal(Signal::SIGHUP).unwrap();
    agent.wait_for_log("policy reloaded").unwrap();
    let (mut on, mut its) = pair(&hosts, &listener, Family::V4);
    exchange(&mut on, &mut its);
    exchange(&mut client, &mut server);
    assert_eq!((flows(&agent), messages(&agent, "shortcut")), (1, 200));
    let policy = rule("bypass", &to(&[port(&listener)]));
    agent.write_policy(&policy).unwrap();
    eventually("it is read", || {
        agent.log().matches("policy reloaded").count() == 2
    });
    exchange(&mut on, &mut its);
    let (mut off, mut offs) = pair(&hosts, &listener, Family::V4);
    exchange(&mut off, &mut offs);
    assert_eq!((flows(&agent), messages(&agent, "shortcut")), (1, 400));
}

fn ready(epoll: &Epoll, ms: u16) -> usize {
    let limit = EpollTimeout::from(ms);
    epoll.wait(&mut [EpollEvent::empty()], limit).unwrap()
}
