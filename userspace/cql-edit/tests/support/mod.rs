//! Flows through editors. How frames are written by hand, `cql`'s tests have.

#[path = "../../../cql/tests/support/mod.rs"]
mod frames;

pub mod edit;
pub mod values;

pub use frames::*;
