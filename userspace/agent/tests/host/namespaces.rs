//! Processes in network namespaces that are not the agent's own: served from inside theirs.

mod actions;
mod container;
mod spliced;

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
    thread,
};

use container::{Container, PORT};
use sandbox::{Agent, Netns, Sandbox, run_in};

use crate::common::{
    self, BINARY, FAMILIES, Family, PATIENCE, accept, cause, connect, enrich, eventually, socket,
};

/// Each is a thread that ends at some moment while the agent comes.
const CALLERS: usize = 100;

fn start<'a>(host: &'a Sandbox, settings: &str, policy: &str) -> Agent<'a> {
    let (netns, cgroup) = (Some(&host.netns), &host.cgroup);
    Agent::start(BINARY.as_ref(), netns, cgroup, settings, policy).unwrap()
}

fn outcome(agent: &Agent<'_>, outcome: &str) -> f64 {
    let name = format!("underpass_connections_total{{outcome=\"{outcome}\",rule=\"r\"}}");
    agent.metric(&name).unwrap()
}

fn not_served(agent: &Agent<'_>, reason: &str) -> f64 {
    let name = format!("underpass_namespaces_not_served_total{{reason=\"{reason}\"}}");
    agent.metric(&name).unwrap()
}

/// The inodes of the namespaces that are served.
fn served(agent: &Agent<'_>) -> Vec<u64> {
    let namespaces = agent.json("/namespaces").unwrap();
    let each = namespaces.as_array().unwrap().iter();
    each.map(|n| n["inode"].as_u64().unwrap()).collect()
}

/// Makes the agent come to a namespace: by a connection that meets its rule, and its rule's `fail`.
fn call(agent: &Agent<'_>, container: &Container<'_>) {
    drop(container.client(|| connect(Family::V4, container.database())));
    eventually("the namespace is served", || {
        served(agent).contains(&container.inode())
    });
}

/// A request and its answer, both ways through.
fn exchange(client: &mut TcpStream, database: &mut TcpStream) {
    let mut request = [0; 9];
    client.write_all(&common::options(1)).unwrap();
    database.read_exact(&mut request).unwrap();
    assert_eq!(request, common::options(1));
    let mut answer = [0; 11];
    database.write_all(&common::supported(1)).unwrap();
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, common::supported(1));
}

#[test]
fn each_namespace_reaches_its_own_database_at_the_same_address_from_the_same_port() {
    let host = Sandbox::new().unwrap();
    let (a, b) = (Container::new(&host), Container::new(&host));
    let agent = start(&host, "", &enrich(&[PORT]));
    // Both clients have the same port: one that no connection has waited at, or is given to.
    for (family, port) in FAMILIES.into_iter().zip(21_000..) {
        let to = family.dialled(family.loopback(), PORT);
        let databases = [&a, &b].map(|container| container.listen(family.loopback()));
        if served(&agent).is_empty() {
            // Their first connections are left alone.
            for (container, database) in [&a, &b].into_iter().zip(&databases) {
                container.client(|| connect(family, to)).unwrap();
                accept(database);
                eventually("the namespace is served", || {
                    served(&agent).contains(&container.inode())
                });
            }
            assert_eq!(outcome(&agent, "failed_open"), 2.0);
            assert_eq!(cause(&agent, "no_netns_agent"), 2.0);
        }
        // Both clients have the same address, too.
        let from = SocketAddr::new(to.ip(), port);
        let mut pairs: Vec<_> = [&a, &b]
            .into_iter()
            .zip(&databases)
            .map(|(container, database)| {
                let client = container.client(|| {
                    let socket = socket(family);
                    socket.set_reuse_address(true).unwrap();
                    socket.bind(&from.into()).unwrap();
                    socket.connect(&to.into()).unwrap();
                    TcpStream::from(socket)
                });
                let (database, peer) = accept(database);
                assert_eq!(peer.ip(), family.loopback());
                assert_eq!(peer.port(), from.port());
                assert_eq!(client.peer_addr().unwrap(), to);
                assert_eq!(client.local_addr().unwrap(), from);
                (client, database)
            })
            .collect();
        for (client, database) in &mut pairs {
            exchange(client, database);
        }
        let flows = agent.json("/flows").unwrap();
        let mut seen: Vec<(String, String)> = flows
            .as_array()
            .unwrap()
            .iter()
            .map(|flow| (flow["netns"].to_string(), flow["action"].to_string()))
            .collect();
        let mut expected = [&a, &b].map(|c| (format!("\"{}\"", c.inode()), "\"enrich\"".into()));
        seen.sort();
        expected.sort();
        assert_eq!(seen, expected);
        // The threads of this test that called have ended; the process that is left bears witness.
        eventually("each has a flow, and somebody in it", || {
            let by_namespace = agent.json("/namespaces").unwrap();
            let mut each = by_namespace.as_array().unwrap().iter();
            each.all(|n| n["flows"] == 1 && n["process"] == "sleep")
        });
        drop(pairs);
        eventually("the flows have ended", || {
            agent.metric("underpass_flows").unwrap() == 0.0
        });
    }
    assert_eq!(outcome(&agent, "intercepted"), 6.0);
}

