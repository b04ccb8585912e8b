//! What an operator sees of flows on the shortcut, and of those that were to take it.

use std::net::TcpStream;

use serde_json::{Value, json};

use crate::common::*;
use crate::*;

fn flow_of(agent: &Agent<'_>, client: &TcpStream) -> Option<Value> {
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
