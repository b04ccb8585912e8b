//! Databases in other network namespaces.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
};

use nix::sys::signal::Signal;
use sandbox::{Agent, Resident, Sandbox, run_in};

use super::{
    hosts::*,
    spliced::{riding, spliced},
};
use crate::common::{BINARY, Family, accept, enrich, eventually, rule, to};

#[test]
fn databases_in_another_namespace_are_served_there() {
    let hosts = Hosts::new();
    let agents = Sandbox::new().unwrap();
    let listeners = FAMILIES.map(|family| hosts.listen(family));
    let netns = &hosts.database.netns;
    let policy = format!(
        "[[incoming]]\nnetns = {:?}\n{}",
        netns.path(),
        enrich(&[PORT])
    );
    // Its hooks see this process's cgroup, too: its dials there are its own.
    let policy = policy + "fail = \"closed\"\n";
    let cgroup = &agents.cgroup;
    let mut agent =
        Agent::start(Path::new(BINARY), Some(&agents.netns), cgroup, "", &policy).unwrap();
    for (family, listener) in FAMILIES.into_iter().zip(&listeners) {
        let mut client = hosts.connect(family).unwrap();
        let (mut database, peer) = accept(listener);
        assert_eq!(peer, client.local_addr().unwrap());
        exchange(&mut client, &mut database);
    }
    assert_eq!(outcome(&agent, "intercepted"), 2.0);
    assert_ne!(hosts.routing(), "");
    agent.stop().unwrap();
    assert_eq!(hosts.routing(), "");
}

#[test]
fn a_namespace_that_is_none_is_a_clear_error() {
    let hosts = Hosts::new();
    for (path, says) in [
        ("/run/netns/there-is-none", "No such file"),
        ("/proc/self/status", "Invalid argument"),
    ] {
        let incoming = format!("[[incoming]]\nnetns = {path:?}\n");
        let (netns, cgroup) = (Some(&hosts.database.netns), &hosts.database.cgroup);
        let policy = incoming + &enrich(&[PORT]);
        let error = Agent::start(Path::new(BINARY), netns, cgroup, "", &policy).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains(path) && error.contains(says), "{error}");
        assert!(
            error.contains("it has to be a network namespace"),
            "{error}"
        );
    }
}

#[test]
fn a_namespace_that_is_in_the_file_no_more_is_left_as_it_was_found() {
    let hosts = Hosts::new();
    let agents = Sandbox::new().unwrap();
    let netns = hosts.database.netns.path();
    let policy = format!("[[incoming]]\nnetns = {netns:?}\n{}", enrich(&[PORT]));
    let (own, cgroup) = (Some(&agents.netns), &agents.cgroup);
    let mut agent = Agent::start(Path::new(BINARY), own, cgroup, "", &policy).unwrap();
    assert_ne!(hosts.routing(), "");
    agent.kill().unwrap();
    assert_ne!(hosts.routing(), "");
    agent.write_policy(&enrich(&[PORT])).unwrap();
    agent.restart().unwrap();
    assert_eq!(hosts.routing(), "");
}

#[test]
fn flows_in_another_namespace_are_spliced_there() {
    let hosts = Hosts::new();
    let theirs = Sandbox::new().unwrap();
    let listener = hosts.listen(Family::V4);
    let netns = hosts.database.netns.path();
    // What is no CQL is not decoded.
    let policy = format!("[[incoming]]\nnetns = {netns:?}\n{}", enrich(&[PORT]));
    let (own, cgroup) = (Some(&theirs.netns), &theirs.cgroup);
    let settings = "splice = \"egress\"";
    let start = || Agent::start(Path::new(BINARY), own, cgroup, settings, &policy).unwrap();
    let mut agents = (0..ATTEMPTS).map(|_| start());
    let agent = agents.find(|agent| works(agent, ENGINE)).unwrap();
    let (client, database) = riding(&hosts, &agent, &listener);
    drop((client, database));
    agent.wait_for_log("flow closed").unwrap();
    let bytes = spliced(&agent);
    assert!(bytes.into_iter().all(|n| n > 0.0), "{bytes:?}");
}

