//! The integrity test itself: nothing is found where nothing is wrong, and everything that is
//! wrong is found, and called by its name.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

mod middlebox;

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use integrity::{
    Choices, Corruption, Cql, Helper, Kind, Options, Plan, Report, Server, child, drive,
};
use middlebox::Fault;
use sandbox::Sandbox;

/// Tests run side by side, on whatever machine there is.
const LOADED: Duration = Duration::from_secs(5);

fn loopback() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn helper() -> Helper {
    Helper::test("an_end_that_is_killed").unwrap()
}

/// Played by the helper; by itself it does nothing.
#[test]
fn an_end_that_is_killed() {
    child().unwrap();
}

/// Drives `plan` against a server of its own.
fn direct(options: Options, plan: impl FnOnce(SocketAddr) -> Plan) -> Report {
    let server = Server::start_with(loopback(), options).unwrap();
    let report = drive(&plan(server.addr()));
    assert!(server.stop().passed(&[]));
    report
}

#[test]
fn every_behaviour_passes_directly() {
    let options = Options {
        helper: Some(helper()),
        ..Options::default()
    };
    let report = direct(options, |to| Plan {
        bytes: 200 << 20,
        connections: (1, 32),
        connection_max: 16 << 20,
        hang_limit: LOADED,
        helper: Some(helper()),
        ..Plan::new(to)
    });
    assert!(report.passed(&[]), "{report}");
    for behaviour in Choices::names() {
        assert!(report.behaviours.contains_key(behaviour), "{behaviour}");
    }
    assert!(report.bytes_up + report.bytes_down > 200 << 20, "{report}");
}

#[test]
fn every_behaviour_passes_in_cql_frames() {
    let credentials = Some(("alice".to_owned(), "secret".to_owned()));
    let options = Options {
        helper: Some(helper()),
        credentials: credentials.clone(),
        ..Options::default()
    };
    let report = direct(options, |to| Plan {
        bytes: 60 << 20,
        seed: 2,
        connection_max: 4 << 20,
        hang_limit: LOADED,
        helper: Some(helper()),
        cql: Some(Cql {
            drivers: vec!["driver-a".into(), "driver-b".into()],
            application: Some("shop".into()),
            keyspace: Some("orders".into()),
            credentials,
            ..Cql::default()
        }),
        ..Plan::new(to)
    });
    assert!(report.passed(&[]), "{report}");
    assert_eq!(report.drivers.len(), 2);
    assert_eq!(report.drivers.values().sum::<u64>(), report.connections);
}

#[test]
fn a_wrong_password_is_told() {
    let options = Options {
        credentials: Some(("alice".into(), "secret".into())),
        ..Options::default()
    };
    let report = direct(options, |to| Plan {
        bytes: 1,
        cql: Some(Cql {
            credentials: Some(("alice".into(), "guess".into())),
            ..Cql::default()
        }),
        ..Plan::new(to)
    });
    assert!(report.found(Kind::Handshake), "{report}");
}

#[test]
fn an_edit_that_does_not_happen_is_found() {
    let report = direct(Options::default(), |to| Plan {
        bytes: 4 << 20,
        connection_max: 1 << 20,
        hang_limit: LOADED,
        choices: Choices::named(&["bulk-down"]).unwrap(),
        cql: Some(Cql {
            is_edited: true,
            ..Cql::default()
        }),
        ..Plan::new(to)
    });
    assert!(report.found(Kind::Garbled), "{report}");
    assert_eq!(report.edited_frames, 0, "{report}");
}

#[test]
fn a_seed_repeats_a_run() {
    let run = || {
        direct(Options::default(), |to| Plan {
            bytes: 4 << 20,
            seed: 77,
            connection_max: 1 << 20,
            hang_limit: LOADED,
            choices: Choices::named(&["duplex", "ping-pong"]).unwrap(),
            ..Plan::new(to)
        })
    };
    let (one, other) = (run(), run());
    assert!(one.passed(&[]), "{one}");
    assert_eq!(one.behaviours, other.behaviours);
    assert_eq!(
        (one.bytes_up, one.bytes_down),
        (other.bytes_up, other.bytes_down)
    );
}

#[test]
fn threads_and_killed_processes_are_where_their_starter_is() {
    let sandbox = Sandbox::new().unwrap();
    let options = Options {
        helper: Some(helper()),
        ..Options::default()
    };
    // Reached only from within the namespace.
    let server = sandbox
        .server(|| Server::start_with(loopback(), options).unwrap())
        .unwrap();
    let plan = Plan {
        bytes: 4 << 20,
        connection_max: 1 << 20,
        hang_limit: LOADED,
        choices: Choices::named(&["duplex", "client-killed", "server-killed"]).unwrap(),
        helper: Some(helper()),
        ..Plan::new(server.addr())
    };
    let report = sandbox.client(|| drive(&plan)).unwrap();
    assert!(report.passed(&[]), "{report}");
    assert!(report.behaviours["client-killed"] > 0);
}

