//! The load generator.
//!
//! A generator is a process of its own, because a cgroup is what puts it on a path and because
//! its CPU is accounted apart. It does what its standard input says ([`order`]) with what a
//! workload file describes ([`workload`]).

/// An interval of [`order::Answer::intervals`], in ms.
pub const INTERVAL_MS: u64 = 250;

pub mod latencies;
pub mod order;
pub mod workload;
