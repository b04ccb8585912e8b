//! ScyllaDB's fork of gocql.

use sandbox::{Cgroup, skip};

use super::{
    ROWS, Server, V1,
    steps::{self, Last, PAGE},
};
use crate::suite;

const PROGRAM: &str = "UNDERPASS_GO_SCYLLA_SUITE";

#[test]
fn directly() {
    if let Some(program) = skip::provided("scylla::go::directly", PROGRAM) {
        let server = Server::start(&V1, super::KEYSPACE);
        runs(&program, &server, None, [1, 0]);
    }
}

#[test]
fn through_rewrite() {
    through("scylla::go::through_rewrite", Last::Rewrite);
}

#[test]
fn through_cache() {
    through("scylla::go::through_cache", Last::Cache);
}

#[test]
fn the_suite_is_told_of_copies() {
    if let Some(program) = skip::provided("scylla::go::the_suite_is_told_of_copies", PROGRAM) {
        super::told_of_copies(|server, cgroup| runs(&program, server, Some(cgroup), [1, 0]));
    }
}

fn through(test: &str, last: Last) {
    let Some(program) = skip::provided(test, PROGRAM) else {
        return;
    };
    let pages = ROWS.unsigned_abs().div_ceil(PAGE.unsigned_abs());
    steps::through(test, &V1, last, |server, cgroup| {
        runs(&program, server, Some(cgroup), [pages, 1]);
    });
}

/// `pages` of all rows, and how many tables are closed.
fn runs(program: &str, server: &Server, cgroup: Option<&Cgroup>, [pages, closed]: [u32; 2]) {
    let details = suite::run(&server.access, cgroup, &[program.as_ref()], &[]);
    assert_eq!(details["changed"], 3, "columns");
    assert_eq!(details["paging"], pages);
    let expected = ["open", "refused"][closed as usize];
    assert_eq!(details["closed"], expected);
}
