//! Drivers of ScyllaDB, and a node that offers its extensions: the same cases with the same results, directly and
//! through steps that look into what the extensions change.

mod go;
mod python;
mod rust;
mod steps;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use cql_node::{
    Client, Node, NodeOptions,
    scylla::{LWT_MARK, METADATA_ID, RATE_LIMIT_ERROR, Scylla, TABLETS_V1, TABLETS_V2},
};
use sandbox::Cgroup;

use super::{cassandra::Cassandra, same};

/// The keyspace, to clients.
const KEYSPACE: &str = "app";

/// The extensions with either of the two that exclude each other.
const V1: [&str; 4] = [METADATA_ID, LWT_MARK, RATE_LIMIT_ERROR, TABLETS_V1];
const V2: [&str; 4] = [METADATA_ID, LWT_MARK, RATE_LIMIT_ERROR, TABLETS_V2];

/// Fields that differ with the node: its address; and the size of answers, of which the first to a statement on each connection
/// tells where a tablet is.
const OF_THE_NODE: [&str; 2] = ["database", "bytes_to_client"];

/// For what a driver does in the background.
const PATIENCE: Duration = Duration::from_secs(20);

/// Rows that are read in pages.
const ROWS: i32 = 60;

/// A node with these extensions and the suite's tables, in a keyspace that the database calls so.
struct Server {
    node: Node,
    /// The address and the user, as the suites want them.
    access: Cassandra,
}

impl Server {
    fn start(extensions: &[&'static str], keyspace: &str) -> Self {
        let (user, password) = ("suite", "secret");
        let table = |columns: &str| format!("CREATE TABLE {keyspace}.{columns}");
        let replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}";
        let node = Node::start(NodeOptions {
            max_version: 4,
            scylla: Some(Scylla {
                limited: Some("limited".to_owned()),
                ..Scylla::of(extensions)
            }),
            schema: vec![
                format!("CREATE KEYSPACE {keyspace} WITH replication = {replication}"),
                table("things (id int PRIMARY KEY, name text, n int)"),
                table("many (k int, c int, v text, PRIMARY KEY (k, c))"),
                table("cached (id int PRIMARY KEY, v text)"),
                table("changing (id int PRIMARY KEY, a text)"),
                table("limited (id int PRIMARY KEY, v text)"),
                table("closed (id int PRIMARY KEY, v text)"),
            ],
            ..NodeOptions::of_user(user, password)
        });
        let node = node.unwrap();
        let access = Cassandra {
            addr: node.addr(),
            user: user.to_owned(),
            password: password.to_owned(),
        };
        Self { node, access }
    }

    /// Waits for connections of which this holds.
    async fn wait_for(&self, what: &str, mut holds: impl FnMut(&[Client]) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut clients = self.node.clients();
            clients.retain(|client| client.user.is_some());
            if holds(&clients) {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: {clients:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A driver chooses a connection's shard by its own port, which the node has to see.
    async fn wait_for_both_shards(&self) {
        self.wait_for("both shards have a connection", |clients| {
            let shards: BTreeSet<_> = clients.iter().map(|c| c.peer.port() % 2).collect();
            shards.len() == 2
        })
        .await;
    }
}

/// Runs a suite through reporters, inline and tapped, each at a node of its own; they tell the same.
fn told_of_copies(suite: impl Fn(&Server, &Cgroup)) {
    let servers = [(); 2].map(|()| Server::start(&V1, KEYSPACE));
    let databases = servers.each_ref().map(|server| &server.access);
    same::compare_at(databases, &OF_THE_NODE, |nth, cgroup| {
        suite(&servers[nth], cgroup);
    });
}
