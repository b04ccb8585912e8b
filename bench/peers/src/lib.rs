//! The proxies that underpass is compared with.
//!
//! Each is one file with a [`Peer`], and a line in [`all`]. What they share is read in this order: `peer` (what a peer says of
//! itself, and its task), `peer_bin` and `find` (which binary), `running` (start, ready, stop), `proc` (what the kernel knows of
//! it) and `watchdog` (the end when we are killed).

mod envoy;
mod find;
mod haproxy;
mod nginx;
mod peer;
mod peer_bin;
mod proc;
mod running;
mod shotover;
mod watchdog;

pub use find::{Absent, Binary, Found, Overrides};
pub use peer::{Launch, Peer, Setup};
pub use peer_bin::BadOverride;
pub use running::Running;

/// All of them, in the order in which they are listed.
#[must_use]
pub fn all() -> &'static [Peer] {
    const ALL: [Peer; 4] = [
        haproxy::HAPROXY,
        nginx::NGINX,
        envoy::ENVOY,
        shotover::SHOTOVER,
    ];
    &ALL
}

/// The one of that name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Peer> {
    all().iter().find(|peer| peer.name == name)
}
