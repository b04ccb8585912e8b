//! Names of databases in rules (`to`): looked up, and followed as their addresses change.
//!
//! From the inside out:
//!
//! - `message`: a query and its answer as bytes, by the crate `simple-dns`.
//! - `system`: `/etc/resolv.conf` and `/etc/hosts`.
//! - `resolver`: the servers are asked, over UDP and TCP.
//! - `cluster`: the nodes of a cluster, which one of them tells.
//! - `known`: what is known of one name, as a function of answers and time.
//! - `book`: what is known of all names; `metrics`.
//! - `follow`: the tasks that look names up again.
//!
//! **Invariant**: an answer decides which addresses a rule holds for, and nothing else. No answer, or nonsense, changes nothing;
//! a name that has never been resolved stands for no address.
//!
//! **Boundary**: nothing of a flow waits for a look-up. Who puts the addresses into force is the agent.

#![forbid(unsafe_code)]

mod book;
mod cluster;
mod failure;
mod follow;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
mod known;
mod message;
mod metrics;
mod resolver;
mod system;
#[cfg(test)]
mod tests;

pub use book::{Book, NameView};
pub use cluster::{
    ClusterSettings, ContactPoint, Login, MAX_CLUSTERS, MAX_CONTACT_POINTS, MAX_DATACENTERS,
};
pub use failure::Failure;
pub use follow::{Follower, MAX_NAMES, Wanted, look_up_once};
pub use known::{LINGER, LOOK_UP_AGAIN_AFTER_AT_LEAST, LOOK_UP_AGAIN_AFTER_AT_MOST, State};
pub use metrics::NameMetrics;
pub use resolver::{Dial, Resolver, dial_plainly};
pub use system::Files;
