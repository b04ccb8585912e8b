//! The agent: intercepts by policy, relays and decodes the flows that it marks, and reports what it
//! saw.
//!
//! From `main` to a flow's bytes: [`commands::run`] → [`proxy::run`] → `proxy/intake.rs` (dials and
//! answers a held SYN) → `proxy/relay.rs` (moves bytes) → `proxy/decode.rs` (decodes them).
//!
//! **Invariant**: a flow's task owns its sockets and its decoder. Shared are counters
//! ([`metrics`]), the registry of flows ([`flows`]) and the policy, which one task owns
//! ([`control`]). There is no `unsafe` in this crate.

#![forbid(unsafe_code)]

pub mod admin;
pub mod backends;
pub mod cli;
pub mod commands;
pub mod config;
pub mod containers;
pub mod control;
pub mod edge;
pub mod effects;
pub mod flows;
mod grpc;
mod incoming;
pub mod keeper;
pub mod marks;
pub mod metrics;
pub mod namespaces;
pub mod observed;
pub mod orders;
pub mod paths;
pub mod pipelines;
pub mod protect;
pub mod proxy;
pub mod remembered;
pub mod reporters;
pub mod shortcuts;
pub mod statements;
pub mod tls;
pub mod triggers;
mod untouched;
