//! Drivers find their way: a real one learns of a cluster from one of its nodes, dials each at its own
//! address, and is intercepted there. Nothing that it reads has to be rewritten.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::Path,
};

use cql_node::{Node, NodeOptions};
use sandbox::{Agent, Cgroup, Netns, Sandbox, run_in};
use scylla::client::{session::Session, session_builder::SessionBuilder};
use serde_json::Value;

use crate::common::{BINARY, Hosts, enrich};

const PORT: u16 = 9042;
const KEYS: i32 = 300;

/// Cassandra's opcode of EXECUTE.
const EXECUTE: usize = 0x0A;

fn host(own: &[&str], others: &[&str]) -> Hosts {
    let (app, database) = (Sandbox::new().unwrap(), Netns::new().unwrap());
    app.netns.join(&database, own, others).unwrap();
    Hosts::of(app, database)
}

/// A node at each address, which share nothing: a row is where it was written.
fn cluster(netns: &Netns, ips: [&str; 3]) -> Vec<Node> {
    let ring = ips.map(|ip| SocketAddr::new(ip.parse().unwrap(), PORT));
    let start = |listen| {
        let options = NodeOptions {
            listen,
            ring: ring.to_vec(),
            schema: vec![
                "CREATE KEYSPACE ks WITH replication = \
                 {'class': 'SimpleStrategy', 'replication_factor': 1}"
                    .into(),
                "CREATE TABLE ks.t (k int PRIMARY KEY, v int)".into(),
            ],
            ..NodeOptions::default()
        };
        let started = run_in(Some(netns), None, || Node::start(options));
        started.unwrap().unwrap()
    };
    ring.map(start).into()
}

async fn talk(contact: SocketAddr) -> Session {
    let session = SessionBuilder::new().known_node_addr(contact).build().await;
    let session = session.unwrap();
    let insert = session.prepare("INSERT INTO ks.t (k, v) VALUES (?, ?)");
    let insert = insert.await.unwrap();
    let select = session.prepare("SELECT v FROM ks.t WHERE k = ?");
    let select = select.await.unwrap();
    for k in 0..KEYS {
        session.execute_unpaged(&insert, (k, -k)).await.unwrap();
    }
    for k in 0..KEYS {
        let rows = session.execute_unpaged(&select, (k,)).await.unwrap();
        let rows = rows.into_rows_result().unwrap();
        // Only the node that has its token has it.
        assert_eq!(rows.single_row::<(i32,)>().unwrap(), (-k,));
    }
    session
}

fn each_node_is_dialled_at_its_own_address(hosts: &Hosts, ips: [&str; 3], client: &str) {
    let nodes = cluster(&hosts.database, ips);
    let agent = hosts.agent(&enrich(&[PORT]));
    let app = (&hosts.app.netns, Some(&hosts.app.cgroup));
    each_is_dialled_and_none_goes_around(&nodes, &agent, app, client);
}

/// By a driver that is there, and knows one of them.
fn each_is_dialled_and_none_goes_around(
    nodes: &[Node],
    agent: &Agent<'_>,
    (netns, cgroup): (&Netns, Option<&Cgroup>),
    client: &str,
) {
    let expected: BTreeSet<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
    let flows = run_in(Some(netns), cgroup, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let _session = talk(nodes[1].addr()).await;
            agent.json("/flows").unwrap()
        })
    });
    let flows = flows.unwrap();
    let dialled = |flow: &Value| flow["orig_dst"].as_str().map(str::to_owned);
    let flows: Vec<Value> = flows.as_array().unwrap().clone();
    let seen: BTreeSet<String> = flows.iter().filter_map(dialled).collect();
    assert_eq!(seen, expected, "{flows:?}");
    assert!(
        flows.iter().all(|flow| flow["path"] == "enrich"),
        "{flows:?}"
    );
    let connections: u64 = nodes.iter().map(Node::connections_total).sum();
    let intercepted = agent
        .metric("underpass_connections_total{outcome=\"intercepted\",rule=\"r\"}")
        .unwrap();
    assert_eq!(connections as f64, intercepted, "none went around");
    for node in nodes {
        let executed = node.tally().requests[EXECUTE];
        assert!(executed > 0, "{} has a part of the ring", node.addr());
        let clients: BTreeMap<SocketAddr, String> = node
            .clients()
            .iter()
            .map(|c| (c.peer, c.peer.ip().to_string()))
            .collect();
        assert!(clients.values().all(|ip| ip == client), "{clients:?}");
    }
    let statements = agent.json("/statements").unwrap();
    let of_table = statements.as_array().unwrap().iter();
    let counts = of_table
        .filter(|row| row["table"] == "t" && row["kind"] != "prepare")
        .map(|row| row["count"].as_u64().unwrap());
    assert_eq!(counts.sum::<u64>(), 2 * KEYS as u64, "{statements}");
}

