//! Clients on other hosts whose flows the kernel carries: the database is the near application.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

use integrity::{Choices, Cql, Helper, Options, Plan, Report, Server, child, drive};
use sandbox::{Agent, run_in};

use super::hosts::*;
use crate::common::{BINARY, Family, accept, eventually, kernel_bytes};

/// Tests run side by side, on whatever machine there is.
const LOADED: Duration = Duration::from_secs(5);

pub const DRIVER: &str = "underpass-integrity";
const NEVER_BLOCKS: [&str; 2] = ["epoll-edge", "epoll-level"];
/// Shapes that do not choose their own way to wait.
const BLOCKS: [&str; 5] = ["blocking", "ping-pong", "duplex", "bulk-up", "bulk-down"];

/// Known violation: FIONREAD of a socket in a sockmap leaves out the bytes in TCP's queue.
const COST: &str = "fionread";

/// Flows of one driver are bypassed, all others enriched.
pub fn policy() -> String {
    format!(
        "{INCOMING}[[rule]]\nname = \"r\"\nto = [\":{PORT}\"]\ndriver = [\"{DRIVER}\"]\n\
         action = \"bypass\"\n\
         [[rule]]\nname = \"rest\"\nto = [\":{PORT}\"]\naction = \"enrich\"\n"
    )
}

pub fn spliced(agent: &Agent<'_>) -> [f64; 2] {
    ["to_database", "to_client"].map(|direction| {
        let name = format!("underpass_spliced_bytes_total{{direction=\"{direction}\"}}");
        agent.metric(&name).unwrap()
    })
}

/// Played by the helper; by itself it does nothing.
#[test]
fn an_end_that_is_killed() {
    child().unwrap();
}

/// Drives streams from the other host, and says how many bytes were carried, and how often each connection
/// was handed over.
fn driven(binary: &Path, family: Family, waiting: &[&str]) -> (Report, [f64; 2], f64) {
    let helper = Helper::test("incoming::spliced::an_end_that_is_killed").unwrap();
    let hosts = Hosts::new();
    let at = SocketAddr::new(family.database(), PORT);
    let server = hosts.database.server(|| {
        let listener = TcpListener::bind(at).unwrap();
        let options = Options {
            helper: Some(helper.clone()),
            never_blocks: waiting == NEVER_BLOCKS,
            ..Options::default()
        };
        Server::start_with(listener, options).unwrap()
    });
    let _server = server.unwrap();
    let agent = hosts.splicing(binary, ENGINE, &policy());
    let plan = Plan {
        choices: Choices::named(waiting).unwrap(),
        bytes: 192 << 20,
        connection_max: 8 << 20,
        connections: (1, 64),
        hang_limit: LOADED,
        helper: Some(helper.clone()),
        cql: Some(Cql {
            drivers: vec![DRIVER.into()],
            ..Cql::default()
        }),
        ..Plan::new(at)
    };
    let report = run_in(Some(&hosts.clients), None, || drive(&plan)).unwrap();
    let lost = agent.metric("underpass_safer_path_total{cause=\"splice_position_lost\"}");
    assert_eq!(lost.unwrap(), 0.0);
    let unseen = "underpass_client_addresses_lost_total{reason=\"no_answer\"}";
    assert_eq!(agent.metric(unseen).unwrap(), 0.0);
    let handovers = agent.metric("underpass_handovers_total").unwrap();
    let each = handovers / report.connections as f64;
    (report, spliced(&agent), each)
}

#[test]
fn every_byte_arrives() {
    for family in FAMILIES {
        let (report, bytes, _) = driven(Path::new(BINARY), family, &NEVER_BLOCKS);
        assert!(report.passed(&[COST.into()]), "{family:?}: {report}");
        assert!(bytes.into_iter().all(|n| n > 0.0), "{family:?}: {bytes:?}");
    }
}

#[test]
fn a_database_that_blocks_is_relayed_to() {
    let (report, bytes, _) = driven(Path::new(BINARY), Family::V4, &BLOCKS);
    assert!(report.passed(&[]), "{report}");
    assert_eq!(bytes, [0.0, 0.0]);
}

/// Hand-overs of each connection, most of which are over soon. Where nobody takes them back it is two.
const OFTEN: f64 = 2.5;

#[test]
fn every_byte_arrives_however_often_a_flow_is_handed_over() {
    let folder = tempfile::tempdir().unwrap();
    // Taken back and handed over again every millisecond.
    let binary = switched(folder.path(), "UNDERPASS_TEST_HOOKS=recall_ms=1");
    for family in FAMILIES {
        let (report, bytes, each) = driven(&binary, family, &NEVER_BLOCKS);
        assert!(report.passed(&[COST.into()]), "{family:?}: {report}");
        assert!(bytes.into_iter().all(|n| n > 0.0), "{family:?}: {bytes:?}");
        assert!(each > OFTEN, "{family:?}: {each} hand-overs a connection");
    }
}

