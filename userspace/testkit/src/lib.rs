//! What tests, benchmarks and the demo stand on.

pub mod node;
