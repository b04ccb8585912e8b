use super::*;
use crate::{
    demo::evidence::{Connections, Flow, Statement},
    demo::order::Answer,
    demo::path::ByPath,
    demo::{rig::Found, shop::KEYSPACE},
};
use std::time::Duration;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn told() -> Answer {
    let mut told = Answer::empty().unwrap();
    told.latencies.record(1_000);
    told.count_sent("orders", "insert", 3);
    told
}

/// Makes the evidence of one connection on each path, as it should be.
fn good() -> Evidence {
    let socket = |port: u16, remote: &str| {
        vec![Socket {
            local: SocketAddr::new([127, 0, 0, 1].into(), port),
            remote: address(remote),
        }]
    };
    let connections = |rule: &str, outcome: &str, count| Connections {
        rule: rule.into(),
        outcome: outcome.into(),
        count,
    };
    let statement = |rule: &str, kind: &str, count| Statement {
        rule: rule.into(),
        keyspace: KEYSPACE.into(),
        table: "orders".into(),
        kind: kind.into(),
        count,
    };
    let flow = |port, pid, path: &str| Flow {
        client: SocketAddr::new([127, 0, 0, 1].into(), port),
        pid,
        path: path.into(),
        orig_dst: address("127.0.0.1:9042"),
        rule: path.into(),
    };
    Evidence {
        target: address("127.0.0.1:9042"),
        pids: ByPath {
            direct: 1,
            again: 5,
            bypass: 2,
            tap: 4,
            enrich: 3,
        },
        sockets: ByPath {
            direct: socket(1001, "127.0.0.1:9042"),
            again: socket(1005, "127.0.0.1:9042"),
            bypass: socket(1002, "127.0.0.1:9042"),
            tap: socket(1004, "127.0.0.1:9042"),
            enrich: socket(1003, "127.0.0.1:5555"),
        },
        found: Found {
            connections: 1,
            after: Duration::ZERO,
        },
        told: ByPath {
            direct: told(),
            again: told(),
            bypass: told(),
            tap: told(),
            enrich: told(),
        },
        connections: vec![
            connections("bypass", "untouched", 1),
            connections("bypass", "intercepted", 0),
            connections("enrich", "intercepted", 1),
        ],
        abandoned: 0,
        safer: 0,
        flows: vec![flow(1003, 3, "enrich"), flow(1004, 4, "tap")],
        statements: vec![
            statement("enrich", "insert", 3),
            statement("enrich", "prepare", 2),
            statement("tap", "insert", 3),
        ],
        database_sees: Ok([1000, 1001, 1002, 1004, 1005, 1003]
            .map(|port| SocketAddr::new([127, 0, 0, 1].into(), port))
            .to_vec()),
    }
}

/// Joins everything that the checks complain about.
fn wrong(evidence: &Evidence) -> String {
    let checks = all(evidence);
    checks
        .into_iter()
        .flat_map(|c| c.wrong)
        .collect::<Vec<_>>()
        .join("; ")
}

#[test]
fn all_is_well() {
    assert_eq!(wrong(&good()), "");
    assert_eq!(all(&good()).len(), 8);
}

#[test]
fn every_deviation_is_found() {
    type Spoil = fn(&mut Evidence);
    let spoilt: [(Spoil, &str); 19] = [
        (|e| e.told.bypass.errors = 1, "bypass: 1 failed"),
        (
            |e| e.told.direct = Answer::empty().unwrap(),
            "direct: none was sent",
        ),
        (
            |e| e.sockets.direct.clear(),
            "direct: no connection is open",
        ),
        (
            |e| e.connections[0].rule = "default".into(),
            "rule default: 1 untouched",
        ),
        (|e| e.connections[1].count = 1, "1 were not left untouched"),
        (
            |e| e.connections[0].count = 0,
            "1 are open, 0 were left untouched",
        ),
        (
            |e| e.sockets.bypass[0].remote.set_port(5555),
            "goes to 127.0.0.1:5555",
        ),
        (|e| e.flows[0].pid = 2, "the agent carries 1 of its flows"),
        (
            |e| e.connections[2].outcome = "failed_open".into(),
            "1 were not intercepted",
        ),
        (|e| e.flows[0].path = "relay".into(), "path relay"),
        (|e| _ = e.flows.remove(0), "the agent carries []"),
        (|e| e.safer = 2, "2 took a safer path"),
        (
            |e| e.statements[0].count = 4,
            "insert on orders: 3 sent, 4 counted",
        ),
        (
            |e| e.database_sees.as_mut().unwrap().truncate(4),
            "enrich: 127.0.0.1:1003 is not",
        ),
        (|e| e.found.connections = 0, "1 are open, 0 were found"),
        (|e| e.flows[1].path = "enrich".into(), "paths [\"enrich\"]"),
        (
            |e| e.sockets.tap[0].remote.set_port(5555),
            "127.0.0.1:1004 goes to 127.0.0.1:5555",
        ),
        (
            |e| e.statements[2].count = 2,
            "insert on orders: 3 sent, 2 counted",
        ),
        (
            |e| e.statements[2].count = 4,
            "insert on orders: 3 sent, 4 counted",
        ),
    ];
    for (spoil, found) in spoilt {
        let mut evidence = good();
        spoil(&mut evidence);
        assert!(
            wrong(&evidence).contains(found),
            "{found}: {}",
            wrong(&evidence)
        );
    }
}

#[test]
fn requests_without_a_sure_response_are_accounted_for() {
    let mut evidence = good();
    evidence.statements[2].count = 2;
    // One is the driver's own.
    evidence.abandoned = 2;
    assert_eq!(wrong(&evidence), "");
    evidence.statements[2].count = 0;
    assert_ne!(wrong(&evidence), "");
}

#[test]
fn statements_of_others_do_not_count() {
    let mut evidence = good();
    let mut other = evidence.statements[0].clone();
    other.keyspace = "system".into();
    evidence.statements.push(other);
    assert_eq!(wrong(&evidence), "");
}

#[test]
fn a_database_that_does_not_tell_is_not_asked() {
    let mut evidence = good();
    evidence.database_sees = Err("no such table".into());
    assert_eq!(all(&evidence).len(), 7);
}
