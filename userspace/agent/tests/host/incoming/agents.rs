//! Clients on other hosts when the agent stops, dies, or is full.

use std::net::SocketAddr;
use std::{io::ErrorKind, path::Path};

use sandbox::Agent;

use super::hosts::*;
use crate::common::{BINARY, Family, accept, enrich, eventually};

#[test]
fn without_the_agent_the_next_client_follows_the_rules_fail() {
    let hosts = Hosts::new();
    let open = format!("{}fail = \"open\"\n", enrich(&[PORT]));
    let closed = enrich(&[PORT + 1]).replace("\"r\"", "\"c\"") + "fail = \"closed\"\n";
    let mut agent = hosts.agent(&(open + &closed));
    let other = SocketAddr::new(Family::V4.database(), PORT + 1);
    let (listener, listener_closed) = (hosts.listen(Family::V4), hosts.listen_at(other));
    let intercepted = |agent: &Agent<'_>| {
        eventually("the databases are known", || {
            let direct = hosts.connect(Family::V4).unwrap();
            let (database, _) = accept(&listener);
            let _ = direct;
            database.local_addr().unwrap().ip() != Family::V4.database()
        });
        // Found by itself, and refused before.
        let mut client = None;
        eventually("the other database is known", || {
            client = hosts.connect_to(other).ok();
            client.is_some()
        });
        let mut client = client.unwrap();
        exchange(&mut client, &mut accept(&listener_closed).0);
        assert!(agent.json("/flows").unwrap()[0].is_object());
    };
    intercepted(&agent);
    let mut carried = hosts.connect(Family::V4).unwrap();
    let (mut database, _) = accept(&listener);
    exchange(&mut carried, &mut database);
    agent.kill().unwrap();
    // Its flow has ended on both sides.
    assert_eq!(end(&mut carried), 0);
    assert_eq!(end(&mut database), 0);
    let mut client = hosts.connect(Family::V4).unwrap();
    let (mut database, peer) = accept(&listener);
    assert_eq!(peer, client.local_addr().unwrap());
    assert_eq!(database.local_addr().unwrap().ip(), Family::V4.database());
    exchange(&mut client, &mut database);
    let refused = hosts.connect_to(other).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    agent.restart().unwrap();
    intercepted(&agent);
    exchange(&mut client, &mut database);
}

#[test]
fn the_routing_is_left_as_it_was_found() {
    let hosts = Hosts::new();
    let _listener = hosts.listen(Family::V4);
    let before = hosts.routing();
    assert_eq!(before, "");
    let mut agent = hosts.agent(&enrich(&[PORT]));
    let while_running = hosts.routing();
    assert_eq!(while_running.lines().count(), 5, "{while_running}");
    agent.kill().unwrap();
    assert_eq!(hosts.routing(), while_running);
    agent.restart().unwrap();
    assert_eq!(hosts.routing(), while_running);
    // Somebody else removes a rule: it is there again a second later.
    let netns = &hosts.database.netns;
    netns.ip(&["rule", "del", "priority", "86"]).unwrap();
    eventually("the rule is there", || hosts.routing() == while_running);
    // What is not ours stays.
    let theirs = ["from", "127.86.0.99", "priority", "86", "lookup", "main"];
    netns
        .ip(&[["rule", "add"].as_slice(), &theirs].concat())
        .unwrap();
    agent.stop().unwrap();
    assert_eq!(hosts.routing(), "");
    netns
        .ip(&[["rule", "del"].as_slice(), &theirs].concat())
        .unwrap();
    // And nobody is steered any more.
    agent.wait_for_log("detached").unwrap();
    hosts.connect(Family::V4).unwrap();
}

#[test]
fn what_a_dead_agent_left_is_detached_with_it() {
    let hosts = Hosts::new();
    let mut agent = hosts.agent(&enrich(&[PORT]));
    agent.kill().unwrap();
    assert_ne!(hosts.routing(), "");
    let pins = agent.pins().to_owned();
    let control = agent.control();
    let detach = || {
        let mut detach = std::process::Command::new(BINARY);
        detach.arg("detach").arg("--pins").arg(&pins);
        detach.arg("--control").arg(&control).output()
    };
    let detached = hosts.database.server(detach).unwrap().unwrap();
    assert!(detached.status.success(), "{detached:?}");
    assert_eq!(hosts.routing(), "");
}

#[test]
fn a_full_agent_leaves_further_clients_to_the_rules_fail() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Family::V4);
    let (netns, cgroup) = (Some(&hosts.database.netns), &hosts.database.cgroup);
    let policy = format!("{INCOMING}{}", enrich(&[PORT]));
    let agent = Agent::start(Path::new(BINARY), netns, cgroup, "max_flows = 1", &policy).unwrap();
    let _first = hosts.connect(Family::V4).unwrap();
    let (database, _) = accept(&listener);
    assert_ne!(database.local_addr().unwrap().ip(), Family::V4.database());
    let second = hosts.connect(Family::V4).unwrap();
    let (database, peer) = accept(&listener);
    assert_eq!(peer, second.local_addr().unwrap());
    assert_eq!(database.local_addr().unwrap().ip(), Family::V4.database());
    let full = "underpass_safer_path_total{cause=\"agent_full\"}";
    assert_eq!(agent.metric(full).unwrap(), 1.0);
}
