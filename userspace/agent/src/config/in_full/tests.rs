//! Policies as they are printed: accepted, with the same meaning, and no default left to fill in.

use std::{path::Path, sync::LazyLock};

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;
use crate::config::schema::tests::{documented, tables, text_of, values};

fn in_force(text: &str) -> Result<InForce, String> {
    let sources = Sources::of(Path::new("u.toml"), text);
    let config = Config::of(&sources).map_err(|e| e.to_string())?;
    Ok(InForce::of(sources, config))
}

/// Holds a policy against what is printed of it.
fn assert_same(schema: &Json, name: &str, policy: &InForce) {
    let full = policy.by(schema);
    let again = in_force(&full).unwrap_or_else(|e| panic!("{name}: {e}\n{full}"));
    // Tables that are kept by hash come in any order.
    let [was, is] = [policy, &again].map(|policy| {
        let text = format!("{:#?}", policy.config);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    });
    // Of a key server's URL the query is masked.
    if !full.contains(MASK) {
        assert_eq!(was, is, "{name}:\n{full}");
    }
    assert_eq!(
        again.by(schema),
        full,
        "{name}: no default is left to fill in"
    );
}

/// Files with one value each that a key may have, of each key of each table.
fn generated(schema: &Json) -> Vec<(String, Json)> {
    let mut files = Vec::new();
    for table in tables(schema) {
        for (key, property) in table.keys() {
            for value in values(property) {
                let name = format!("{}.{key} = {value}", table.name);
                files.push((name, table.with(key, &value)));
            }
        }
    }
    assert!(files.len() > 200, "{}", files.len());
    files
}

#[test]
fn every_policy_of_the_documentation_means_the_same_in_full() {
    for (name, text) in documented() {
        assert_same(&SCHEMA, &name, &in_force(&text).unwrap());
    }
}

#[test]
fn every_value_of_every_key_means_the_same_in_full() {
    for (name, file) in generated(&SCHEMA) {
        assert_same(&SCHEMA, &name, &in_force(&text_of(&file)).unwrap());
    }
}

/// One file of several: lists follow each other, and names are told apart.
fn joined(files: &[Json]) -> Json {
    let mut whole = json!({});
    for file in files {
        for (key, value) in file.as_object().unwrap() {
            match (whole.get_mut(key).and_then(Json::as_array_mut), value) {
                (Some(all), Json::Array(items)) => all.extend(items.clone()),
                (None, _) => whole[key] = value.clone(),
                _ => {}
            }
        }
    }
    let rules = whole.get_mut("rule").and_then(Json::as_array_mut);
    for (number, rule) in rules.into_iter().flatten().enumerate() {
        rule["name"] = json!(format!("r{number}"));
    }
    whole
}

static SCHEMA: LazyLock<Json> = LazyLock::new(schema);

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, ..Default::default() })]

    #[test]
    fn policies_of_many_rules_mean_the_same_in_full(
        files in proptest::collection::vec(proptest::sample::select(generated(&SCHEMA)), 1..8)
    ) {
        let files: Vec<Json> = files.into_iter().map(|(_, file)| file).collect();
        // Some exclude each other.
        if let Ok(policy) = in_force(&text_of(&joined(&files))) {
            assert_same(&SCHEMA, "joined", &policy);
        }
    }
}

