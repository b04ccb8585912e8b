//! Settings of a run.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use super::behaviour::Choices;

/// Plan of the clients' part of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The server, as it is dialled.
    pub to: SocketAddr,
    /// Ends once connections with so many bytes, in both directions, were begun.
    pub bytes: u64,
    /// Ends after so long, even with fewer bytes.
    pub time: Option<Duration>,
    /// The fewest and the most connections at a time; the number varies between them.
    pub connections: (u64, u64),
    /// Repeats a run.
    pub seed: u64,
    /// The first connection's number: with the seed it repeats a single connection.
    pub first: u64,
    /// The largest single read or write, in bytes.
    pub chunk_max: u64,
    /// The most bytes of one connection.
    pub connection_max: u64,
    /// A reader that stops does so for at most this long.
    pub stop_max: Duration,
    /// Without progress for longer than this, beyond what scripts explain, a connection hangs.
    pub hang_limit: Duration,
    /// The whole run has to end by then.
    pub deadline: Duration,
    /// For throughput: large chunks, default buffers, no pauses but those of a shape.
    pub steady: bool,
    /// Whether the process that carries the connections may die: a connection may then end at any
    /// byte, or not begin. Bytes that came until then are checked as ever.
    pub may_be_cut: bool,
    /// Whether the server's findings are fetched in the end, by a connection like the others. Otherwise
    /// [`super::Server::take`] has them.
    pub fetches: bool,
    /// Behaviours to choose from.
    pub choices: Choices,
    /// Begin as a CQL driver does, and wrap everything into frames.
    pub cql: Option<Cql>,
    /// The program that plays the client which is killed. Without one none is.
    pub helper: Option<Helper>,
}

impl Plan {
    /// 64 MiB over 1 to 64 connections, of every behaviour but kills.
    pub fn new(to: SocketAddr) -> Self {
        Self {
            to,
            bytes: 64 << 20,
            time: None,
            connections: (1, 64),
            seed: 1,
            first: 0,
            chunk_max: 1 << 20,
            connection_max: 64 << 20,
            stop_max: Duration::from_millis(300),
            hang_limit: Duration::from_secs(1),
            deadline: Duration::from_secs(600),
            steady: false,
            may_be_cut: false,
            fetches: true,
            choices: Choices::default(),
            cql: None,
            helper: None,
        }
    }
}

/// CQL handshakes of the clients.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Cql {
    /// Each connection gives one of these as its driver's name.
    pub drivers: Vec<String>,
    /// The driver's version.
    pub driver_version: String,
    /// The application's name.
    pub application: Option<String>,
    /// USE this keyspace.
    pub keyspace: Option<String>,
    /// User and password, in case the server asks.
    pub credentials: Option<(String, String)>,
    /// Whether somebody on the way has the server see [`super::SERVERS_KEYSPACE`] in place of
    /// [`super::CLIENTS_KEYSPACE`], and clients the other one: then frames name it, and come as that edit makes them.
    pub is_edited: bool,
}

impl Default for Cql {
    fn default() -> Self {
        Self {
            drivers: vec!["underpass-integrity".into()],
            driver_version: "1.0".into(),
            application: None,
            keyspace: None,
            credentials: None,
            is_edited: false,
        }
    }
}

/// A program that calls [`super::child`], and nothing else that matters.
#[derive(Debug, Clone)]
pub struct Helper {
    /// The program.
    pub program: PathBuf,
    /// Arguments of the program.
    pub arguments: Vec<String>,
}

impl Helper {
    /// The running test binary, in which the test of this full name (`module::test`) calls [`super::child`].
    ///
    /// # Errors
    /// The binary does not know where it is.
    pub fn test(name: &str) -> std::io::Result<Self> {
        Ok(Self {
            program: std::env::current_exe()?,
            arguments: ["--exact", name, "--nocapture"].map(String::from).into(),
        })
    }
}
