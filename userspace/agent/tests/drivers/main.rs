//! Real drivers against a real Cassandra, through bypass and through enrich: everything that
//! an application does works, and the operator sees what it did.
//!
//! `cargo xtask test` provides Cassandra, the Python environment and the programs. They live in the host's
//! own network namespace, so these tests do, too; each has its agent, its cgroup and its
//! keyspace.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

mod adopted;
mod cassandra;
mod cluster;
#[path = "../enrichment/trace/collector.rs"]
#[expect(dead_code, reason = "the tests of spans use all of it")]
mod collector;
mod differential;
mod fold;
mod go;
mod incoming;
mod java;
mod killed;
mod lookups;
mod mirrored;
mod node;
#[path = "../common/operating.rs"]
mod operating;
mod paced;
mod program;
mod protect;
#[path = "../common/cassandra.rs"]
mod provided;
mod python;
mod rust;
mod same;
mod scylla;
mod seen;
mod sockets;
mod suite;
mod twin;
mod upgraded;
mod warned;
mod workload;
