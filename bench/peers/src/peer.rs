//! A peer's description of itself, and the task that it is given.

use std::{
    ffi::OsString,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use anyhow::ensure;

use crate::{
    find::{self, Absent, Binary, Found, Overrides},
    running::{self, Running},
};

/// Connections that a peer is configured for where it has a limit of its own: more than any
/// workload opens, so that no peer is compared at its limit; and few enough for usual limits of
/// descriptors (haproxy, with pipes for splicing, wants 2.5 for each and else refuses to start).
pub(crate) const MAX_CONNECTIONS: u32 = 2048;

/// A proxy that underpass is compared with.
pub struct Peer {
    /// The name in `--peer-bin NAME=PATH` and in reports.
    pub name: &'static str,
    /// The way of bytes through it, in one line.
    pub about: &'static str,
    /// Whether it carries CQL and nothing else.
    pub is_cql_only: bool,
    /// Whether it may hand bytes from socket to socket without copying them into its memory.
    pub may_splice: bool,
    /// The binary, and its source.
    pub binary: Binary,
    /// The reading of what a binary says of itself, beyond its version.
    pub(crate) examine: fn(Found) -> Result<Found, Absent>,
    /// The process for a task, with a front for each backend, as its own documentation recommends.
    pub(crate) launch: fn(&Found, &Setup, &[SocketAddr]) -> anyhow::Result<Launch>,
}

/// A peer's task.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The address at which it listens.
    pub host: Ipv4Addr,
    /// The databases, at least one; each gets a front of its own.
    pub backends: Vec<SocketAddr>,
    /// The folder for configuration and logs. Made if need be; the caller takes it away. One for
    /// each running peer.
    pub folder: PathBuf,
}

/// A process that stays in the foreground.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program's arguments.
    pub args: Vec<OsString>,
    /// Files to write first, with absolute paths.
    pub files: Vec<(PathBuf, String)>,
}

impl Peer {
    /// Looks for the peer on this host.
    ///
    /// # Errors
    /// The peer is not there, with the reason.
    pub fn find(&self, overrides: &Overrides) -> Result<Found, Absent> {
        find::find(self.name, &self.binary, overrides).and_then(self.examine)
    }

    /// Starts it, and waits until every front accepts connections.
    ///
    /// # Errors
    /// The peer does not start; the error has the last that it said.
    pub fn start(&self, found: &Found, setup: &Setup) -> anyhow::Result<Running> {
        let name = self.name;
        ensure!(!setup.backends.is_empty(), "{name}: no backend is given");
        running::start(name, &found.path, setup, &|fronts| {
            (self.launch)(found, setup, fronts)
        })
    }
}