#[test]
fn routes_and_source_address_are_the_clients_own() {
    let host = Sandbox::new().unwrap();
    let container = Container::new(&host);
    let database = Netns::new().unwrap();
    let (own, others) = (
        ["192.0.2.1/24", "2001:db8::1/64"],
        ["192.0.2.2/24", "2001:db8::2/64"],
    );
    container.netns.join(&database, &own, &others).unwrap();
    let agent = start(&host, "", &enrich(&[PORT]));
    call(&agent, &container);
    for family in FAMILIES {
        let bind = || TcpListener::bind((family.database(), PORT)).unwrap();
        let listener = run_in(Some(&database), None, bind).unwrap();
        let to = family.dialled(family.database(), PORT);
        let mut client = container.client(|| connect(family, to)).unwrap();
        let (mut database, peer) = accept(&listener);
        assert_eq!(peer.ip(), family.app());
        let local = client.local_addr().unwrap();
        assert_eq!(local.ip().to_canonical(), family.app());
        assert_eq!(local.port(), peer.port());
        assert_eq!(client.peer_addr().unwrap(), to);
        exchange(&mut client, &mut database);
    }
    assert_eq!(outcome(&agent, "intercepted"), 3.0);
}

/// The packet filter of a container's namespace holds for the agent's connections there, too.
#[test]
fn the_network_policy_is_the_clients_own() {
    let host = Sandbox::new().unwrap();
    let (guarded, open) = (Container::new(&host), Container::new(&host));
    let agent = start(&host, "", &enrich(&[PORT]));
    let listeners = [&guarded, &open].map(|container| {
        call(&agent, container);
        container.listen(Family::V4.loopback())
    });
    let nft = |rules: &str| {
        let run = || Command::new("nft").arg(rules).output().unwrap();
        let said = run_in(Some(&guarded.netns), None, run).unwrap();
        assert!(said.status.success(), "{said:?} (cargo xtask setup)");
    };
    let dial = |container: &Container<'_>| {
        let dialled = container.client(|| connect(Family::V4, container.database()));
        dialled.map_err(|error| error.kind())
    };
    nft(&format!(
        "table ip guard {{ chain out {{ type filter hook output priority 0; \
         tcp dport {PORT} reject with tcp reset; }}; }}"
    ));
    let refused = dial(&guarded).map(drop);
    assert_eq!(refused, Err(ErrorKind::ConnectionRefused));
    exchange(&mut dial(&open).unwrap(), &mut accept(&listeners[1]).0);
    nft("delete table ip guard");
    exchange(&mut dial(&guarded).unwrap(), &mut accept(&listeners[0]).0);
    assert_eq!(outcome(&agent, "intercepted"), 3.0);
}

