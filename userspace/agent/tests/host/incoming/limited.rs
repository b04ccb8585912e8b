//! Clients on other hosts of a rule with a `limit`: an address has so many connections, and no more.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use sandbox::{Agent, run_in};
use socket2::{Domain, Socket, Type};

use super::hosts::*;
use crate::common::{BINARY, Family, accept, cause, eventually, rule, stop_listening, to};

const LIMIT: usize = 3;
const OTHER: &str = "192.0.2.7:0";

fn policy(action: &str) -> String {
    let from = "from = [\"0.0.0.0/0\", \"::/0\"]";
    let limit = format!("limit = {{ connections = {LIMIT}, per = \"address\" }}");
    rule(action, &format!("{from}\n{}\n{limit}", to(&[PORT])))
}

/// A database beneath the agent's cgroup.
fn listen(hosts: &Hosts, family: Family) -> TcpListener {
    let bind = || TcpListener::bind((family.database(), PORT));
    hosts.database.client(bind).unwrap().unwrap()
}

fn is_refused(hosts: &Hosts, family: Family) -> bool {
    let refused = hosts.connect(family).map(drop);
    refused.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Both ends of as many connections as an address may have.
fn fill(hosts: &Hosts, listener: &TcpListener, family: Family) -> Vec<(TcpStream, TcpStream)> {
    let pair = |_| (hosts.connect(family).unwrap(), accept(listener).0);
    (0..LIMIT).map(pair).collect()
}

#[test]
fn an_address_has_as_many_connections_as_its_rule_lets_it_have() {
    let hosts = Hosts::new();
    let places = [
        ("bypass", PORT),
        ("observe", PORT + 1),
        ("enrich", PORT + 2),
    ];
    let rules = places.map(|(action, port)| {
        let rule = policy(action).replace("name = \"r\"", &format!("name = \"{action}\""));
        rule.replace(&PORT.to_string(), &port.to_string())
    });
    let agent = hosts.agent(&rules.concat());
    let mut refused = 0.0;
    for ((action, port), family) in places.into_iter().flat_map(|at| FAMILIES.map(|f| (at, f))) {
        let at = SocketAddr::new(family.database(), port);
        let bind = || TcpListener::bind(at);
        let listener = hosts.database.client(bind).unwrap().unwrap();
        let pair = || -> std::io::Result<_> { Ok((hosts.connect_to(at)?, accept(&listener).0)) };
        let is_refused = || {
            let error = pair().err().map(|error| error.kind());
            error == Some(ErrorKind::ConnectionRefused)
        };
        let mut pairs: Vec<_> = (0..LIMIT).map(|_| pair().unwrap()).collect();
        let of = format!("{action} {family:?}");
        assert!(is_refused(), "{of}");
        refused += 1.0;
        assert_eq!(cause(&agent, "client_limit"), refused, "{of}");
        // The kernel tells of some denials in a second, and counts them all.
        if refused == 1.0 {
            let listed = || agent.json("/denied").unwrap()[0].clone();
            eventually("it is listed", || !listed().is_null());
            let listed = listed();
            let client = pairs[0].0.local_addr().unwrap().ip().to_string();
            assert!(listed["client"].as_str().unwrap().contains(&client));
            assert_eq!(listed["rule"], action, "{listed}");
            assert_eq!(listed["cause"], "limit", "{listed}");
            assert_eq!(listed["reason"], "client_limit", "{listed}");
        }

        // Another address has its own.
        if family == Family::V4 {
            hosts.connect_from(OTHER, at).unwrap();
            accept(&listener);
        }
        for (client, database) in &mut pairs {
            exchange(client, database);
        }
        // One that ends makes room.
        pairs.pop();
        eventually("there is room", || {
            let came = pair();
            refused += f64::from(u8::from(came.is_err()));
            came.map(|pair| pairs.push(pair)).is_ok()
        });
        assert!(is_refused(), "{of}");
        refused += 1.0;
    }
    assert_eq!(cause(&agent, "clients_full"), 0.0);
    assert_eq!(cause(&agent, "database_unmetered"), 0.0);
}

#[test]
fn what_ends_before_it_is_accepted_is_taken_off_and_a_dead_agents_limit_holds() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let mut agent = hosts.agent(&policy("bypass"));
    let connect = |_| hosts.connect(Family::V4).unwrap();
    let _clients: Vec<TcpStream> = (0..LIMIT).map(connect).collect();
    assert!(is_refused(&hosts, Family::V4));
    stop_listening(listener);
    let listener = listen(&hosts, Family::V4);
    let pairs = fill(&hosts, &listener, Family::V4);
    agent.kill().unwrap();
    assert!(is_refused(&hosts, Family::V4));
    drop(pairs);
    eventually("there is room", || hosts.connect(Family::V4).is_ok());
}

