//! An in-memory CQL database of one node that real drivers accept: for tests, benchmarks and
//! the demo.
//!
//! It speaks native protocol v3, v4 and v5, keeps tables in memory, and knows as much CQL as
//! drivers, cqlsh and key-value load need. It has no replication, no time: TTLs and write
//! timestamps are read and dropped, the last writer wins. One thread runs a node; the path of
//! a request is `server` (bytes) → `wire` (frames) → `session` (opcodes) → `statements`
//! (plans) → `plan_select` / `plan_modify` → `store`.

mod ast;
mod body;
mod clients;
mod credentials;
mod database;
mod delays;
mod describe;
mod failure;
mod filter;
mod in_process;
mod lexer;
mod literal;
mod moment;
mod ordered;
mod parse;
mod parse_data;
mod parse_schema;
mod plan;
mod plan_modify;
mod plan_select;
mod request;
mod response;
mod ring;
mod schema;
pub mod scylla;
mod server;
mod session;
mod sources;
mod statements;
mod store;
mod system;
mod system_table;
mod tally;
mod types;
mod versions;
mod wire;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context;
use tokio::sync::watch;

pub use clients::Client;
use clients::Clients;
pub use credentials::Credentials;
pub use delays::Delays;
pub use in_process::{Connection, InProcess};
use tally::Tallied;
pub use tally::Tally;
use versions::{MAX_VERSION, MIN_VERSION};

/// How a node is to run.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Address to listen on; port 0 for any.
    pub listen: SocketAddr,
    /// With them, clients must log in; without, anyone is let in.
    pub credentials: Option<Credentials>,
    /// The highest protocol version to speak, 3 to 5.
    pub max_version: u8,
    /// The longest body of a request, in bytes; at most the protocol's 256 MiB.
    pub max_request_bytes: usize,
    /// Bytes that all tables together may hold. Beyond them writes fail as Overloaded.
    pub max_stored_bytes: usize,
    /// Connections at a time; more are closed at once.
    pub max_connections: usize,
    /// How long QUERY, EXECUTE and BATCH take; None: as long as they take.
    pub delays: Option<Delays>,
    /// The nodes that drivers are told of, itself among them, in the order of their tokens: each has
    /// an equal part of the ring. They share nothing. Empty: it is alone.
    pub ring: Vec<SocketAddr>,
    /// Whether it has `system.peers_v2`, as Cassandra has since 4.0. Without it, `system.peers` alone tells of the ring, and has no
    /// ports.
    pub has_peers_v2: bool,
    /// Extensions of ScyllaDB's that it offers.
    pub scylla: Option<scylla::Scylla>,
    /// Statements that make its schema before the first client comes.
    pub schema: Vec<String>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            credentials: None,
            max_version: MAX_VERSION,
            max_request_bytes: 32 << 20,
            max_stored_bytes: 2 << 30,
            max_connections: 32_768,
            delays: None,
            ring: Vec::new(),
            has_peers_v2: true,
            scylla: None,
            schema: Vec::new(),
        }
    }
}

impl NodeOptions {
    /// Options of a node that lets in nobody but this user.
    #[must_use]
    pub fn of_user(user: &str, password: &str) -> Self {
        Self {
            credentials: Some(Credentials {
                user: user.to_owned(),
                password: password.to_owned(),
            }),
            ..Self::default()
        }
    }
}

/// A running node. Dropping it closes every connection and waits for its thread.
#[derive(Debug)]
pub struct Node {
    addr: SocketAddr,
    clients: Arc<Clients>,
    tally: Tallied,
    ring: watch::Sender<Vec<SocketAddr>>,
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    /// Starts a node on a thread of its own. Its socket is made here, on the calling thread,
    /// and so in that thread's network namespace. On return, clients can connect.
    ///
    /// # Errors
    /// When the address cannot be listened on, or a thread or runtime cannot be had.
    pub fn start(options: NodeOptions) -> anyhow::Result<Self> {
        anyhow::ensure!(
            (MIN_VERSION..=MAX_VERSION).contains(&options.max_version),
            "max_version is {}, and must be {MIN_VERSION} to {MAX_VERSION}",
            options.max_version
        );
        let listener = TcpListener::bind(options.listen)
            .with_context(|| format!("cannot listen on {}", options.listen))?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let clients = Arc::new(Clients::default());
        let (stop, stopped) = watch::channel(());
        let (ring, rings) = watch::channel(options.ring.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let for_thread = Arc::clone(&clients);
        let tally = Tallied::default();
        let counting = tally.clone();
        let thread = std::thread::Builder::new()
            .name("cql-node".into())
            .spawn(move || {
                if let Err(error) = run(
                    &runtime,
                    listener,
                    addr,
                    options,
                    (for_thread, counting),
                    (rings, stopped),
                ) {
                    tracing::error!(%error, "the node stopped");
                }
            })?;
        Ok(Self {
            addr,
            clients,
            tally,
            ring,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Address that the node listens on, with the port that the kernel chose.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The connections of now, in the order they came.
    #[must_use]
    pub fn clients(&self) -> Vec<Client> {
        self.clients.snapshot()
    }

    /// Connections accepted since the start.
    #[must_use]
    pub fn connections_total(&self) -> u64 {
        self.clients.total()
    }

    /// Tells of other nodes from now on ([`NodeOptions::ring`]), and those who asked for it of a change.
    pub fn set_ring(&self, nodes: Vec<SocketAddr>) {
        self.ring.send_replace(nodes);
    }

    /// Counts of all that the node has received and sent since its start.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally.read()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // An error is a panic that has been reported already.
            let _ = thread.join();
        }
    }
}

fn run(
    runtime: &tokio::runtime::Runtime,
    listener: TcpListener,
    addr: SocketAddr,
    options: NodeOptions,
    (clients, tally): (Arc<Clients>, Tallied),
    (rings, stop): (watch::Receiver<Vec<SocketAddr>>, watch::Receiver<()>),
) -> anyhow::Result<()> {
    let mut db = database::Database::new(
        addr,
        options.max_version,
        options.max_stored_bytes,
        Arc::clone(&clients),
    )
    .map_err(|failure| anyhow::anyhow!(failure.message))?;
    db.rings = rings;
    db.scylla = options.scylla;
    if !options.has_peers_v2 {
        db.system.remove_peers_v2();
    }
    for text in &options.schema {
        let made = db.make(text);
        made.map_err(|failure| anyhow::anyhow!("{text}: {}", failure.message))?;
    }
    let settings = server::NodeSettings {
        credentials: options.credentials,
        limits: wire::Limits {
            max_version: options.max_version,
            max_body: options.max_request_bytes,
        },
        max_connections: options.max_connections,
        delays: options.delays,
        tally,
    };
    let local = tokio::task::LocalSet::new();
    local.block_on(runtime, async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        server::serve(listener, db, clients, settings, stop).await;
        Ok(())
    })
}
