//! Maps that are full: a flow for which there is no room takes the next safer path, the cause is
//! counted, and the room is there again when others have ended.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use integrity::{Choices, Cql, Options, Plan, Report, Server, drive};
use nix::sys::signal::Signal;
use sandbox::Agent;

use crate::common::*;

const ENTRIES: usize = 8;
const SMALL: &str = "UNDERPASS_TEST_HOOKS=entries=8";
/// The canary's flows, one after the other, fit beside those that lie fallow for a second.
const SMALL_BUT_FOR_THE_CANARY: &str = "UNDERPASS_TEST_HOOKS=entries=32";

fn safer(agent: &Agent<'_>, cause: &str) -> f64 {
    let name = format!("underpass_safer_path_total{{cause=\"{cause}\"}}");
    agent.metric(&name).unwrap()
}

/// Both ends of connections to `listener`, whose process is in the cgroup that the agent serves.
fn pairs(hosts: &Hosts, listener: &TcpListener, count: usize) -> Vec<(TcpStream, TcpStream)> {
    let to = listener.local_addr().unwrap();
    let pair = |_| {
        let client = hosts.client(|| connect(Family::V4, to).unwrap());
        (client, accept(listener).0)
    };
    (0..count).map(pair).collect()
}

/// A frame and its answer on each.
fn exchange(pairs: &mut [(TcpStream, TcpStream)]) {
    for (client, server) in pairs {
        client.write_all(&options(1)).unwrap();
        let mut asked = [0; 9];
        server.read_exact(&mut asked).unwrap();
        assert_eq!(asked, options(1));
        server.write_all(&supported(1)).unwrap();
        let mut answered = [0; 11];
        client.read_exact(&mut answered).unwrap();
        assert_eq!(answered, supported(1));
    }
}

#[test]
fn flows_that_cannot_be_observed_are_bypassed() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::Here, Family::V4);
    let port = listener.local_addr().unwrap().port();
    let agent = hosts.switched(SMALL, "", &rule("observe", &to(&[port])));
    let mut open = pairs(&hosts, &listener, 12);
    exchange(&mut open);
    assert_eq!(
        agent.json("/flows").unwrap().as_array().unwrap().len(),
        ENTRIES
    );
    assert_eq!(safer(&agent, "meters_full"), 4.0);
    drop(open);
    eventually("what has ended is forgotten", || {
        agent.json("/flows").unwrap().as_array().unwrap().is_empty()
    });
    let mut later = pairs(&hosts, &listener, ENTRIES);
    exchange(&mut later);
    assert_eq!(
        agent.json("/flows").unwrap().as_array().unwrap().len(),
        ENTRIES
    );
    assert_eq!(safer(&agent, "meters_full"), 4.0);
}

