//! The Python driver and cqlsh, as processes of the cgroup.

use sandbox::Cgroup;
use sandbox::skip;

use super::{
    adopted,
    cassandra::{Cassandra, PIPELINE, RULE, past_tcp},
    protect::{Keys, fail},
    seen::{self, Kinds, kinds},
    suite::{self, Details},
};

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
fn driver_v4_through_a_pipeline() {
    let test = "python::driver_v4_through_a_pipeline";
    driver_with(test, "enrich", 4, "pipeline", PIPELINE);
}

#[test]
fn driver_v5_past_tcp_through_a_pipeline() {
    let test = "python::driver_v5_past_tcp_through_a_pipeline";
    driver_with(test, "enrich", 5, "past_tcp", &past_tcp());
}

#[test]
fn driver_v4_whose_keyspace_the_database_calls_otherwise() {
    renamed(
        "python::driver_v4_whose_keyspace_the_database_calls_otherwise",
        4,
    );
}

#[test]
fn driver_v5_whose_keyspace_the_database_calls_otherwise() {
    renamed(
        "python::driver_v5_whose_keyspace_the_database_calls_otherwise",
        5,
    );
}

#[test]
fn driver_v4_in_lz4_through_a_pipeline() {
    let test = "python::driver_v4_in_lz4_through_a_pipeline";
    compressed(test, 4, "lz4");
}

#[test]
fn driver_v4_in_snappy_through_a_pipeline() {
    let test = "python::driver_v4_in_snappy_through_a_pipeline";
    compressed(test, 4, "snappy");
}

#[test]
fn driver_v5_in_lz4_through_a_pipeline() {
    compressed("python::driver_v5_in_lz4_through_a_pipeline", 5, "lz4");
}

#[test]
fn driver_v4_in_snappy_through_encrypted_columns() {
    let test = "python::driver_v4_in_snappy_through_encrypted_columns";
    encrypted(test, 4, "snappy");
}

#[test]
fn driver_v5_in_lz4_through_encrypted_columns() {
    let test = "python::driver_v5_in_lz4_through_encrypted_columns";
    encrypted(test, 5, "lz4");
}

#[test]
fn driver_v5_through_encrypted_columns() {
    encrypted("python::driver_v5_through_encrypted_columns", 5, "none");
}

#[test]
fn driver_v5_found_running() {
    let test = "python::driver_v5_found_running";
    let Some(suite) = Suite::provided(test) else {
        return;
    };
    let keyspace = "underpass_python_v5_adopted";
    let args = [
        "--keyspace",
        keyspace,
        "--protocol",
        "5",
        "--compression",
        "none",
    ];
    let file = suite::folder().join("python_suite.py");
    let words = [suite.python.as_ref(), file.as_os_str()];
    let details = adopted::suite(&suite.cassandra, &words, &args);
    assert!(details.contains_key("large_value"), "{details:?}");
}

#[test]
fn cqlsh_through_bypass() {
    cqlsh("python::cqlsh_through_bypass", "bypass");
}

#[test]
fn cqlsh_through_enrich() {
    cqlsh("python::cqlsh_through_enrich", "enrich");
}

/// The driver begins with versions 0x42 and then 0x41, which are DataStax's own. Whoever refuses
/// them, it ends up in v5.
#[test]
fn driver_finds_its_version_by_itself() {
    let Some(suite) = Suite::provided("python::driver_finds_its_version_by_itself") else {
        return;
    };
    let relayed = "underpass_undecodable_flows_total{reason=\"version\"}".to_owned();
    let unread = |outcome: &str| {
        let labels = format!("outcome=\"{outcome}\",reason=\"version\",rule={RULE:?}");
        format!("underpass_pipeline_unreadable_total{{{labels}}}")
    };
    let strict = "{ transform = \"consistency\", at_least = \"ONE\" }";
    for (steps, counted) in [
        ("", vec![relayed.clone()]),
        ("{ transform = \"tag\" }", vec![relayed, unread("passed")]),
        (strict, vec![unread("denied")]),
    ] {
        let cgroup = Cgroup::new().unwrap();
        let more = format!("pipeline = [{steps}]");
        let agent = suite.cassandra.agent_with(&cgroup, "enrich", "open", &more);
        let details = suite.run(&cgroup, "negotiating_suite.py", &[]);
        let [begins, speaks] = [0x42, 5];
        assert_eq!(details["negotiated"], serde_json::json!([begins, speaks]));
        for sample in counted {
            assert_eq!(agent.metric(&sample).unwrap(), 2.0, "{steps}: {sample}");
        }
    }
}