/// Findings behind a middlebox with this fault.
fn behind(fault: Fault, cql: bool, shapes: &[&str]) -> Report {
    let report = driven(fault, cql, shapes, false);
    assert_eq!(report.passed(&[]), fault == Fault::None, "{report}");
    report
}

fn driven(fault: Fault, cql: bool, shapes: &[&str], may_be_cut: bool) -> Report {
    let server = Server::start(loopback()).unwrap();
    let to = middlebox::start(server.addr(), fault);
    drive(&Plan {
        may_be_cut,
        bytes: 8 << 20,
        connections: (4, 8),
        connection_max: 1 << 20,
        hang_limit: Duration::from_secs(1),
        deadline: Duration::from_secs(60),
        choices: Choices::named(shapes).unwrap(),
        cql: cql.then(Cql::default),
        ..Plan::new(to)
    })
}

/// The one finding of this kind.
fn only(report: &Report, kind: Kind) -> &Corruption {
    let found: Vec<_> = report
        .corruption
        .iter()
        .filter(|c| c.kinds.contains(&kind))
        .collect();
    assert_eq!(found.len(), 1, "{report}");
    found[0]
}

const STREAMING: [&str; 3] = ["bulk-up", "bulk-down", "duplex"];

#[test]
fn a_relay_that_does_nothing_wrong_is_as_good_as_none() {
    for cql in [false, true] {
        let shapes: [&str; 0] = [];
        behind(Fault::None, cql, &shapes);
    }
}

#[test]
fn lost_bytes_are_found() {
    for cql in [false, true] {
        let report = behind(Fault::Drop(1001), cql, &STREAMING);
        assert_eq!(only(&report, Kind::Lost).wrong.lost, 1001, "{report}");
    }
}

#[test]
fn one_lost_byte_is_found() {
    let report = behind(Fault::Drop(1), false, &STREAMING);
    assert_eq!(only(&report, Kind::Lost).wrong.lost, 1, "{report}");
}

#[test]
fn duplicated_bytes_are_found() {
    for cql in [false, true] {
        let report = behind(Fault::Duplicate(777), cql, &STREAMING);
        let wrong = &only(&report, Kind::Duplicated).wrong;
        assert_eq!((wrong.duplicated, wrong.lost), (777, 0), "{report}");
    }
}

#[test]
fn reordered_bytes_are_found() {
    let report = behind(Fault::Swap(1500), false, &STREAMING);
    let wrong = &only(&report, Kind::Reordered).wrong;
    assert_eq!((wrong.reordered, wrong.lost), (1500, 0), "{report}");
}

#[test]
fn foreign_bytes_are_found_with_their_origin() {
    let report = behind(Fault::Foreign(2000), false, &STREAMING);
    let wrong = &only(&report, Kind::Foreign).wrong;
    assert!((1990..=2010).contains(&wrong.foreign), "{report}");
    assert!(wrong.breaks[0].contains("of connection"), "{report}");
}

#[test]
fn a_flipped_bit_is_found() {
    let report = behind(Fault::Flip, true, &STREAMING);
    assert_eq!(only(&report, Kind::Garbled).wrong.garbled, 1, "{report}");
}

#[test]
fn a_stall_is_a_hang() {
    // Longer than ten times the limit: on a machine without a moment to spare a hang is not told
    // from waiting for a CPU any sooner.
    let report = behind(Fault::Stall(Duration::from_secs(15)), false, &STREAMING);
    assert!(report.hung > 0, "{report}");
    assert!(report.longest_stall_ms >= 1000, "{report}");
    assert_eq!(report.corrupted, 0, "{report}");
}

#[test]
fn where_connections_may_be_cut_no_end_is_wrong_but_bytes_are() {
    let report = driven(Fault::ResetForEnd, false, &["half-close-client"], true);
    assert!(report.passed(&[]), "{report}");
    for (fault, kind) in [
        (Fault::Drop(1001), Kind::Lost),
        (Fault::Duplicate(777), Kind::Duplicated),
    ] {
        let report = driven(fault, true, &STREAMING, true);
        assert!(report.found(kind), "{report}");
    }
}

#[test]
fn a_reset_in_place_of_an_end_is_found() {
    let report = behind(Fault::ResetForEnd, false, &["half-close-client"]);
    assert!(report.found(Kind::Reset), "{report}");
}