#[test]
fn flows_for_which_the_shortcut_has_no_room_stay_on_tcp() {
    let hosts = Hosts::new();
    // Beneath the cgroup that the agent is attached to.
    let listener = hosts.client(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let port = listener.local_addr().unwrap().port();
    let policy = rule("bypass", &format!("{}\nshortcut = true", to(&[port])));
    let agent = hosts.switched(SMALL, "", &policy);
    // On a machine that stands still for seconds the canary may run out of time: then this says so.
    agent.wait_for_log("path works path=\"shortcut\"").unwrap();
    let flows = || agent.metric("underpass_shortcut_flows").unwrap();
    let mut open = pairs(&hosts, &listener, 12);
    exchange(&mut open);
    // Each has two ends.
    assert_eq!(flows(), ENTRIES as f64 / 2.0);
    assert!(safer(&agent, "shortcuts_full") >= 8.0);
    let listed = agent.json("/flows").unwrap();
    let told = |why: &str| {
        let mut all = listed.as_array().unwrap().iter();
        all.by_ref()
            .filter(|f| f["why"].as_str().unwrap().contains(why))
            .count()
    };
    let on_it = told("wants the shortcut") - told("wants the shortcut: ");
    assert_eq!(
        (on_it, told("shortcuts_full, ")),
        (ENTRIES / 2, 12 - ENTRIES / 2),
        "{listed}"
    );
    drop(open);
    eventually("what has ended is forgotten", || flows() == 0.0);
    let before = safer(&agent, "shortcuts_full");
    let mut later = pairs(&hosts, &listener, ENTRIES / 2);
    exchange(&mut later);
    assert_eq!(flows(), ENTRIES as f64 / 2.0);
    assert_eq!(safer(&agent, "shortcuts_full"), before);
}

/// Entries that a client's end leaves behind for an end of the database's that never comes.
#[test]
fn clients_that_stay_alone_leave_nothing_behind() {
    let hosts = Hosts::new();
    let listener = hosts.client(|| TcpListener::bind("127.0.0.1:0").unwrap());
    // Not beneath the cgroup that the agent is attached to.
    let unseen = hosts.listen(Distance::Here, Family::V4);
    let ports = [&listener, &unseen].map(|l| l.local_addr().unwrap().port());
    let policy = rule("bypass", &format!("{}\nshortcut = true", to(&ports)));
    let agent = hosts.switched(SMALL, "", &policy);
    agent.wait_for_log("path works path=\"shortcut\"").unwrap();
    for _ in 0..3 * ENTRIES {
        let mut alone = pairs(&hosts, &unseen, 1);
        exchange(&mut alone);
    }
    let flows = || agent.metric("underpass_shortcut_flows").unwrap();
    eventually("there is room", || {
        let mut later = pairs(&hosts, &listener, ENTRIES / 2);
        exchange(&mut later);
        flows() == ENTRIES as f64 / 2.0
    });
}

/// A connection for which there is no room among those that wait is closed: it is too late for another
/// way. The client sees it begin, and reset.
#[test]
fn connects_for_which_there_is_no_room_are_closed() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::Here, Family::V4);
    let port = listener.local_addr().unwrap().port();
    // The database's host takes the packets and says nothing: no forwarding there.
    let route = ["route", "add", "198.51.100.0/24", "via", "192.0.2.2"];
    hosts.app.netns.ip(&route).unwrap();
    let silent = "198.51.100.1:9".parse().unwrap();
    let agent = hosts.switched("UNDERPASS_TEST_HOOKS=connects=8", "", &enrich(&[9, port]));
    let waiting: Vec<_> = (0..ENTRIES)
        .map(|_| {
            hosts.client(|| {
                let socket = socket(Family::V4);
                socket.set_nonblocking(true).unwrap();
                let begun = socket.connect(&SocketAddr::into(silent));
                assert_eq!(
                    begun.unwrap_err().raw_os_error(),
                    Some(nix::libc::EINPROGRESS)
                );
                socket
            })
        })
        .collect();
    assert_eq!(safer(&agent, "pending_connects_full"), 0.0);
    for closed in 1..=4 {
        let mut client = hosts.client(|| connect(Family::V4, silent).unwrap());
        let end = client.read(&mut [0]).map_err(|e| e.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset));
        assert_eq!(safer(&agent, "pending_connects_full"), f64::from(closed));
    }
    // Nobody else was told anything.
    for socket in &waiting {
        assert_eq!(
            socket.peer_addr().unwrap_err().kind(),
            ErrorKind::NotConnected
        );
        assert!(socket.take_error().unwrap().is_none());
    }
    drop(waiting);
    let mut later = pairs(&hosts, &listener, ENTRIES * 2);
    exchange(&mut later);
    assert_eq!(safer(&agent, "pending_connects_full"), 4.0);
}

