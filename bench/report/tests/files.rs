//! Result files: what is written comes back, and what cannot be used says why.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use std::fs;

use common::{run, series_mut};

/// The whole chain of an error.
fn error(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    fs::write(&file, text).unwrap();
    format!("{:#}", report::read(&file).unwrap_err())
}

#[test]
fn a_run_survives_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    fs::write(&file, "old").unwrap();
    report::write(&run(3), &file).unwrap();
    assert!(
        report::read(&file).unwrap() == run(3),
        "every figure, to the last bit"
    );
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "nothing else is left: {names:?}");
}

#[test]
fn what_cannot_be_used_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let missing = report::read(&folder.path().join("none.json")).unwrap_err();
    let missing = format!("{missing:#}");
    assert!(
        missing.contains("none.json: run `cargo xtask bench run`"),
        "{missing}"
    );
    assert!(error("not JSON").contains("it is not JSON"));
    assert!(error("{\"schema\": 1}").contains("of schema 1, and this program reads 2: run"));
    assert!(error("{}").contains("no schema version"));
    assert!(error("[3]").contains("not a result file"));
    assert!(error("{\"schema\": 2}").contains("missing field"));
}

#[test]
fn what_is_compressed_is_read_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, packed) = (
        folder.path().join("a.json"),
        folder.path().join("a.json.gz"),
    );
    for file in [&plain, &packed] {
        report::write(&run(3), file).unwrap();
        assert!(report::read(file).unwrap() == run(3));
    }
    let size = |file| fs::metadata(file).unwrap().len();
    assert!(size(&packed) * 2 < size(&plain));
    // Cut off in its middle it is an error, and not half of a run.
    let bytes = fs::read(&packed).unwrap();
    fs::write(&packed, &bytes[..bytes.len() / 2]).unwrap();
    let error = format!("{:#}", report::read(&packed).unwrap_err());
    assert!(error.contains("cannot read"), "{error}");
}

#[test]
fn what_nobody_could_read_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    let mut run = run(3);
    let round = series_mut(&mut run, "node-raw", "direct")
        .rounds
        .first_mut();
    round.unwrap().latency.p50_us = f64::NAN;
    let error = format!("{:#}", report::write(&run, &file).unwrap_err());
    assert!(error.contains("not a number"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn what_a_round_must_say() {
    let text = serde_json::to_string(&run(3)).unwrap();
    for field in ["scheduled", "in_time"] {
        let without = text.replace(&format!("\"{field}\""), "\"other\"");
        let error = error(&without);
        assert!(
            error.contains(&format!("missing field `{field}`")),
            "{error}"
        );
    }
    assert!(text.contains("\"scheduled\":null"), "a closed loop says so");
}
