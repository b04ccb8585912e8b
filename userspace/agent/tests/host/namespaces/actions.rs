//! Rules with other actions than `enrich`: observe, session rules, backends.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
};

use cql_node::{Node, NodeOptions};
use sandbox::{Netns, Sandbox, run_in};

use super::{
    cause,
    container::{Container, PORT},
    exchange, outcome, served, start,
};
use crate::common::{
    self, Family, PATIENCE, accept, connect, eventually,
    frames::{READY, RESPONSE, ready, startup},
};

/// Address that clients dial, and the database behind it.
const VIRTUAL: &str = "10.9.0.10:9042";
const BACKEND: &str = "10.1.0.2:9042";
const HEALTH: &str = "[health]\ninterval = \"200ms\"\nslow_start = \"0s\"\n";

#[test]
fn observed_clients_are_left_alone_and_metered() {
    const REQUESTS: u8 = 50;
    let host = Sandbox::new().unwrap();
    let container = Container::new(&host);
    let agent = start(&host, "", &common::rule("observe", &common::to(&[PORT])));
    let listener = container.listen(Family::V4.loopback());
    let mut client = container
        .client(|| connect(Family::V4, container.database()))
        .unwrap();
    let (mut database, peer) = accept(&listener);
    assert_eq!(peer, client.local_addr().unwrap(), "its own connection");
    for _ in 0..REQUESTS {
        // From there, as an application would.
        container.client(|| exchange(&mut client, &mut database));
    }
    for (kind, opcode) in [("requests", "options"), ("responses", "supported")] {
        let name = format!("underpass_observed_{kind}_total{{opcode=\"{opcode}\",rule=\"r\"}}");
        eventually("all are counted", || {
            agent.metric(&name).unwrap() == f64::from(REQUESTS)
        });
    }
    let flows = agent.json("/flows").unwrap();
    assert_eq!(flows[0]["action"], "observe", "{flows}");
    let namespaces = agent.json("/namespaces").unwrap();
    assert_eq!(namespaces, serde_json::json!([]), "no outpost is needed");
}

/// Opcode of the answer to a client of this version when it says STARTUP and the database says
/// READY.
fn answered(client: &mut TcpStream, database: &mut TcpStream, version: u8) -> u8 {
    let hello = startup(version, &[("CQL_VERSION", "3.0.0")]);
    client.write_all(&hello).unwrap();
    let mut seen = vec![0; hello.len()];
    database.read_exact(&mut seen).unwrap();
    assert_eq!(seen, hello);
    database.write_all(&ready(version)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut header = [0; 9];
    client.read_exact(&mut header).unwrap();
    assert_eq!(header[0], RESPONSE | version);
    header[4]
}

#[test]
fn session_rules_are_decided_by_what_the_session_says() {
    const ERROR: u8 = 0x00;
    let host = Sandbox::new().unwrap();
    let container = Container::new(&host);
    let to = common::to(&[PORT]);
    let policy = format!(
        "[[rule]]\nname = \"s\"\n{to}\nprotocol = [\"v3\"]\naction = \"deny\"\nfail = \"closed\"\n{}",
        common::rule("bypass", &to)
    );
    let agent = start(&host, "", &policy);
    let listener = container.listen(Family::V4.loopback());
    let dial = || container.client(|| connect(Family::V4, container.database()));
    // Who cannot be asked yet follows the session rule's `fail`.
    assert_eq!(dial().unwrap_err().kind(), ErrorKind::PermissionDenied);
    eventually("the namespace is served", || !served(&agent).is_empty());
    let mut denied = dial().unwrap();
    let mut database = accept(&listener).0;
    assert_eq!(answered(&mut denied, &mut database, 3), ERROR);
    let mut let_in = dial().unwrap();
    let (mut database, peer) = accept(&listener);
    assert_eq!(peer, let_in.local_addr().unwrap());
    assert_eq!(answered(&mut let_in, &mut database, 4), READY);
    let flows = agent.json("/flows").unwrap();
    let own = let_in.local_addr().unwrap().to_string();
    let flow = flows
        .as_array()
        .unwrap()
        .iter()
        .find(|f| f["client"] == own);
    let flow = flow.unwrap();
    assert_eq!(
        (&flow["rule"], &flow["action"], &flow["path"]),
        (&"r".into(), &"bypass".into(), &"relay".into()),
        "{flow}"
    );
}

/// A container and the agent's host, both with a way to the host of the database.
struct Behind<'a> {
    container: Container<'a>,
    _database: Netns,
    node: Node,
}