/// Connections that an address begins at once count before their handshakes are done, and for a second.
#[test]
fn an_address_that_connects_at_once_gets_no_more() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&policy("bypass"));
    // What the database's host answers does not arrive.
    let nobodys = "02:00:00:00:00:99";
    let wrong = [
        "neigh",
        "replace",
        "192.0.2.7",
        "lladdr",
        nobodys,
        "dev",
        "veth",
    ];
    hosts.database.netns.ip(&wrong).unwrap();
    let begin = || -> std::io::Result<Socket> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.bind(&OTHER.parse::<SocketAddr>().unwrap().into())?;
        let begun = socket.connect(&SocketAddr::new(Family::V4.database(), PORT).into());
        assert!(begun.is_err());
        Ok(socket)
    };
    let begin = |_| run_in(Some(&hosts.clients), None, begin).unwrap().unwrap();
    let first: Vec<Socket> = (0..LIMIT + 2).map(begin).collect();
    assert_eq!(cause(&agent, "client_limit"), 2.0);
    assert_eq!(outcome(&agent, "untouched"), LIMIT as f64);
    drop(first);
    // They are forgotten when nobody goes on with them.
    std::thread::sleep(Duration::from_millis(1_100));
    let forget = ["neigh", "del", "192.0.2.7", "dev", "veth"];
    hosts.database.netns.ip(&forget).unwrap();
    let database = SocketAddr::new(Family::V4.database(), PORT);
    let pair = |_| {
        let client = hosts.connect_from(OTHER, database).unwrap();
        (client, accept(&listener).0)
    };
    let _pairs: Vec<_> = (0..LIMIT).map(pair).collect();
    let refused = hosts.connect_from(OTHER, database).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn what_cannot_be_counted_passes_and_is_counted_by_cause() {
    let hosts = Hosts::new();
    // Elsewhere than beneath the agent's cgroup.
    let listener = hosts.listen(Family::V4);
    let agent = hosts.agent(&policy("bypass"));
    let pair = || (hosts.connect(Family::V4).unwrap(), accept(&listener).0);
    eventually("the database is known", || {
        drop(pair());
        cause(&agent, "database_unmetered") > 0.0
    });
    let _pairs: Vec<_> = (0..=LIMIT).map(|_| pair()).collect();
    assert_eq!(outcome(&agent, "denied"), 0.0);
}

#[test]
fn a_client_without_room_in_the_table_passes() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let (netns, cgroup) = (Some(&hosts.database.netns), &hosts.database.cgroup);
    let policy = format!("{INCOMING}{}", policy("bypass"));
    let small = "UNDERPASS_TEST_HOOKS=entries=1";
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("underpass");
    sandbox::program::switched(&binary, BINARY, small).unwrap();
    let agent = Agent::start(&binary, netns, cgroup, "", &policy).unwrap();
    let _pairs = fill(&hosts, &listener, Family::V4);
    let other = || {
        let to = SocketAddr::new(Family::V4.database(), PORT);
        (hosts.connect_from(OTHER, to).unwrap(), accept(&listener).0)
    };
    let _others: Vec<_> = (0..LIMIT + 1).map(|_| other()).collect();
    assert_eq!(cause(&agent, "clients_full"), LIMIT as f64 + 1.0);
    assert!(is_refused(&hosts, Family::V4), "who is counted");
}
