//! What tests, benchmarks and the demo stand on.

pub mod driver;
pub mod integrity;
pub mod measured;
pub mod node;
pub mod program;
pub mod sandbox;
pub mod skip;
