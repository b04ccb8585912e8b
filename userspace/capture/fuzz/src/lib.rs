//! Fuzz targets of captures, and the properties that must hold for any input.
//!
//! `tests/corpora.rs` of the crate above includes this file and runs it over the corpora, without a
//! fuzzer.

mod file;
mod request;

/// Panics when something does not hold.
pub type Check = fn(&[u8]);

/// Every target, by its name.
pub const TARGETS: [(&str, Check); 2] = [("capture", file::file), ("request", request::request)];

/// Panics when something does not hold for `data`.
pub fn run(target: &str, data: &[u8]) {
    for (name, check) in TARGETS {
        if name == target {
            check(data);
        }
    }
}
