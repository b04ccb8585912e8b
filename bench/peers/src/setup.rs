//! The task that a peer is given: its databases, and the traffic to carry.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

/// Traffic that a peer is to carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Cassandra's native protocol.
    Cql,
    /// The protocol of Redis, RESP.
    Redis,
    /// No protocol: connections are made and closed.
    Connect,
}

impl Traffic {
    /// Returns the name for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cql => "CQL",
            Self::Redis => "Redis",
            Self::Connect => "bare connections",
        }
    }
}

/// A peer's task.
#[derive(Clone)]
pub struct Setup {
    /// The address at which it listens.
    pub host: Ipv4Addr,
    /// The databases, at least one; each gets a front of its own.
    pub backends: Vec<SocketAddr>,
    /// The databases' user and password, for peers that log in themselves.
    pub credentials: Option<(String, String)>,
    /// The traffic that it is to carry.
    pub traffic: Traffic,
    /// The folder for configuration and logs. Made if need be; the caller takes it away. One for
    /// each running peer.
    pub folder: PathBuf,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("host", &self.host)
            .field("backends", &self.backends)
            .field("traffic", &self.traffic)
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}
