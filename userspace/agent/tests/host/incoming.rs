//! Connections from another host to a database on this one: what client and database see.

mod agents;
mod cost;
mod gone;
pub(crate) mod hosts;
mod kept;
mod leg;
mod limited;
mod observed;
mod spaces;
mod spliced;

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener},
};

use hosts::*;

use crate::common::{Family, accept, enrich, eventually, rule, stop_listening, to};

#[test]
fn a_bypassed_client_is_left_alone_and_so_is_whoever_no_rule_speaks_of() {
    let hosts = Hosts::new();
    // Rules and a default that would hold for everybody, were they not of this host's own.
    let others = "[[rule]]\nname = \"all\"\naction = \"deny\"\n[default]\naction = \"deny\"\n";
    let agent = hosts.agent(&(rule("bypass", &to(&[PORT])) + others));
    let other = SocketAddr::new(Family::V4.database(), PORT + 1);
    for family in FAMILIES {
        let listener = hosts.listen(family);
        let mut client = hosts.connect(family).unwrap();
        let (mut database, peer) = accept(&listener);
        assert_eq!(peer, client.local_addr().unwrap());
        assert_eq!(
            database.local_addr().unwrap(),
            client.peer_addr().unwrap(),
            "it is the client's own connection"
        );
        exchange(&mut client, &mut database);
    }
    let listener = hosts.listen_at(other);
    hosts.connect_to(other).unwrap();
    accept(&listener);
    assert_eq!(agent.json("/flows").unwrap(), serde_json::json!([]));
    assert_eq!(outcome(&agent, "untouched"), 2.0);
}

#[test]
fn a_denied_client_is_refused_and_its_neighbour_is_not() {
    let hosts = Hosts::new();
    let rules = "from = [\"192.0.2.7\", \"2001:db8::1\"]\n".to_owned() + &to(&[PORT]);
    let agent = hosts.agent(&rule("deny", &rules));
    let _listeners = FAMILIES.map(|family| hosts.listen(family));
    let to = SocketAddr::new(Family::V4.database(), PORT);
    let refused = hosts.connect_from("192.0.2.7:0", to).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let refused = hosts.connect(Family::V6).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    hosts.connect_from("192.0.2.1:0", to).unwrap();
    assert_eq!(outcome(&agent, "denied"), 2.0);
    let listed = || agent.json("/denied").unwrap().as_array().unwrap().clone();
    eventually("they are listed", || listed().len() == 2);
    for (denied, client) in listed().iter().zip(["[2001:db8::1]:", "192.0.2.7:"]) {
        let from = denied["client"].as_str().unwrap();
        assert!(
            from.starts_with(client) && denied["cause"] == "rule",
            "{denied}"
        );
    }
}

#[test]
fn what_a_host_of_databases_opens_itself_is_its_own() {
    let hosts = Hosts::new();
    let listeners = FAMILIES.map(|family| hosts.listen(family));
    let everybody = "from = [\"0.0.0.0/0\", \"::/0\"]\n".to_owned() + &to(&[PORT]);
    let agent = hosts.agent(&rule("deny", &everybody));
    let other = ["192.0.2.3", "2001:db8::3"].map(|ip| ip.parse::<IpAddr>().unwrap());
    for ((family, listener), other) in FAMILIES.into_iter().zip(&listeners).zip(other) {
        let refused = hosts.connect(family).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let to = SocketAddr::new(family.database(), PORT);
        let from = [family.database(), family.loopback(), other];
        for from in from.map(|ip| SocketAddr::new(ip, 0)) {
            let netns = &hosts.database.netns;
            let client = dial(netns, Some(from), to).unwrap();
            assert_eq!(accept(listener).1, client.local_addr().unwrap());
        }
    }
    assert_eq!(outcome(&agent, "denied"), 2.0);
}

#[test]
fn a_database_that_does_not_listen_refuses_as_ever_and_one_that_begins_to_is_known() {
    let hosts = Hosts::new();
    let agent = hosts.agent(&enrich(&[PORT]));
    let refused = hosts.connect(Family::V4).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let away = "underpass_safer_path_total{cause=\"database_away\"}";
    assert_eq!(agent.metric(away).unwrap(), 1.0);
    // Beneath the agent's cgroup: at once.
    let at = SocketAddr::new(Family::V4.database(), PORT);
    let bind = || TcpListener::bind(at);
    let listener = hosts.database.client(bind).unwrap().unwrap();
    let mut client = hosts.connect(Family::V4).unwrap();
    let (mut database, _) = accept(&listener);
    exchange(&mut client, &mut database);
    assert_eq!(outcome(&agent, "intercepted"), 1.0);
    // It ends, though a connection of its lasts.
    stop_listening(listener);
    let refused = hosts.connect(Family::V4).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    exchange(&mut client, &mut database);
    // And elsewhere, within a second.
    let listener = hosts.listen(Family::V4);
    eventually("the database is known", || {
        let client = hosts.connect(Family::V4).unwrap();
        let (_, peer) = accept(&listener);
        assert_eq!(peer, client.local_addr().unwrap());
        outcome(&agent, "intercepted") == 2.0
    });
    exchange(&mut client, &mut database);
}

#[test]
fn a_session_rule_is_decided_in_the_agent_and_what_it_bypasses_is_relayed() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Family::V4);
    // Copies of the handshake would say it, too.
    let rules = rule("bypass", &(to(&[PORT]) + "\ntls = true\npath = \"inline\""));
    let agent = hosts.agent(&rules);
    let mut client = hosts.connect(Family::V4).unwrap();
    let (mut database, peer) = accept(&listener);
    assert_eq!(peer, client.local_addr().unwrap());
    // As TLS begins.
    let hello = [22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3];
    client.write_all(&hello).unwrap();
    let mut begin = [0; 11];
    database.read_exact(&mut begin).unwrap();
    assert_eq!(begin, hello);
    eventually("it is relayed", || {
        agent.json("/flows").unwrap()[0]["path"] == "relay"
    });
    let flows = agent.json("/flows").unwrap();
    assert_eq!(flows[0]["action"], "bypass", "{flows}");
    let why = flows[0]["why"].as_str().unwrap();
    let said = "its rule lets the database's socket into no sockmap";
    assert!(why.contains(said), "{why}");
}
