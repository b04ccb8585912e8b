//! The task that a peer is given: whom it stands before, and what it carries.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

/// Traffic that a peer is to carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Cassandra's native protocol.
    Cql,
    /// RESP.
    Redis,
    /// Nothing: connections are made and closed.
    Connect,
}

impl Traffic {
    /// For messages.
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
    /// Where it listens.
    pub host: Ipv4Addr,
    /// The databases, at least one; each gets a front of its own.
    pub backends: Vec<SocketAddr>,
    /// Of the databases: user and password, for peers that log in themselves.
    pub credentials: Option<(String, String)>,
    /// What it is to carry.
    pub traffic: Traffic,
    /// For configuration and logs. Made if need be; the caller takes it away. One for each
    /// running peer.
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