/// The agent, with a switch for tests set.
fn switched(folder: &Path, switch: &str) -> PathBuf {
    let script = folder.join("switched");
    sandbox::program::switched(&script, BINARY, switch).unwrap();
    script
}

/// A connection that is no CQL, which the kernel carries.
pub fn riding(hosts: &Hosts, agent: &Agent<'_>, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = hosts.connect(Family::V4).unwrap();
    let (database, _) = accept(listener);
    for end in [&client, &database] {
        end.set_nodelay(true).unwrap();
        end.set_nonblocking(true).unwrap();
    }
    eventually("it rides", || {
        pass(&client, &database, b"ping");
        pass(&database, &client, b"pong!");
        agent.json("/flows").unwrap()[0]["path"] == "splice"
    });
    // What was relayed is none of the kernel's.
    for _ in 0..10 {
        pass(&client, &database, b"ping");
        pass(&database, &client, b"pong!");
    }
    (client, database)
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, bytes: &[u8]) {
    from.write_all(bytes).unwrap();
    let mut got = Vec::new();
    let mut buffer = [0; 64];
    eventually("it arrives", || {
        match to.read(&mut buffer) {
            Ok(n) => got.extend_from_slice(buffer.get(..n).unwrap()),
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
        }
        got.len() >= bytes.len()
    });
    assert_eq!(got, bytes);
}

#[test]
fn the_clients_address_is_kept_and_the_flow_says_how_it_travels() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Family::V4);
    let agent = hosts.splicing(Path::new(BINARY), ENGINE, &policy());
    let (client, database) = riding(&hosts, &agent, &listener);
    assert_eq!(database.peer_addr().unwrap(), client.local_addr().unwrap());
    let flows = agent.json("/flows").unwrap();
    assert_eq!(
        flows[0]["why"],
        "decided in the agent; what is faster is decided at its SYN; by engine egress: the client is on \
         another host"
    );
    drop(client);
    eventually("the database sees the end", || {
        matches!((&database).read(&mut [0; 8]), Ok(0))
    });
    drop(database);
    agent.wait_for_log("reason=\"both_ended\"").unwrap();
    let [up, down] = spliced(&agent);
    assert!(up > 0.0 && down > 0.0, "{up} {down}");
    assert!(down > up, "it is said which way: {up} {down}");
}

#[test]
fn a_database_that_stops_reading_does_not_fill_the_kernel() {
    const BOUND: u64 = 8 << 20;
    let hosts = Hosts::new();
    // What TCP takes by itself, for each of three sockets, is none of the agent's doing.
    let bounded = hosts.database.server(|| {
        for buffer in ["rmem", "wmem"] {
            let sizes = format!("/proc/sys/net/ipv4/tcp_{buffer}");
            std::fs::write(sizes, "4096 131072 524288").unwrap();
        }
    });
    bounded.unwrap();
    let listener = hosts.listen(Family::V4);
    let agent = hosts.splicing(Path::new(BINARY), ENGINE, &policy());
    let (mut client, mut database) = riding(&hosts, &agent, &listener);
    client.set_nonblocking(false).unwrap();
    client
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let chunk: Vec<u8> = (0..65_521_u32).map(|n| (n % 251) as u8).collect();
    let (mut sent, mut place) = (0, 0);
    let stopped = loop {
        match client.write(chunk.get(place..).unwrap()) {
            Ok(n) => (sent, place) = (sent + n, (place + n) % chunk.len()),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => break e.kind(),
        }
        assert!(sent < 64 << 20, "nobody stops the client");
    };
    assert_eq!(stopped, ErrorKind::WouldBlock);
    let held = kernel_bytes(&hosts.database);
    assert!(held < BOUND, "{held} bytes in the kernel");
    let (mut left, mut place) = (sent, 0);
    let mut buffer = vec![0; 1 << 20];
    eventually("all of it is read", || {
        while left > 0 {
            match database.read(&mut buffer) {
                Ok(0) => panic!("{left} bytes are missing"),
                Ok(n) => {
                    for byte in buffer.iter().take(n) {
                        assert_eq!(Some(byte), chunk.get(place), "{left} left");
                        place = (place + 1) % chunk.len();
                    }
                    left -= n;
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::WouldBlock);
                    return false;
                }
            }
        }
        true
    });
    drop((client, database));
    eventually("it is counted whom it waited for", || {
        let slow = "underpass_spills_total{slow=\"database\"}";
        agent.metric(slow).unwrap() > 0.0
    });
}