/// The suite's keyspace and a table in it; and caps that nothing of it reaches.
fn renamed(test: &str, version: u8) {
    let way = "renamed";
    let keyspace = format!("underpass_python_v{version}_{way}");
    let real = format!("{keyspace}_in_fact");
    let more = format!(
        "pipeline = [{{ transform = \"rewrite\", addresses = \"dialled\", keyspaces = {{ {keyspace} = {real:?} }}, \
         tables = {{ \"{keyspace}.paged\" = \"{real}.leafed\" }}, max_ttl = \"7300d\", timestamps = {{ \
         max_ahead = \"1h\" }} }}, {{ transform = \"count\" }}]"
    );
    driver_with(test, "enrich", version, way, &more);
}

fn driver(test: &str, action: &str, version: u8) {
    driver_with(test, action, version, action, "");
}

fn compressed(test: &str, version: u8, compression: &str) {
    let way = format!("{compression}_pipeline");
    driver_in(test, "enrich", version, compression, &way, PIPELINE);
}

fn driver_with(test: &str, action: &str, version: u8, way: &str, more: &str) {
    driver_in(test, action, version, "none", way, more);
}

fn encrypted(test: &str, version: u8, compression: &str) {
    let way = format!("{compression}_encrypted");
    let keys = Keys::new();
    let more = keys.pipeline(&format!("underpass_python_v{version}_{way}"));
    driver_in(test, "enrich", version, compression, &way, &more);
}

pub fn driver_in(test: &str, action: &str, version: u8, compression: &str, way: &str, more: &str) {
    let Some(suite) = Suite::provided(test) else {
        return;
    };
    let keyspace = format!("underpass_python_v{version}_{way}");
    let cgroup = Cgroup::new().unwrap();
    let agent = suite
        .cassandra
        .agent_with(&cgroup, action, fail(more), more);
    let version = version.to_string();
    let mut args = vec!["--keyspace", &keyspace, "--protocol", &version];
    args.extend(["--compression", compression]);
    let details = suite.run(&cgroup, "python_suite.py", &args);
    if action == "bypass" {
        return seen::only_untouched(&agent);
    }
    seen::all_enriched(&agent);
    seen::skips_tcp_as_asked(&agent, more);
    seen::folds_as_asked(&agent, more);
    seen::all_reported(&agent, more);
    if way == "renamed" {
        let transforms = seen::transforms(&agent);
        assert!(transforms["changed"] > 0.0, "{transforms:?}");
        assert_eq!(transforms.len(), 1, "{transforms:?}");
    }
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

/// Settings that a suite runs with.
pub struct Suite {
    python: String,
    pub cassandra: Cassandra,
}

impl Suite {
    pub fn provided(test: &str) -> Option<Self> {
        Some(Self {
            python: skip::provided(test, "UNDERPASS_PYTHON")?,
            cassandra: Cassandra::provided(test)?,
        })
    }

    /// Runs a script as an application, all of whose cases have to pass.
    pub fn run(&self, cgroup: &Cgroup, script: &str, args: &[&str]) -> Details {
        let script = suite::folder().join(script);
        let words = [self.python.as_ref(), script.as_os_str()];
        suite::run(&self.cassandra, Some(cgroup), &words, args)
    }
}
