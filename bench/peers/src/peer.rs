//! A peer's description of itself.

use std::{
    net::{Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
};

use anyhow::ensure;

use crate::{
    find::{self, Absent, Binary, Found},
    overrides::Overrides,
    plan::{Plan, Ports},
    running::{self, Running},
};

/// Connections that a peer is configured for where it has a limit of its own: more than any
/// workload opens, so that no peer is compared at its limit; and few enough for usual limits of
/// descriptors (haproxy, with pipes for splicing, wants 2.5 for each and else refuses to start).
pub(crate) const MAX_CONNECTIONS: u32 = 2048;

/// A proxy that underpass is compared with.
pub trait Peer: Sync {
    /// The peer's name in `--peer-bin NAME=PATH` and in reports.
    fn name(&self) -> &'static str;

    /// One line: how bytes travel through it.
    fn about(&self) -> &'static str;

    /// Whether it can carry this.
    fn carries(&self, traffic: Traffic) -> bool;

    /// Whether it may hand bytes from socket to socket without copying them into its memory.
    fn may_splice(&self) -> bool {
        false
    }

    /// The native protocol versions that clients can speak through it; None: it does not look.
    fn cql_versions(&self) -> Option<RangeInclusive<u8>>;

    /// How its binary is called, and where it is to be had.
    fn binary(&self) -> Binary;

    /// The programs to start for `setup`, as the peer's own documentation recommends.
    ///
    /// # Errors
    /// It cannot do that, or there is no free port.
    fn plan(&self, found: &Found, setup: &Setup, ports: &mut Ports) -> anyhow::Result<Plan>;

    /// Looks for it on this host.
    ///
    /// # Errors
    /// It is not there, and why.
    fn find(&self, overrides: &Overrides) -> Result<Found, Absent> {
        find::find(self.name(), &self.binary(), overrides)
    }

    /// Starts it, and waits until every front accepts connections.
    ///
    /// # Errors
    /// It cannot carry that, or does not start; with the last that it said.
    fn start(&self, found: &Found, setup: &Setup) -> anyhow::Result<Running> {
        let name = self.name();
        ensure!(
            self.carries(setup.traffic),
            "{name} does not carry {}",
            setup.traffic.name()
        );
        ensure!(!setup.backends.is_empty(), "{name}: no backend is given");
        running::start(name, setup, &|ports| self.plan(found, setup, ports))
    }
}

/// The traffic that a peer has to carry.
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

/// The setup that a peer is started for.
#[derive(Clone)]
pub struct Setup {
    /// Where it listens.
    pub host: Ipv4Addr,
    /// The databases, at least one; each gets a front of its own.
    pub backends: Vec<SocketAddr>,
    /// The databases' user and password, for peers that log in themselves.
    pub credentials: Option<(String, String)>,
    /// The traffic that it has to carry.
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
