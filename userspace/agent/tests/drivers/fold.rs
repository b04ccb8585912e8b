//! The suites through `fold`, behind everything else that changes no result: the same results, and the same counts.

use scylla::client::Compression;

use super::{
    cassandra::{PAST_TCP, PIPELINE},
    python, rust,
};

/// All of it, and `fold`.
fn pipeline() -> String {
    let steps = PIPELINE.trim_end_matches(']');
    format!("{steps}  {{ transform = \"fold\", connections = 2, share = 1024 }},\n]")
}

/// Settings with that pipeline, of a rule by which shared connections skip TCP, and flows' own.
fn past_tcp() -> String {
    format!("{PAST_TCP}\n{}", pipeline())
}

#[test]
fn rust_driver() {
    let test = "fold::rust_driver";
    rust::enriched(test, "underpass_rust_fold", &pipeline(), None);
}

#[test]
fn rust_driver_past_tcp() {
    let test = "fold::rust_driver_past_tcp";
    rust::enriched(test, "underpass_rust_fold_short", &past_tcp(), None);
}

#[test]
fn rust_driver_with_lz4() {
    let (test, lz4) = ("fold::rust_driver_with_lz4", Some(Compression::Lz4));
    rust::enriched(test, "underpass_rust_fold_lz4", &pipeline(), lz4);
}

#[test]
fn rust_driver_with_snappy() {
    let (test, snappy) = ("fold::rust_driver_with_snappy", Some(Compression::Snappy));
    rust::enriched(test, "underpass_rust_fold_snappy", &pipeline(), snappy);
}

#[test]
fn python_driver_v4_with_lz4() {
    // It compresses its token, too.
    let test = "fold::python_driver_v4_with_lz4";
    python::driver_in(test, "enrich", 4, "lz4", "fold_v4", &pipeline());
}

#[test]
fn python_driver_v5_past_tcp() {
    let test = "fold::python_driver_v5_past_tcp";
    python::driver_in(test, "enrich", 5, "none", "fold_short", &past_tcp());
}

#[test]
fn python_driver_v5() {
    python::driver_in(
        "fold::python_driver_v5",
        "enrich",
        5,
        "none",
        "fold",
        &pipeline(),
    );
}

#[test]
fn python_driver_v5_with_lz4() {
    let test = "fold::python_driver_v5_with_lz4";
    python::driver_in(test, "enrich", 5, "lz4", "fold_lz4", &pipeline());
}