#[test]
fn each_node_is_dialled_at_its_own_ipv4_address() {
    let hosts = host(
        &["192.0.2.1/24"],
        &["192.0.2.2/24", "192.0.2.3/24", "192.0.2.4/24"],
    );
    let ips = ["192.0.2.2", "192.0.2.3", "192.0.2.4"];
    each_node_is_dialled_at_its_own_address(&hosts, ips, "192.0.2.1");
}

#[test]
fn each_node_is_dialled_at_its_own_ipv6_address() {
    let hosts = host(
        &["2001:db8::1/64"],
        &["2001:db8::2/64", "2001:db8::3/64", "2001:db8::4/64"],
    );
    let ips = ["2001:db8::2", "2001:db8::3", "2001:db8::4"];
    each_node_is_dialled_at_its_own_address(&hosts, ips, "2001:db8::1");
}

/// The agent is on the databases' host, and the driver elsewhere.
#[test]
fn each_node_is_dialled_at_its_own_address_from_another_host() {
    let (v4, v6) = (
        ["192.0.2.2", "192.0.2.3", "192.0.2.4"],
        ["2001:db8::2", "2001:db8::3", "2001:db8::4"],
    );
    for (ips, bits, client) in [(v4, 24, "192.0.2.1"), (v6, 64, "2001:db8::1")] {
        let (clients, databases) = (Netns::new().unwrap(), Sandbox::new().unwrap());
        let own = ips.map(|ip| format!("{ip}/{bits}"));
        let own = own.each_ref().map(String::as_str);
        let others = format!("{client}/{bits}");
        databases.netns.join(&clients, &own, &[&others]).unwrap();
        let nodes = cluster(&databases.netns, ips);
        let policy = format!("[[incoming]]\n{}", enrich(&[PORT]));
        let (netns, cgroup) = (Some(&databases.netns), &databases.cgroup);
        let agent = Agent::start(Path::new(BINARY), netns, cgroup, "", &policy).unwrap();
        each_is_dialled_and_none_goes_around(&nodes, &agent, (&clients, None), client);
    }
}

/// A driver that dials a virtual address of these nodes: which addresses it finds, and what it dials.
fn behind_a_virtual_address(pipeline: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    const VIRTUAL: &str = "10.9.0.10:9042";
    let hosts = host(
        &["192.0.2.1/24"],
        &["192.0.2.2/24", "192.0.2.3/24", "192.0.2.4/24"],
    );
    let nodes = cluster(&hosts.database, ["192.0.2.2", "192.0.2.3", "192.0.2.4"]);
    let backends: Vec<String> = nodes.iter().map(|n| format!("\"{}\"", n.addr())).collect();
    let agent = hosts.agent(&format!(
        "[[rule]]\nname = \"r\"\nto = [\"{VIRTUAL}\"]\nbackends = [{}]\naction = \"enrich\"\n{pipeline}\n\
         [[rule]]\nname = \"direct\"\nto = [\":{PORT}\"]\naction = \"enrich\"\n",
        backends.join(", ")
    ));
    hosts.client(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let contact: SocketAddr = VIRTUAL.parse().unwrap();
            let session = SessionBuilder::new().known_node_addr(contact).build().await;
            let session = session.unwrap();
            let select = session.prepare("SELECT v FROM ks.t WHERE k = ?");
            let select = select.await.unwrap();
            for k in 0..50 {
                session.execute_unpaged(&select, (k,)).await.unwrap();
            }
            let cluster = session.get_cluster_state();
            let found = cluster.get_nodes_info().iter();
            let found = found.map(|node| node.address.to_string()).collect();
            let flows = agent.json("/flows").unwrap();
            let flows = flows.as_array().unwrap().iter();
            let dialled = flows.map(|flow| flow["orig_dst"].as_str().unwrap().to_owned());
            (found, dialled.collect())
        })
    })
}

#[test]
fn behind_a_virtual_address_a_driver_finds_that_alone_if_it_is_to() {
    let the_virtual = BTreeSet::from(["10.9.0.10:9042".to_owned()]);
    let pipeline = "pipeline = [{ transform = \"rewrite\", addresses = \"dialled\" }]";
    let (found, dialled) = behind_a_virtual_address(pipeline);
    assert_eq!((&found, &dialled), (&the_virtual, &the_virtual));
    // Otherwise it finds the nodes, and goes to them.
    let (found, dialled) = behind_a_virtual_address("");
    assert!(
        found.len() == 3 && dialled.len() > 1,
        "{found:?} {dialled:?}"
    );
}
