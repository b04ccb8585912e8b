//! A peer's description of itself.

use std::ops::RangeInclusive;

use anyhow::ensure;

use crate::{
    find::{self, Absent, Binary, Found},
    overrides::Overrides,
    plan::{Plan, Ports},
    running::{self, Running},
    setup::{Setup, Traffic},
};

/// A proxy that underpass is compared with.
pub trait Peer: Sync {
    /// Returns the name in `--peer-bin NAME=PATH` and in reports.
    fn name(&self) -> &'static str;

    /// Describes in one line how bytes travel through it.
    fn about(&self) -> &'static str;

    /// Whether it can carry this.
    fn carries(&self, traffic: Traffic) -> bool;

    /// Whether it may hand bytes from socket to socket without copying them into its memory.
    fn may_splice(&self) -> bool {
        false
    }

    /// The native protocol versions that clients can speak through it; None: it does not look.
    fn cql_versions(&self) -> Option<RangeInclusive<u8>>;

    /// Describes its binary, and the binary's source.
    fn binary(&self) -> Binary;

    /// Plans what is to be started for `setup`, as its own documentation recommends.
    ///
    /// # Errors
    /// The peer cannot do that, or there is no free port.
    fn plan(&self, found: &Found, setup: &Setup, ports: &mut Ports) -> anyhow::Result<Plan>;

    /// Looks for the peer on this host.
    ///
    /// # Errors
    /// The peer is not there, with the reason.
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
