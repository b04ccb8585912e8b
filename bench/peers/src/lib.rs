//! The proxies that underpass is compared with.
//!
//! Each is one file that implements [`Peer`], and a line in [`all`]. What they share is read in
//! this order: [`Setup`] (the task), `peer_bin` and `find` (which binary), `plan` (what is to be started, and on
//! which ports), `running` (start, ready, stop), `proc` (what the kernel knows of it) and
//! `watchdog` (the end when we are killed).

mod cql_proxy;
mod envoy;
mod find;
mod haproxy;
mod nginx;
mod overrides;
mod peer;
mod peer_bin;
mod plan;
mod proc;
mod running;
mod setup;
mod shotover;
mod watchdog;
mod zdm_proxy;

pub use find::{Absent, Binary, Found};
pub use overrides::Overrides;
pub use peer::Peer;
pub use peer_bin::BadOverride;
pub use plan::{Launch, Plan, Ports};
pub use running::Running;
pub use setup::{Setup, Traffic};

/// All of them, in the order in which they are listed.
#[must_use]
pub fn all() -> &'static [&'static dyn Peer] {
    &[
        &haproxy::Haproxy,
        &nginx::Nginx,
        &envoy::Envoy,
        &shotover::Shotover,
        &cql_proxy::CqlProxy,
        &zdm_proxy::ZdmProxy,
    ]
}

/// The one of that name.
#[must_use]
pub fn named(name: &str) -> Option<&'static dyn Peer> {
    all().iter().copied().find(|peer| peer.name() == name)
}
