//! The load generator.
//!
//! A generator is a process of its own, because a cgroup is what puts it on a path and because
//! its CPU is accounted apart. It does what its standard input says ([`order`]) with what a
//! workload file describes ([`workload`]).
//!
//! `serve` (orders) → `raw` or `driver` (requests, by `plan`, `keys` and `values`) → `tally`
//! (latencies). [`null`] is a server that does nothing: how fast a generator is against it is
//! how fast it is at most.

mod driver;
mod keys;
pub mod latencies;
pub mod null;
pub mod order;
mod pace;
mod plan;
mod prepare;
mod raw;
mod schedule;
mod serve;
mod tally;
mod threads;
pub mod used;
mod values;
pub mod workload;

pub use keys::random;
pub use prepare::{clear, prepare, version_of_cassandra};
pub use serve::{Generator, serve};

#[cfg(test)]
mod tests;