#[test]
fn what_the_database_or_the_network_says_is_what_the_client_hears() {
    let host = Sandbox::new().unwrap();
    let container = Container::new(&host);
    let agent = start(&host, "", &enrich(&[PORT]));
    call(&agent, &container);
    let dial = |to: &str| -> io::Error {
        let to: SocketAddr = to.parse().unwrap();
        let family = if to.is_ipv4() { Family::V4 } else { Family::V6 };
        container.client(|| connect(family, to)).unwrap_err()
    };
    for nobody in ["127.0.0.1", "[::1]"] {
        let error = dial(&format!("{nobody}:{PORT}"));
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
    for nowhere in ["198.51.100.1", "[2001:db8:1::1]"] {
        let error = dial(&format!("{nowhere}:{PORT}"));
        assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);
    }
    assert_eq!(outcome(&agent, "intercepted"), 4.0);
    let failed = |answer: &str| {
        let name = format!("underpass_dial_failures_total{{answer=\"{answer}\"}}");
        agent.metric(&name).unwrap()
    };
    assert_eq!(failed("refused"), 2.0);
    assert_eq!(failed("net_unreachable"), 2.0);
}

#[test]
fn a_rule_may_name_the_namespace() {
    let host = Sandbox::new().unwrap();
    let (a, b) = (Container::new(&host), Container::new(&host));
    let listeners = [&a, &b].map(|container| container.listen(Family::V4.loopback()));
    let policy = |netns: &str| {
        let rest = format!("to = [\":{PORT}\"]\nnetns = [{netns:?}]\n");
        common::rule("deny", &rest)
    };
    let agent = start(&host, "", &policy(&a.netns.path()));
    let dial = |container: &Container<'_>| {
        let dialled = container.client(|| connect(Family::V4, container.database()));
        dialled.map_err(|error| error.kind())
    };
    assert_eq!(dial(&a).unwrap_err(), ErrorKind::PermissionDenied);
    dial(&b).unwrap();
    agent.write_policy(&policy(&b.inode().to_string())).unwrap();
    agent.signal(nix::sys::signal::Signal::SIGHUP).unwrap();
    eventually("the policy is the next one", || dial(&a).is_ok());
    assert_eq!(dial(&b).unwrap_err(), ErrorKind::PermissionDenied);
    // One that does not exist is nobody's, until it does.
    let later = tempfile::tempdir().unwrap();
    let name = later.path().join("later");
    agent.write_policy(&policy(name.to_str().unwrap())).unwrap();
    agent.signal(nix::sys::signal::Signal::SIGHUP).unwrap();
    eventually("the policy is the last one", || dial(&b).is_ok());
    dial(&a).unwrap();
    std::os::unix::fs::symlink(a.netns.path(), &name).unwrap();
    eventually("it is found", || dial(&a).is_err());
    dial(&b).unwrap();
    drop(listeners);
}

#[test]
fn with_fail_closed_nobody_gets_past_before_the_agent_has_come() {
    let host = Sandbox::new().unwrap();
    let container = Container::new(&host);
    let listener = container.listen(Family::V4.loopback());
    let policy = enrich(&[PORT]) + "fail = \"closed\"\n";
    let agent = start(&host, "", &policy);
    let refused = container.client(|| connect(Family::V4, container.database()));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
    eventually("the namespace is served", || !served(&agent).is_empty());
    let mut client = container
        .client(|| connect(Family::V4, container.database()))
        .unwrap();
    // The first one never came.
    exchange(&mut client, &mut accept(&listener).0);
    assert_eq!(outcome(&agent, "failed_closed"), 1.0);
    assert_eq!(outcome(&agent, "intercepted"), 1.0);
}

