//! Fuzz targets: what must hold for any bytes from outside.
//!
//! Each target is a function that panics when something does not hold. libFuzzer calls it from a program in `targets`, which
//! only `cargo xtask fuzz` builds; the tests run it over its committed corpus. Targets of what a crate keeps to itself are in that
//! crate's module `fuzzed`, which exists only for tests and fuzzers.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "whatever fails here is a finding"
)]

mod capture_file;
mod capture_request;
mod edge;
mod edit;
mod flow;
mod handshake;
mod ignore;
mod kernel;
mod memory;
mod pipeline;
mod position;
mod script;
mod statement;
mod tap;
mod vault;

pub use capture_file::file as capture;
pub use capture_request::request;
pub use edge::edge;
pub use edit::edit;
pub use flow::{body, frame, segment};
pub use handshake::handshake;
pub use pipeline::pipeline;
pub use position::position;
pub use statement::statement;
pub use tap::tap;

#[cfg(test)]
mod tests {
    #[test]
    fn what_must_hold_holds_for_every_input() {
        corpus::hold(&[
            ("body", super::body),
            ("capture", super::capture),
            ("edge", super::edge),
            ("edit", super::edit),
            ("frame", super::frame),
            ("handshake", super::handshake),
            ("pipeline", super::pipeline),
            ("position", super::position),
            ("request", super::request),
            ("segment", super::segment),
            ("statement", super::statement),
            ("tap", super::tap),
        ])
        .unwrap();
    }
}