#[test]
fn files_are_one_with_every_default() {
    let text = r#"
        # hunter2
        [agent]
        max_flows = 7
        workers = 3
        [health]
        interval = "5s"
        [[xdp]]
        interface = "eth0"
        syn_rate = 9
        [[rule]]
        to = [":9042"]
        action = "enrich"
        name = "a"
        pipeline = [{ transform = "stats" }, { transform = "debug", values = true }]
        [[rule]]
        name = "b"
        action = "enrich"
        fail = "closed"
        pipeline = [{ transform = "protect", columns = { "s.t" = ["c"] }, kms = "http://127.0.0.1:1/k?token=hunter2" }]
    "#;
    let full = in_force(text).unwrap().in_full();
    assert!(!full.contains("hunter2"), "{full}");
    for line in [
        "[agent]\nadmin_socket = \"/run/underpass/admin.sock\"\n",
        "max_flows = 7\n",
        "workers = 3\n",
        "[default]\naction = \"bypass\"\nfail = \"open\"\n",
        "timeout = \"2000ms\"\n",
        "syn_burst = 9\nsyn_rate = 9\n",
        "[[rule]]\nname = \"a\"\naction = \"enrich\"\nfail = \"open\"\nholdout = \"1%\"\nmode = \"enforce\"\npath = \"auto\"\n",
        "pipeline = [\n    { transform = \"stats\" },\n    { transform = \"debug\", bytes = 256, ",
        "kms = \"http://127.0.0.1:1/k?masked\", max_age = \"60m\"",
    ] {
        assert!(full.contains(line), "{line}\n{full}");
    }
    // A file has no size where there is none.
    assert!(!full.contains("max_bytes"), "{full}");
}

#[test]
fn what_is_read_only_at_the_start_is_as_it_was_then() {
    let text = |flows: u32, holdout: &str, format: &str, level: &str, rule: &str| {
        format!(
            "[agent]\nmax_flows = {flows}\nholdout = \"{holdout}\"\n[log]\nformat = \"{format}\"\nlevel = \"{level}\"\n\
             [[rule]]\nname = \"{rule}\"\naction = \"bypass\"\n"
        )
    };
    let began = in_force(&text(7, "2%", "json", "info", "a")).unwrap();
    let now = in_force(&(text(8, "3%", "text", "debug", "b") + "[[incoming]]\n")).unwrap();
    let policy = InForce {
        began: began.sources,
        ..now
    };
    let full: Table = policy.in_full().parse().unwrap();
    let at = |table: &str, key: &str| full[table][key].clone();
    assert_eq!(at("agent", "max_flows"), Value::Integer(7));
    assert_eq!(at("agent", "holdout"), Value::from("3%"));
    assert_eq!(at("log", "format"), Value::from("json"));
    assert_eq!(at("log", "level"), Value::from("debug"));
    assert_eq!(full["rule"][0]["name"], Value::from("b"));
    assert!(!full.contains_key("incoming"));
}

#[test]
fn urls_have_no_log_in() {
    for (url, masked) in [
        ("http://u:p@host:1/a?k=v", "http://masked@host:1/a?masked"),
        ("http://host/a@b", "http://host/a@b"),
        ("redis://:p@w@host", "redis://masked@host"),
        ("/a/path", "/a/path"),
    ] {
        assert_eq!(without_login(url, MASK), masked);
    }
}

/// Keys that are left out where their absence means something that no value says, or what another table has.
const ABSENT: [&str; 24] = [
    "policy.server",
    "policy.token_file",
    "policy.tls.server_name",
    "limits.tls.server_name",
    "cluster.tls.server_name",
    "otlp.tls.server_name",
    "incoming.netns",
    "xdp.syn_rate",
    "rule.rollout",
    "rule.tls.client_ca",
    "rule.upstream_tls.server_name",
    "rule.when.days",
    "audit.kinds",
    "cache.prefix",
    "consistency.keyspaces",
    "consistency.kinds",
    "debug.file",
    "guard.when",
    "guard.when.days",
    "mirror.compression",
    "mirror.tls",
    "mirror.tls.server_name",
    "slowlog.file",
    "trace.tls.server_name",
];

#[test]
fn a_default_that_depends_is_filled_in_too() {
    let depends = |property: &Json| {
        let text = property["description"].as_str().unwrap_or_default();
        text.contains("Without this key") && property.get("default").is_none()
    };
    let mut left_out = Vec::new();
    for table in tables(&SCHEMA) {
        for (key, _) in table
            .keys()
            .iter()
            .filter(|(_, property)| depends(property))
        {
            let file = table.with(key, &Json::Null);
            let full = in_force(&text_of(&file)).unwrap().in_full();
            let is_there = full.lines().any(|line| {
                line.starts_with(&format!("{key} = ")) || line.contains(&format!(" {key} = "))
            });
            if !is_there {
                left_out.push(format!("{}.{key}", table.name));
            }
        }
    }
    assert_eq!(left_out, ABSENT);
}
