//! Clients on other hosts whose connections are observed: what is counted of them.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
};

use sandbox::Agent;

use super::hosts::*;
use crate::common::{Family, accept, eventually, options, rule, supported, to};

const ROUNDS: u8 = 200;

fn value(agent: &Agent<'_>, name: &str) -> f64 {
    agent.metric(name).unwrap()
}

fn by_direction(agent: &Agent<'_>, what: &str) -> [f64; 2] {
    ["to_database", "to_client"].map(|direction| {
        value(
            agent,
            &format!("underpass_observed_{what}_total{{direction=\"{direction}\",rule=\"r\"}}"),
        )
    })
}

const UNMETERED: &str = "underpass_safer_path_total{cause=\"database_unmetered\"}";

#[test]
fn an_observed_client_is_metered_and_otherwise_left_alone() {
    let hosts = Hosts::new();
    let any: std::net::IpAddr = "::".parse().unwrap();
    let cases = [
        (Family::V4, Family::V4.database()),
        (Family::V6, Family::V6.database()),
        // An IPv4 client of an IPv6 socket.
        (Family::V4, any),
    ];
    for (family, at) in cases {
        let bind = || TcpListener::bind((at, PORT));
        let listener = hosts.database.client(bind).unwrap().unwrap();
        let agent = hosts.agent(&rule("observe", &to(&[PORT])));
        let mut client = hosts.connect(family).unwrap();
        let (mut database, peer) = accept(&listener);
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        assert_eq!(
            peer,
            client.local_addr().unwrap(),
            "it is its own connection"
        );
        for stream in 0..ROUNDS {
            client.write_all(&options(stream % 100)).unwrap();
            database.read_exact(&mut [0; 9]).unwrap();
            database.write_all(&supported(stream % 100)).unwrap();
            client.read_exact(&mut [0; 11]).unwrap();
        }
        let flows = agent.json("/flows").unwrap();
        let all = flows.as_array().unwrap();
        assert_eq!(all.len(), 1, "{flows}");
        let flow = all.first().unwrap();
        assert_eq!(flow["client"], peer.to_string(), "{flows}");
        let dialled = SocketAddr::new(family.database(), PORT);
        assert_eq!(flow["orig_dst"], dialled.to_string(), "{flows}");
        assert_eq!(flow["path"], "untouched", "{flows}");
        assert_eq!(flow["action"], "observe", "{flows}");
        assert_eq!(flow["pid"], serde_json::Value::Null, "{flows}");
        assert_eq!(flow["why"], "decided at its SYN: rule r says observe");
        assert_eq!(flow["requests"], ROUNDS, "{flows}");
        assert_eq!(flow["responses"], ROUNDS, "{flows}");
        assert_eq!(flow["gaps"], 0, "{flows}");
        let check = || {
            let rounds = f64::from(ROUNDS);
            let requests = "underpass_observed_requests_total{opcode=\"options\",rule=\"r\"}";
            assert_eq!(value(&agent, requests), rounds, "{family:?} at {at}");
            let responses = "underpass_observed_responses_total{opcode=\"supported\",rule=\"r\"}";
            assert_eq!(value(&agent, responses), rounds);
            let bytes = [9.0 * rounds, 11.0 * rounds];
            assert_eq!(by_direction(&agent, "bytes"), bytes);
            assert_eq!(by_direction(&agent, "gaps"), [0.0, 0.0]);
            let timed = "underpass_observed_seconds_count{rule=\"r\"}";
            assert_eq!(value(&agent, timed), rounds);
        };
        check();
        drop((client, database));
        eventually("it has ended", || {
            agent.json("/flows").unwrap().as_array().unwrap().is_empty()
        });
        check();
        assert_eq!(outcome(&agent, "untouched"), 1.0);
        assert_eq!(value(&agent, UNMETERED), 0.0);
    }
}

#[test]
fn a_database_beyond_the_agents_cgroup_is_counted_and_not_metered() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Family::V4);
    let agent = hosts.agent(&rule("observe", &to(&[PORT])));
    let mut client = hosts.connect(Family::V4).unwrap();
    let (mut database, _) = accept(&listener);
    exchange(&mut client, &mut database);
    assert_eq!(agent.json("/flows").unwrap(), serde_json::json!([]));
    assert_eq!(outcome(&agent, "untouched"), 1.0);
    assert_eq!(value(&agent, UNMETERED), 1.0);
}

/// The agent's own connection for an enriched client reaches the database, too, and is not that
/// client's.
#[test]
fn only_what_a_rule_observes_is_metered() {
    let hosts = Hosts::new();
    let bind = || TcpListener::bind((Family::V4.database(), PORT));
    let listener = hosts.database.client(bind).unwrap().unwrap();
    let others = "[[rule]]\nname = \"r\"\nfrom = [\"192.0.2.0/24\"]\naction = \"observe\"\n";
    let enriched = format!(
        "[[rule]]\nname = \"e\"\nfrom = [\"192.0.2.7\"]\nto = [\"192.0.2.2:{PORT}\"]\naction = \"enrich\"\n"
    );
    let agent = hosts.agent(&(enriched + others));
    let at = SocketAddr::new(Family::V4.database(), PORT);
    let mut enriched = hosts.connect_from("192.0.2.7:0", at).unwrap();
    let (mut database, _) = accept(&listener);
    exchange(&mut enriched, &mut database);
    let bypassed = {
        let own = SocketAddr::new(Family::V4.database(), 0);
        let mut client = dial(&hosts.database.netns, Some(own), at).unwrap();
        let (mut database, _) = accept(&listener);
        exchange(&mut client, &mut database);
        (client, database)
    };
    let requests = "underpass_observed_requests_total{opcode=\"options\",rule=\"r\"}";
    assert_eq!(agent.metric(requests).unwrap(), 0.0);
    let mut observed = hosts.connect_from("192.0.2.1:0", at).unwrap();
    let (mut database, _) = accept(&listener);
    exchange(&mut observed, &mut database);
    assert_eq!(value(&agent, requests), 1.0);
    drop(bypassed);
}