/// The agent has not read of others, so it is not told of these: they wait as they would for a SYN that was lost.
#[test]
fn connects_of_which_the_agent_cannot_be_told_begin_a_second_later() {
    // So few that most of those for whom there was no room find some when they come again, all at once.
    const CONNECTS: usize = 30;
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::Here, Family::V4);
    let to = listener.local_addr().unwrap();
    // Of one page, which is a dozen of them.
    let agent = hosts.switched(
        "UNDERPASS_TEST_HOOKS=ring_bytes=4096",
        "",
        &enrich(&[to.port()]),
    );
    agent.signal(Signal::SIGSTOP).unwrap();
    let begin = || {
        let socket = socket(Family::V4);
        socket.set_nonblocking(true).unwrap();
        let begun = socket.connect(&to.into());
        let pending = Some(nix::libc::EINPROGRESS);
        assert_eq!(begun.unwrap_err().raw_os_error(), pending);
        TcpStream::from(socket)
    };
    let waiting: Vec<_> = (0..CONNECTS).map(|_| hosts.client(begin)).collect();
    let none = waiting.iter().all(|client| client.peer_addr().is_err());
    agent.signal(Signal::SIGCONT).unwrap();
    assert!(none, "nobody was answered");
    let mut open: Vec<_> = waiting
        .into_iter()
        .map(|client| {
            let (server, from) = accept(&listener);
            client.set_nonblocking(false).unwrap();
            (client, server, from)
        })
        .collect();
    let (first, again) = (safer(&agent, "ring_full"), CONNECTS as f64);
    assert!(first > again / 2.0 && first < again, "{first}");
    // Who was accepted when is not in the order of the connects.
    let mut pairs: Vec<_> = open
        .iter()
        .map(|(client, ..)| {
            let own = client.local_addr().unwrap();
            let with = open.iter().find(|(_, _, from)| *from == own).unwrap();
            (client.try_clone().unwrap(), with.1.try_clone().unwrap())
        })
        .collect();
    exchange(&mut pairs);
    open.clear();
    drop(pairs);
    let mut later = self::pairs(&hosts, &listener, ENTRIES);
    exchange(&mut later);
    assert_eq!(safer(&agent, "ring_full"), first);
}

/// Drives so many connections at once, whose bytes are checked.
fn driven(hosts: &Hosts, server: &Server, connections: u64) -> Report {
    let plan = Plan {
        choices: Choices::named(&["epoll-edge", "epoll-level"]).unwrap(),
        bytes: 16 << 20,
        connection_max: 1 << 20,
        connections: (connections, connections),
        hang_limit: Duration::from_secs(5),
        cql: Some(Cql::default()),
        ..Plan::new(server.addr())
    };
    hosts.client(|| drive(&plan))
}

#[test]
fn flows_for_which_the_splice_has_no_room_are_relayed() {
    let hosts = Hosts::new();
    let server = hosts.direct(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = Options {
            never_blocks: true,
            ..Options::default()
        };
        Server::start_with(listener, options).unwrap()
    });
    // What the handshake has to tell is told by all.
    let policy = rule(
        "bypass",
        &format!(
            "{}\ndriver = [\"*\"]\npath = \"inline\"",
            to(&[server.addr().port()])
        ),
    );
    let agent = hosts.switched(SMALL_BUT_FOR_THE_CANARY, "splice = \"sender\"", &policy);
    agent
        .wait_for_log("path works path=\"splice_sender\"")
        .unwrap();
    let refused = || {
        agent
            .metric("underpass_splice_refusals_total{reason=\"full\"}")
            .unwrap()
    };
    let carried = || {
        agent
            .metric("underpass_spliced_bytes_total{direction=\"to_client\"}")
            .unwrap()
    };
    let report = driven(&hosts, &server, 64);
    assert!(report.passed(&["fionread".into()]), "{report}");
    let (full, before) = (refused(), carried());
    assert!(full > 0.0 && before > 0.0, "{full} refused, {before} bytes");
    eventually("what has ended is forgotten", || {
        agent.metric("underpass_flows").unwrap() == 0.0
    });
    // A second later there is room again, for the first ones.
    eventually("there is room", || {
        let before = carried();
        let report = driven(&hosts, &server, 2);
        assert!(report.passed(&["fionread".into()]), "{report}");
        carried() > before
    });
}
