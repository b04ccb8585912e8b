//! `scylla-driver`, the fork of the Python driver.

use sandbox::{Cgroup, skip};

use super::{
    ROWS, Server, V1, V2,
    steps::{self, Last, PAGE},
};
use crate::suite;

/// Names the interpreter that has the driver.
const PYTHON: &str = "UNDERPASS_SCYLLA_PYTHON";

#[test]
fn v1_directly() {
    directly("scylla::python::v1_directly", &V1);
}

#[test]
fn v2_directly() {
    directly("scylla::python::v2_directly", &V2);
}

#[test]
fn v1_through_rewrite() {
    through("scylla::python::v1_through_rewrite", &V1, Last::Rewrite);
}

#[test]
fn v2_through_cache() {
    through("scylla::python::v2_through_cache", &V2, Last::Cache);
}

#[test]
fn v1_is_told_of_copies() {
    let test = "scylla::python::v1_is_told_of_copies";
    if let Some(python) = skip::provided(test, PYTHON) {
        super::told_of_copies(|server, cgroup| {
            runs(&python, server, Some(cgroup), &V1, [1, 0]);
        });
    }
}

fn directly(test: &str, extensions: &[&'static str]) {
    let Some(python) = skip::provided(test, PYTHON) else {
        return;
    };
    let server = Server::start(extensions, super::KEYSPACE);
    runs(&python, &server, None, extensions, [1, 0]);
}

fn through(test: &str, extensions: &[&'static str], last: Last) {
    let Some(python) = skip::provided(test, PYTHON) else {
        return;
    };
    let pages = ROWS.unsigned_abs().div_ceil(PAGE.unsigned_abs());
    steps::through(test, extensions, last, |server, cgroup| {
        runs(&python, server, Some(cgroup), extensions, [pages, 1]);
    });
}

/// `pages` of all rows, and how many tables are closed.
fn runs(
    python: &str,
    server: &Server,
    cgroup: Option<&Cgroup>,
    extensions: &[&'static str],
    [pages, closed]: [u32; 2],
) {
    let script = suite::folder().join("scylla_suite.py");
    let words = [python.as_ref(), script.as_os_str()];
    let details = suite::run(&server.access, cgroup, &words, &[]);
    let version = if extensions == V2 { 2 } else { 1 };
    assert_eq!(details["extensions"], version, "of the tablets' extension");
    assert_eq!(details["limited"], "Read");
    assert_eq!(details["paging"], pages);
    assert_eq!(details["shards"], 2);
    let expected = ["open", "refused"][closed as usize];
    assert_eq!(details["closed"], expected);
}
