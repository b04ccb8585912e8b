//! The agent: intercepts by policy, relays and decodes the flows that it marks, and reports what it
//! saw.
//!
//! From `main` to a flow's bytes: [`commands::run`] → [`proxy::run`] → `proxy/src/intake.rs` (dials
//! and answers a held SYN) → `proxy/src/relay.rs` (moves bytes) → `proxy/src/decode.rs` (decodes
//! them).
//!
//! **Invariant**: a flow's task owns its sockets and its decoder. Tasks share counters ([`telemetry`]), the
//! registry of flows ([`flow`]) and the policy, which one task owns ([`control`]). There is no `unsafe` in
//! this crate.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout)]

#[macro_use]
mod out;

pub mod admin;
pub mod backends;
pub mod cli;
pub mod commands;
pub mod config;
mod confine;
pub mod containers;
pub mod control;
pub mod edge;
pub mod fleet;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
mod incoming;
pub mod kernel_counters;
pub mod log;
pub mod marks;
pub mod namespaces;
pub mod observed;
pub mod overhead;
pub mod process_metrics;
pub mod remembered;
mod seconds;
mod service_manager;
pub mod shortcuts;
pub mod socket_file;
pub mod triggers;
mod untouched;
pub mod upgrade;
