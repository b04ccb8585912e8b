//! A gateway on which databases run, too: virtual addresses and `[[incoming]]` in one namespace.

use std::net::{SocketAddr, TcpStream};

use cql_node::{Node, NodeOptions};
use sandbox::run_in;
use socket2::{Domain, Socket, Type};

use super::{FAMILIES, outcome};
use crate::common::{
    self, Family, PATIENCE, eventually,
    gateway::{self as hosts, ENRICHED, Hosts, QUICK},
    works,
};

/// The gateway's own database.
const OWN: [&str; 2] = ["10.2.0.254:9042", "[fd00:2::fe]:9042"];

fn dial(hosts: &Hosts, to: SocketAddr) -> std::io::Result<TcpStream> {
    let dial = || {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.connect_timeout(&to.into(), PATIENCE)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket.into())
    };
    run_in(Some(&hosts.clients), None, dial).unwrap()
}

fn own_databases(hosts: &Hosts) -> Vec<Node> {
    let start = |at: &str| {
        let options = NodeOptions {
            listen: at.parse().unwrap(),
            ..NodeOptions::default()
        };
        hosts.gateway.server(|| Node::start(options).unwrap())
    };
    OWN.iter().map(|at| start(at).unwrap()).collect()
}

fn policy() -> String {
    let own = format!("to = {OWN:?}");
    [
        "[[incoming]]\n".to_owned(),
        common::rule("enrich", &own),
        hosts::rule(
            "read",
            Family::V4,
            "enrich",
            &format!("from = [\"{ENRICHED}\"]"),
        ),
        hosts::rule("rest", Family::V4, "bypass", ""),
        hosts::rule("v6", Family::V6, "enrich", ""),
    ]
    .concat()
}

#[test]
fn databases_of_its_own_and_virtual_addresses_are_served_side_by_side() {
    let hosts = Hosts::new();
    let nodes = own_databases(&hosts);
    let mut agent = hosts.agent_with(&policy(), QUICK);
    let to_own = |n: usize| dial(&hosts, OWN[n].parse().unwrap());
    let mut own: Vec<_> = [0, 1].map(|n| to_own(n).unwrap()).into();
    let mut forwarded = hosts.connect(Family::V4).unwrap();
    let mut read = [
        hosts.connect_from(ENRICHED, Family::V4).unwrap(),
        hosts.connect(Family::V6).unwrap(),
    ];
    assert!(own.iter_mut().chain(&mut read).all(works) && works(&mut forwarded));
    for (node, client) in nodes.iter().zip(&own) {
        let peers: Vec<_> = node.clients().iter().map(|client| client.peer).collect();
        assert_eq!(peers, [client.local_addr().unwrap()], "the client's own");
    }
    for family in FAMILIES {
        let peers = hosts.peers(family);
        assert!(!peers.is_empty());
        assert!(peers.iter().all(|peer| peer.ip() == hosts::own(family)));
    }
    let flows = agent.json("/flows").unwrap();
    let flows = flows.as_array().unwrap();
    let flow = |client: &TcpStream| {
        let own = client.local_addr().unwrap().to_string();
        flows.iter().find(|flow| flow["client"] == own)
    };
    assert_eq!(flows.len(), 4, "{flows:?}");
    assert!(flow(&forwarded).is_none());
    assert!(
        own.iter()
            .all(|client| flow(client).unwrap()["backend"].is_null())
    );
    assert!(
        read.iter()
            .all(|client| flow(client).unwrap()["backend"].is_string())
    );
    for (rule, connections) in [("r", 2.0), ("read", 1.0), ("v6", 1.0)] {
        assert_eq!(outcome(&agent, rule, "intercepted"), connections, "{rule}");
    }

    agent.kill().unwrap();
    // What has a database behind it goes there, the rest is refused, the edge goes on.
    assert!([0, 1].iter().all(|n| works(&mut to_own(*n).unwrap())));
    assert!(hosts.connect_from(ENRICHED, Family::V4).is_err());
    assert!(hosts.connect(Family::V6).is_err());
    assert!(works(&mut forwarded) && works(&mut hosts.connect(Family::V4).unwrap()));
    agent.restart().unwrap();
    eventually("all are served again", || {
        let mut again = [to_own(0), to_own(1), hosts.connect(Family::V6)];
        let works = again
            .iter_mut()
            .all(|client| client.as_mut().is_ok_and(works));
        works && agent.json("/flows").unwrap().as_array().unwrap().len() >= 3
    });
    assert!(agent.stop().unwrap().success());
    assert_eq!(hosts.taken(), [""; 0]);
    assert!([0, 1].iter().all(|n| works(&mut to_own(*n).unwrap())));
}

/// The edge sends on; what is this host's own it cannot reach.
#[test]
fn its_own_database_is_a_backend_of_what_the_agent_dials_only() {
    let hosts = Hosts::new();
    let nodes = own_databases(&hosts);
    let rule = |action: &str| {
        let rest = format!("to = [\"10.9.0.10:9042\"]\nbackends = [{:?}]", OWN[0]);
        common::rule(action, &rest)
    };
    let agent = hosts.agent(&rule("enrich"));
    assert!(works(&mut hosts.connect(Family::V4).unwrap()));
    eventually("it has ended there", || nodes[0].clients().is_empty());
    hosts.write(&agent, &rule("bypass"));
    eventually("nothing is taken", || hosts.taken().is_empty());
    let no_route = "underpass_edge_packets_total{verdict=\"no_route\"}";
    assert!(hosts.connect(Family::V4).is_err());
    assert!(agent.metric(no_route).unwrap() >= 1.0);
}