/// Clients of a database there were connected before the agent was. So was one that is no client from another host, and one
/// whose database is not beneath the agent's cgroup.
#[test]
fn running_connections_in_another_namespace_are_read_there() {
    let hosts = Hosts::new();
    let theirs = Sandbox::new().unwrap();
    let netns = &hosts.database.netns;
    let _resident = Resident::start(netns, None).unwrap();
    let at = |port| SocketAddr::new(Family::V4.database(), port);
    let listen = |port, cgroup| {
        let listener = run_in(Some(netns), cgroup, || TcpListener::bind(at(port)));
        listener.unwrap().unwrap()
    };
    let seen = listen(PORT, Some(&theirs.cgroup));
    let unseen = listen(PORT + 1, None);
    let mut client = hosts.connect(Family::V4).unwrap();
    let (mut database, peer) = accept(&seen);
    let own = dial(netns, None, at(PORT)).unwrap();
    let _unseen = [
        accept(&seen).0,
        hosts.connect_to(at(PORT + 1)).unwrap(),
        own,
    ];
    let _accepted = accept(&unseen);
    let policy = format!(
        "[[incoming]]\nnetns = {:?}\n{}",
        netns.path(),
        rule("observe", &to(&[PORT, PORT + 1]))
    );
    let (own, cgroup) = (Some(&theirs.netns), &theirs.cgroup);
    let agent = Agent::start(Path::new(BINARY), own, cgroup, "", &policy).unwrap();
    let flows = || agent.json("/flows").unwrap().as_array().unwrap().clone();
    eventually("it is read", || !flows().is_empty());
    exchange(&mut client, &mut database);
    exchange(&mut client, &mut database);
    eventually("it is counted", || flows()[0]["requests"] == 2);
    let flows = flows();
    assert_eq!(flows.len(), 1, "{flows:?}");
    assert_eq!(flows[0]["client"], peer.to_string());
    let why = flows[0]["why"].as_str().unwrap();
    assert!(why.starts_with("found running"), "{why}");
    let counted = |sample: &str| {
        agent
            .metric(&format!("underpass_observed_{sample}"))
            .unwrap()
    };
    assert_eq!(counted("adopted_total{rule=\"r\"}"), 1.0);
    assert_eq!(counted("not_adopted{reason=\"outside_cgroup\"}"), 1.0);
}

/// The agent's own socket of a flow that it carries is one that a client on another host has connected to.
#[test]
fn what_the_agent_carries_is_no_running_connection() {
    const NEEDS_AGENT: &str = "underpass_observed_not_adopted{reason=\"needs_agent\"}";
    let hosts = Hosts::new();
    let theirs = Sandbox::new().unwrap();
    let netns = &hosts.database.netns;
    let _resident = Resident::start(netns, None).unwrap();
    let spaces = [
        (&hosts.database, INCOMING.to_owned()),
        (
            &theirs,
            format!("[[incoming]]\nnetns = {:?}\n", netns.path()),
        ),
    ];
    for (of, incoming) in spaces {
        let (carried, other) = (hosts.listen(Family::V4), hosts.listen(Family::V6));
        let policy = |prefix: &str| {
            let to = format!("to = [\"{prefix}:{PORT}\"]");
            incoming.clone() + &rule("enrich", &to)
        };
        let (own, cgroup) = (Some(&of.netns), &of.cgroup);
        let agent = Agent::start(Path::new(BINARY), own, cgroup, "", &policy("192.0.2.2")).unwrap();
        let mut client = hosts.connect(Family::V4).unwrap();
        let (mut database, _) = accept(&carried);
        exchange(&mut client, &mut database);
        assert_eq!(outcome(&agent, "intercepted"), 1.0);
        // One that no rule has the agent take, as yet.
        let running = (hosts.connect(Family::V6).unwrap(), accept(&other));
        agent.write_policy(&policy("")).unwrap();
        agent.signal(Signal::SIGHUP).unwrap();
        eventually("it has to connect again, alone", || {
            agent.metric(NEEDS_AGENT).unwrap() == 1.0
        });
        exchange(&mut client, &mut database);
        drop(running);
    }
}
