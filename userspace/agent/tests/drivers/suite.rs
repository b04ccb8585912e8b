//! A driver's suite: a process that prints one JSON line per case.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

use sandbox::{Cgroup, run_in};
use serde_json::Value;

use super::cassandra::Cassandra;

/// A suite takes five seconds; this is for a machine under load.
const LIMIT_S: &str = "300";

/// Reports of the cases, by name.
pub type Details = BTreeMap<String, Value>;

/// Folder of the suites' sources.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../sandbox/drivers")
}

/// Runs `words` as an application, of `cgroup` if there is one; all of its cases have to pass.
pub fn run(
    cassandra: &Cassandra,
    cgroup: Option<&Cgroup>,
    words: &[&OsStr],
    args: &[&str],
) -> Details {
    let Cassandra {
        addr,
        user,
        password,
    } = cassandra;
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=5", LIMIT_S])
        .args(words)
        .args(["--host", &addr.ip().to_string()])
        .args(["--port", &addr.port().to_string()])
        .args(["--user", user, "--password", password])
        .args(args);
    let output = run_in(None, cgroup, || command.output()).unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}\n{said}\n{complaints}",
        output.status
    );
    let details = said.lines().map(|line| {
        let case: Value = serde_json::from_str(line).unwrap();
        assert_eq!(case["ok"], true, "{line}");
        let name = case["case"].as_str().unwrap().to_owned();
        (name, case["detail"].clone())
    });
    details.collect()
}