#[test]
fn a_namespace_goes_with_its_last_process_and_not_before() {
    let host = Sandbox::new().unwrap();
    let mut container = Container::new(&host);
    // One end of it goes when the other end's namespace does.
    let netns = &container.netns;
    netns.join_as(&[], (&host.netns, "canary"), &[]).unwrap();
    let agent = start(&host, "", &enrich(&[PORT]));
    call(&agent, &container);
    let listener = container.listen(Family::V4.loopback());
    let mut client = container
        .client(|| connect(Family::V4, container.database()))
        .unwrap();
    let mut database = accept(&listener).0;
    // A second process takes the first one's place.
    let next = container.process();
    drop(std::mem::replace(&mut container.resident, next));
    let from = not_served(&agent, "gone");
    thread::sleep(3 * container::TEND);
    assert_eq!(served(&agent), [container.inode()]);
    let mut second = container
        .client(|| connect(Family::V4, container.database()))
        .unwrap();
    exchange(&mut second, &mut accept(&listener).0);
    assert_eq!(not_served(&agent, "gone"), from);
    assert_eq!(outcome(&agent, "intercepted"), 2.0);

    container.resident.end();
    eventually("the namespace is given up", || served(&agent).is_empty());
    // What is under way is not.
    exchange(&mut client, &mut database);
    drop((client, second, database, listener));
    let device = |name: &str| host.netns.ip(&["link", "show", name]).is_ok();
    assert!(device("canary"));
    drop(container);
    eventually("nothing keeps the namespace", || !device("canary"));
    assert_eq!(agent.metric("underpass_flows").unwrap(), 0.0);
    assert_eq!(agent.metric("underpass_namespaces").unwrap(), 0.0);
}

#[test]
fn callers_that_end_at_once_have_called() {
    let host = Sandbox::new().unwrap();
    let agent = start(&host, "", &enrich(&[PORT]));
    for _ in 0..CALLERS {
        call(&agent, &Container::new(&host));
    }
}

#[test]
fn no_more_are_served_than_may_be_and_the_next_one_when_there_is_room() {
    let host = Sandbox::new().unwrap();
    let (mut first, second) = (Container::new(&host), Container::new(&host));
    let agent = start(&host, "max_namespaces = 1", &enrich(&[PORT]));
    call(&agent, &first);
    let listener = second.listen(Family::V4.loopback());
    let dial = || second.client(|| connect(Family::V4, second.database()));
    let mut client = dial().unwrap();
    exchange(&mut client, &mut accept(&listener).0);
    eventually("the call is refused", || not_served(&agent, "full") == 1.0);
    assert_eq!(served(&agent), [first.inode()]);
    assert_eq!(outcome(&agent, "intercepted"), 0.0);

    first.resident.end();
    eventually("the second one is served", || {
        exchange(&mut dial().unwrap(), &mut accept(&listener).0);
        served(&agent) == [second.inode()]
    });
    exchange(&mut dial().unwrap(), &mut accept(&listener).0);
    assert!(outcome(&agent, "intercepted") >= 1.0);
}

#[test]
fn a_killed_agents_namespaces_follow_the_rules_fail_and_are_found_again() {
    for (fail, goes_on) in [("open", true), ("closed", false)] {
        let host = Sandbox::new().unwrap();
        let container = Container::new(&host);
        let listener = container.listen(Family::V4.loopback());
        let policy = enrich(&[PORT]) + &format!("fail = \"{fail}\"\n");
        let mut agent = start(&host, "", &policy);
        let dial = || container.client(|| connect(Family::V4, container.database()));
        call(&agent, &container);
        if goes_on {
            accept(&listener);
        }
        let mut client = dial().unwrap();
        exchange(&mut client, &mut accept(&listener).0);
        assert_eq!(outcome(&agent, "intercepted"), 1.0);
        agent.kill().unwrap();
        match dial() {
            Ok(mut client) => {
                assert!(goes_on);
                exchange(&mut client, &mut accept(&listener).0);
            }
            Err(error) => {
                assert!(!goes_on, "{error}");
                assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            }
        }
        agent.restart().unwrap();
        assert_eq!(served(&agent), [0; 0]);
        call(&agent, &container);
        if goes_on {
            accept(&listener);
        }
        let mut client = dial().unwrap();
        exchange(&mut client, &mut accept(&listener).0);
        assert_eq!(outcome(&agent, "intercepted"), 1.0);
    }
}

