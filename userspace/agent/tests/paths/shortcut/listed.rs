//! The operator's view of flows on the shortcut, and of those that were to take it.

use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};

use super::*;
use crate::common::*;

pub(super) fn flow_of(agent: &Agent<'_>, client: &TcpStream) -> Option<Value> {
    let own = client.local_addr().unwrap().to_string();
    let flows = agent.json("/flows").unwrap();
    let mut all = flows.as_array().unwrap().iter();
    all.find(|flow| flow["client"] == own.as_str()).cloned()
}

#[test]
fn flows_say_that_they_take_it_or_why_they_do_not() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let unseen = hosts.listen(Distance::Here, Family::V4);
    let ports = [port(&listener), port(&unseen)];
    let agent = hosts.agent(&shortcut(&ports));
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    let (alone, alones) = pair(&hosts, &unseen, Family::V4);
    exchange(&mut client, &mut server);
    let flow = flow_of(&agent, &client).unwrap();
    for (key, value) in [
        ("path", json!("shortcut")),
        ("action", json!("bypass")),
        ("rule", json!("r")),
        ("pid", json!(std::process::id())),
        (
            "orig_dst",
            json!(listener.local_addr().unwrap().to_string()),
        ),
        ("bytes_to_database", json!(800)),
        ("bytes_to_client", json!(800)),
        (
            "why",
            json!("decided at connect(): rule r wants the shortcut"),
        ),
    ] {
        assert_eq!(flow[key], value, "{key}: {flow}");
    }
    let flow = flow_of(&agent, &alone).unwrap();
    assert_eq!(flow["path"], "untouched", "{flow}");
    assert_eq!(flow["bytes_to_client"], Value::Null, "{flow}");
    let why = flow["why"].as_str().unwrap();
    assert!(
        why.contains("not started beneath the agent's cgroup"),
        "{why}"
    );
    // What the kernel numbers rules by means others after two policies.
    for n in 1..=3 {
        let policy = shortcut(&ports).replace("\"r\"", &format!("\"r{n}\""));
        agent.write_policy(&policy).unwrap();
        agent.signal(Signal::SIGHUP).unwrap();
        eventually("it is read", || {
            agent.log().matches("policy reloaded").count() == n
        });
    }
    assert_eq!(flow_of(&agent, &client).unwrap()["rule"], "r");
    let (later, laters) = pair(&hosts, &listener, Family::V4);
    assert_eq!(flow_of(&agent, &later).unwrap()["rule"], "r3");
    drop((client, server, alone, alones, later, laters));
    eventually("they are gone", || {
        agent.json("/flows").unwrap() == json!([])
    });
}

/// `why`: what is said of it.
fn assert_refused(agent: &Agent<'_>, client: &TcpStream, why: &str) {
    let flow = flow_of(agent, client).unwrap();
    let told = format!("rule r wants the shortcut: {why}");
    for (key, value) in [
        ("path", json!("untouched")),
        ("action", json!("bypass")),
        ("rule", json!("r")),
        ("pid", json!(std::process::id())),
        ("orig_dst", json!(client.peer_addr().unwrap().to_string())),
        ("bytes_to_database", Value::Null),
        ("bytes_to_client", Value::Null),
        ("why", json!(told)),
    ] {
        assert_eq!(flow[key], value, "{key}: {flow}");
    }
}

#[test]
fn flows_that_are_refused_it_say_why_for_as_long_as_they_live() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let (far4, far6) = (
        hosts.listen(Distance::There, Family::V4),
        hosts.listen(Distance::There, Family::V6),
    );
    let elsewhere = || TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let elsewhere = run_in(Some(&hosts.database), Some(&hosts.app.cgroup), elsewhere).unwrap();
    let ports = [&listener, &far4, &far6, &elsewhere].map(port);
    let agent = hosts.agent(&shortcut(&ports));
    let dial = |to: &TcpListener, family| connect(family, to.local_addr().unwrap()).unwrap();
    let fars = [(Family::V4, &far4), (Family::V6, &far6)];
    let [remote4, remote6] = fars.map(|(family, far)| hosts.client(|| dial(far, family)));
    let foreign = run_in(Some(&hosts.database), Some(&hosts.app.cgroup), || {
        dial(&elsewhere, Family::V4)
    });
    let foreign = foreign.unwrap();
    let (mut on_it, mut server) = pair(&hosts, &listener, Family::V4);
    exchange(&mut on_it, &mut server);
    let servers = [&far4, &far6, &elsewhere].map(|listener| accept(listener).0);
    let mpath: TcpStream = hosts.client(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).unwrap();
        socket
            .connect(&listener.local_addr().unwrap().into())
            .unwrap();
        socket.into()
    });
    let mpaths = accept(&listener).0;
    let assert_all = || {
        for remote in [&remote4, &remote6] {
            let why = "shortcut_remote, it does not go over the loopback device: its database is on another host, or in \
                       another namespace";
            assert_refused(&agent, remote, why);
        }
        let why = "foreign_netns, its client is not in the agent's network namespace";
        assert_refused(&agent, &foreign, why);
        let why = "shortcut_refused, the kernel does not take one of its sockets: kTLS, MPTCP, another \
                   program's sockmap";
        assert_refused(&agent, &mpath, why);
        assert_eq!(flow_of(&agent, &on_it).unwrap()["path"], "shortcut");
        assert_eq!(agent.json("/flows").unwrap().as_array().unwrap().len(), 5);
    };
    assert_all();
    for n in 1..=3 {
        let policy = shortcut(&ports).replace("\"r\"", &format!("\"r{n}\""));
        agent.write_policy(&policy).unwrap();
        agent.signal(Signal::SIGHUP).unwrap();
        eventually("it is read", || {
            agent.log().matches("policy reloaded").count() == n
        });
    }
    assert_all();
    drop((remote4, remote6, foreign, mpath, on_it));
    drop((servers, mpaths, server));
    eventually("they are gone", || {
        agent.json("/flows").unwrap() == json!([])
    });
}

/// A socket that dials again is listed as what it then is.
#[test]
fn without_the_shortcut_flows_say_that_it_is_off() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let closed = listen(&hosts, Family::V4).local_addr().unwrap();
    let policy = shortcut(&[port(&listener), closed.port()]);
    let agent = hosts.switched("UNDERPASS_TEST_HOOKS=without=shortcut", "", &policy);
    let (client, _server) = pair(&hosts, &listener, Family::V4);
    let why = "shortcut_off, it is not available, or was not when this began; `underpass doctor` tries it";
    assert_refused(&agent, &client, why);
    // A socket that was refused, and is no more: by its database, at first; the rule does not mean where it goes now.
    let other = listen(&hosts, Family::V4);
    let again = hosts.client(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        socket.connect(&closed.into()).unwrap_err();
        socket.connect(&other.local_addr().unwrap().into()).unwrap();
        TcpStream::from(socket)
    });
    assert_eq!(safer(&agent, "shortcut_off"), 2);
    assert!(flow_of(&agent, &again).is_none());
    assert_eq!(agent.json("/flows").unwrap().as_array().unwrap().len(), 1);
}
