//! The fuzz target of the editor, and the properties that must hold for any input.
//!
//! `tests/corpora.rs` of the crate above includes this file and runs it over the corpus, without a
//! fuzzer.

mod edit;
#[path = "../../../cql/fuzz/src/memory.rs"]
mod memory;
#[path = "../../../cql/fuzz/src/script.rs"]
#[expect(dead_code, reason = "the decoder's targets use all of it")]
mod script;
mod steps;

/// Panics when something does not hold.
pub type Check = fn(&[u8]);

/// Every target, by its name.
pub const TARGETS: [(&str, Check); 1] = [("edit", edit::edit)];

/// Panics when something does not hold for `data`.
pub fn run(target: &str, data: &[u8]) {
    for (name, check) in TARGETS {
        if name == target {
            check(data);
        }
    }
}