impl<'a> Behind<'a> {
    fn new(host: &'a Sandbox) -> Self {
        let container = Container::new(host);
        let database = Netns::new().unwrap();
        let joined = (&database, "container");
        container
            .netns
            .join_as(&["192.0.2.1/24"], joined, &["192.0.2.2/24"])
            .unwrap();
        let joined = (&database, "host");
        host.netns
            .join_as(&["198.51.100.1/24"], joined, &["198.51.100.2/24"])
            .unwrap();
        let backend: SocketAddr = BACKEND.parse().unwrap();
        let own = format!("{}/32", backend.ip());
        database.ip(&["addr", "add", &own, "dev", "lo"]).unwrap();
        for (netns, via) in [
            (&container.netns, "192.0.2.2"),
            (&host.netns, "198.51.100.2"),
        ] {
            netns.ip(&["route", "add", &own, "via", via]).unwrap();
        }
        let options = NodeOptions {
            listen: backend,
            ..NodeOptions::default()
        };
        let node = run_in(Some(&database), None, || Node::start(options).unwrap()).unwrap();
        Self {
            container,
            _database: database,
            node,
        }
    }

    fn policy(action: &str) -> String {
        let rest = format!("to = [\"{VIRTUAL}\"]\nbackends = [\"{BACKEND}\"]");
        common::rule(action, &rest) + HEALTH
    }

    fn dial(&self) -> std::io::Result<TcpStream> {
        let to = VIRTUAL.parse().unwrap();
        self.container.client(|| connect(Family::V4, to))
    }

    /// Clients of the database's that are not the agent's checks.
    fn clients_there(&self) -> usize {
        let clients = self.node.clients();
        let of_it = clients
            .iter()
            .filter(|client| client.peer.ip() == Family::V4.app());
        of_it.count()
    }
}

#[test]
fn backends_are_chosen_at_connect_and_dialled_from_there() {
    let host = Sandbox::new().unwrap();
    let behind = Behind::new(&host);
    for (action, how) in [("bypass", "balanced"), ("enrich", "intercepted")] {
        let agent = start(&host, "", &Behind::policy(action));
        if action == "enrich" {
            // Its first connection is left alone: balanced all the same.
            drop(behind.dial().unwrap());
            eventually("the namespace is served", || !served(&agent).is_empty());
        }
        let mut client = behind.dial().unwrap();
        assert!(common::works(&mut client));
        let peer = behind.container.client(|| client.peer_addr().unwrap());
        assert_eq!(peer, VIRTUAL.parse().unwrap(), "{action}");
        assert!(behind.clients_there() > 0, "{action}");
        assert_eq!(outcome(&agent, how), 1.0, "{action}");
        drop(client);
        eventually("the connection has ended", || behind.clients_there() == 0);
    }
}

/// Only the agent's namespace is asked whether a backend is alive.
#[test]
fn a_backend_that_the_agents_own_namespace_cannot_reach_is_dead_for_all() {
    let host = Sandbox::new().unwrap();
    let behind = Behind::new(&host);
    host.netns.ip(&["link", "set", "veth", "down"]).unwrap();
    let agent = start(&host, "", &Behind::policy("bypass"));
    eventually("it is found dead", || {
        behind
            .dial()
            .is_err_and(|error| error.kind() == ErrorKind::NetworkUnreachable)
    });
    assert!(cause(&agent, "no_backend") >= 1.0);
    host.netns.ip(&["link", "set", "veth", "up"]).unwrap();
    let own = format!("{}/32", BACKEND.split(':').next().unwrap());
    host.netns
        .ip(&["route", "add", &own, "via", "198.51.100.2"])
        .unwrap();
    eventually("it is back", || behind.dial().is_ok());
}
