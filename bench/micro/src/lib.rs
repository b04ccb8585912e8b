//! Micro-benchmarks: what one step costs, apart from everything around it.
//!
//! - [`cases`]: the CQL decoder, piece by piece and whole. `benches/cql.rs` takes their time, and
//!   `examples/instructions.rs` runs them under callgrind for `cargo xtask instructions`: the same
//!   work on the same bytes.
//! - [`programs`]: the kernel's BPF programs, by run and by size.
//!
//! **Invariant**: every input is built by code and decodes without an anomaly; `tests/cases.rs`
//! holds each case to what it should see, so that no case measures an error that ends early.

#![forbid(unsafe_code)]

pub mod cases;
pub mod programs;
