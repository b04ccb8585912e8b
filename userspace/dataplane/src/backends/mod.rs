//! Backends: the databases behind the virtual addresses of a rule.
//!
//! - `slots.rs`: weights as slots, of which each new connection draws one.
//! - `tables.rs`: the kernel's slots, for connections that it sends straight to a backend.
//! - `severed.rs`: ends connections that the kernel has sent to one.
//! - `probe.rs`: how the agent reaches a backend without being intercepted.

mod probe;
mod severed;
mod slots;
mod tables;

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
};

use aya::{Ebpf, maps::Map};

use policy::RuleName;

pub use probe::Probe;
pub use severed::Severed;
pub use slots::{BackendSlots, FULL_WEIGHT, Weight};
pub(crate) use tables::{BackendMaps, BackendTables};

/// The weights of backends. Who is not in it has [`FULL_WEIGHT`]: nothing is known against it.
pub type Weights = BTreeMap<SocketAddr, Weight>;

/// The weight of one.
pub fn weight_of(backend: SocketAddr, weights: &Weights) -> Weight {
    weights.get(&backend).copied().unwrap_or(FULL_WEIGHT)
}

/// New connections that the kernel has sent straight to a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendCount {
    /// By this rule.
    pub rule: RuleName,
    /// To this backend.
    pub backend: SocketAddr,
    /// How many since the agent started.
    pub connections: u64,
}

/// Another descriptor of the map of virtual addresses.
pub(crate) fn virtuals(ebpf: &Ebpf) -> io::Result<OwnedFd> {
    match ebpf.map("virtuals") {
        Some(Map::SkStorage(map)) => map.fd().as_fd().try_clone_to_owned(),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}
