//! Pipelines: their steps read, change, refuse, answer, mirror and report.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

mod audit;
mod bad_input;
mod bad_input_peers;
mod cache;
mod cluster;
mod coalesce;
#[path = "../common/mod.rs"]
mod common;
mod compressed;
mod fold;
mod large_statements;
mod lookups;
mod mirror;
mod otlp;
mod overhead;
mod pipelines;
mod protect;
mod renamed;
mod reporters;
mod sizes;
mod trace;
