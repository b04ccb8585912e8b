//! The Python driver and cqlsh, as processes of the cgroup.

use std::{collections::BTreeMap, path::Path, process::Command};

use serde_json::Value;
use testkit::{
    sandbox::{Cgroup, run_in},
    skip,
};

use super::{
    cassandra::Cassandra,
    seen::{self, Kinds, kinds},
};

/// A suite takes five seconds; this is for a machine under load.
const SUITE_LIMIT_S: &str = "300";

/// What each case reported.
type Details = BTreeMap<String, Value>;

#[test]
fn driver_v4_through_bypass() {
    driver("python::driver_v4_through_bypass", "bypass", 4);
}

#[test]
fn driver_v5_through_bypass() {
    driver("python::driver_v5_through_bypass", "bypass", 5);
}

#[test]
fn driver_v4_through_enrich() {
    driver("python::driver_v4_through_enrich", "enrich", 4);
}

#[test]
fn driver_v5_through_enrich() {
    driver("python::driver_v5_through_enrich", "enrich", 5);
}

#[test]
fn cqlsh_through_bypass() {
    cqlsh("python::cqlsh_through_bypass", "bypass");
}

#[test]
fn cqlsh_through_enrich() {
    cqlsh("python::cqlsh_through_enrich", "enrich");
}

fn driver(test: &str, action: &str, version: u8) {
    let Some(suite) = Suite::provided(test) else {
        return;
    };
    let keyspace = format!("underpass_python_v{version}_{action}");
    let cgroup = Cgroup::new().unwrap();
    let agent = suite.cassandra.agent(&cgroup, action, "open");
    let version = version.to_string();
    let args = ["--keyspace", &keyspace, "--protocol", &version];
    let details = suite.run(&cgroup, "python_suite.py", &args);
    if action == "bypass" {
        return seen::only_untouched(&agent);
    }
    seen::all_enriched(&agent);
    let tables = seen::statements(&agent, &keyspace);
    let sent: Kinds = serde_json::from_value(details["counted"].clone()).unwrap();
    assert_eq!(tables["counted"], sent);
    let pages = details["paging"].as_str().unwrap().split_whitespace();
    let pages = pages.rev().nth(1).unwrap().parse().unwrap();
    for (table, wanted) in [
        ("made", kinds([("create", 1), ("alter", 1), ("drop", 1)])),
        // One of the two is the one for an unknown column.
        (
            "simple",
            kinds([("create", 1), ("insert", 1), ("select", 2)]),
        ),
        (
            "prepared",
            kinds([
                ("create", 1),
                ("prepare", 2),
                ("insert", 200),
                ("select", 200),
            ]),
        ),
        (
            "batch_logged",
            kinds([("create", 1), ("prepare", 1), ("batch", 1), ("select", 1)]),
        ),
        (
            "batch_unlogged",
            kinds([("create", 1), ("prepare", 1), ("batch", 1), ("select", 1)]),
        ),
        (
            "paged",
            kinds([
                ("create", 1),
                ("prepare", 1),
                ("insert", 1200),
                ("select", pages),
            ]),
        ),
        (
            "large",
            kinds([("create", 1), ("prepare", 1), ("insert", 1), ("select", 1)]),
        ),
    ] {
        assert_eq!(tables.get(table), Some(&wanted), "{table}");
    }
    let errors = seen::errors(&agent);
    assert_eq!(errors.get("invalid"), Some(&1.0), "{errors:?}");
    assert!(errors["bad_credentials"] >= 1.0, "{errors:?}");
    assert_eq!(errors.len(), 2, "{errors:?}");
}

fn cqlsh(test: &str, action: &str) {
    let Some(suite) = Suite::provided(test) else {
        return;
    };
    let keyspace = format!("underpass_cqlsh_{action}");
    let cgroup = Cgroup::new().unwrap();
    let agent = suite.cassandra.agent(&cgroup, action, "open");
    suite.run(&cgroup, "cqlsh_suite.py", &["--keyspace", &keyspace]);
    if action == "bypass" {
        return seen::only_untouched(&agent);
    }
    seen::all_enriched(&agent);
    let tables = seen::statements(&agent, &keyspace);
    // One of the two selects is the one for an unknown column.
    let words = kinds([("create", 1), ("insert", 2), ("select", 2)]);
    assert_eq!(tables.get("words"), Some(&words));
    let paged = kinds([("create", 1), ("insert", 350), ("select", 4)]);
    assert_eq!(tables.get("paged"), Some(&paged));
    let errors = seen::errors(&agent);
    assert_eq!(errors.get("invalid"), Some(&1.0), "{errors:?}");
    assert!(errors["bad_credentials"] >= 1.0, "{errors:?}");
    assert_eq!(errors.len(), 2, "{errors:?}");
}

/// What a suite runs with.
struct Suite {
    python: String,
    cassandra: Cassandra,
}

impl Suite {
    fn provided(test: &str) -> Option<Self> {
        Some(Self {
            python: skip::provided(test, "UNDERPASS_PYTHON")?,
            cassandra: Cassandra::provided(test)?,
        })
    }

    /// Runs a script as an application, all of whose cases have to pass.
    fn run(&self, cgroup: &Cgroup, script: &str, args: &[&str]) -> Details {
        let Cassandra {
            addr,
            user,
            password,
        } = &self.cassandra;
        let drivers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/drivers");
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", SUITE_LIMIT_S])
            .arg(&self.python)
            .arg(drivers.join(script))
            .args(["--host", &addr.ip().to_string()])
            .args(["--port", &addr.port().to_string()])
            .args(["--user", user, "--password", password])
            .args(args);
        let output = run_in(None, Some(cgroup), || command.output())
            .unwrap()
            .unwrap();
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
}
