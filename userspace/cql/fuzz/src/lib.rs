//! Fuzz targets of the decoder, and the properties that must hold for any input.
//!
//! `tests/corpora.rs` of the crate above includes this file and runs it over the corpora, without a
//! fuzzer.

mod flow;
mod handshake;
mod memory;
mod script;
mod statement;

/// Panics when something does not hold.
pub type Check = fn(&[u8]);

/// Every target, by its name.
pub const TARGETS: [(&str, Check); 5] = [
    ("frame", flow::frame),
    ("segment", flow::segment),
    ("body", flow::body),
    ("handshake", handshake::handshake),
    ("statement", statement::statement),
];

/// Panics when something does not hold for `data`.
pub fn run(target: &str, data: &[u8]) {
    for (name, check) in TARGETS {
        if name == target {
            check(data);
        }
    }
}