#[test]
fn a_namespace_without_a_loopback_is_left_alone() {
    let host = Sandbox::new().unwrap();
    let container = Container::new(&host);
    let database = Netns::new().unwrap();
    let (own, others) = (["192.0.2.1/24"], ["192.0.2.2/24"]);
    container.netns.join(&database, &own, &others).unwrap();
    container.netns.ip(&["link", "set", "lo", "down"]).unwrap();
    let bind = || TcpListener::bind((Family::V4.database(), PORT)).unwrap();
    let listener = run_in(Some(&database), None, bind).unwrap();
    let agent = start(&host, "", &enrich(&[PORT]));
    let to = Family::V4.dialled(Family::V4.database(), PORT);
    for calls in [1.0, 2.0] {
        let mut client = container.client(|| connect(Family::V4, to)).unwrap();
        exchange(&mut client, &mut accept(&listener).0);
        assert_eq!(cause(&agent, "no_netns_agent"), calls);
        eventually("it was looked at", || {
            not_served(&agent, "loopback_down") + not_served(&agent, "just_tried") == calls
        });
    }
    assert_eq!(served(&agent), [0; 0]);
    assert_eq!(outcome(&agent, "failed_open"), 2.0);
}

/// Namespaces that come and go, and connections that each of their clients makes.
const COMING_AND_GOING: usize = 20;
const CONNECTIONS: usize = 40;
const REQUESTS: usize = 50;

#[test]
fn namespaces_that_come_and_go_under_load_lose_nothing_and_leave_nothing() {
    let host = Sandbox::new().unwrap();
    let agent = start(&host, "", &enrich(&[PORT]));
    let descriptors = || {
        let folder = std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap();
        folder.count()
    };
    // It answers: all its threads have begun.
    assert_eq!(agent.metric("underpass_namespaces").unwrap(), 0.0);
    let before = descriptors();
    thread::scope(|scope| {
        for worker in 0..4 {
            let host = &host;
            scope.spawn(move || {
                for _ in (worker..COMING_AND_GOING).step_by(4) {
                    let container = Container::new(host);
                    container.serve_while(|| load(&container));
                }
            });
        }
    });
    let total = (COMING_AND_GOING * CONNECTIONS) as f64;
    let (carried, alone) = (
        outcome(&agent, "intercepted"),
        outcome(&agent, "failed_open"),
    );
    assert_eq!(carried + alone, total);
    // All but those that came before the agent did.
    assert!(carried > total / 2.0, "{carried} of {total}");
    assert_eq!(alone, cause(&agent, "no_netns_agent"));
    eventually("nothing is left", || {
        served(&agent).is_empty() && agent.metric("underpass_flows").unwrap() == 0.0
    });
    eventually("every descriptor is closed", || descriptors() <= before);
    assert_eq!(agent.metric("underpass_strangers_total").unwrap(), 0.0);
}

/// Connections one after the other, in pairs; each has every request answered.
fn load(container: &Container<'_>) {
    let one = || {
        for _ in 0..CONNECTIONS / 2 {
            let mut client = connect(Family::V4, container.database()).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            for stream in 0..REQUESTS as u8 {
                client.write_all(&common::options(stream)).unwrap();
            }
            for stream in 0..REQUESTS as u8 {
                let mut answer = [0; 11];
                client.read_exact(&mut answer).unwrap();
                assert_eq!(answer, common::supported(stream));
            }
        }
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| container.client(one));
        container.client(one);
        other.join().unwrap();
    });
}
