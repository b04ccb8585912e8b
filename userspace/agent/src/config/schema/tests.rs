//! Schema and parser agree about each key.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use super::{
    name_of,
    page::{STEPS, first_example, toml},
    schema,
};
use crate::config::Config;

/// A table of the file: where its schema is, and a file around it.
pub(in crate::config) struct Table {
    pub(in crate::config) name: String,
    place: String,
    schema: Value,
    /// Keys with which the table is accepted.
    base: Map<String, Value>,
    /// Makes a file of the table.
    file: Box<dyn Fn(&Value) -> Value>,
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// Every table that the schema has, at any depth.
pub(in crate::config) fn tables(schema: &Value) -> Vec<Table> {
    let at = |place: &str| schema.pointer(place).unwrap().clone();
    let table = |name: &str, place: &str, base: Value, file: fn(&Value) -> Value| Table {
        name: name.to_owned(),
        place: place.to_owned(),
        schema: at(place),
        base: object(base),
        file: Box::new(file),
    };
    let mut tables = vec![
        table("file", "", json!({}), Value::clone),
        table(
            "agent",
            "/properties/agent",
            json!({}),
            |t| json!({"agent": t}),
        ),
        table(
            "host",
            "/properties/host",
            json!({}),
            |t| json!({"host": t}),
        ),
        table("log", "/properties/log", json!({}), |t| json!({"log": t})),
        table(
            "policy",
            "/properties/policy",
            json!({"source": "etcd", "endpoints": ["http://127.0.0.1:2379"]}),
            |t| json!({"policy": t}),
        ),
        table(
            "policy.tls",
            "/properties/policy/properties/tls",
            json!({"ca": "/c"}),
            |t| json!({"policy": {"source": "etcd", "endpoints": ["https://127.0.0.1:2379"], "tls": t}}),
        ),
        table(
            "limits",
            "/properties/limits",
            json!({"endpoints": ["http://127.0.0.1:2379"]}),
            |t| json!({"limits": t}),
        ),
        table(
            "limits.tls",
            "/properties/limits/properties/tls",
            json!({"ca": "/c"}),
            |t| json!({"limits": {"endpoints": ["https://127.0.0.1:2379"], "tls": t}}),
        ),
        table(
            "cluster",
            "/properties/cluster/items",
            json!({"name": "shop", "contact_points": ["10.1.0.1:9042"]}),
            |t| json!({"cluster": [t]}),
        ),
        table(
            "cluster.tls",
            "/properties/cluster/items/properties/tls",
            json!({"ca": "/c"}),
            |t| json!({"cluster": [{"name": "shop", "contact_points": ["10.1.0.1:9042"], "tls": t}]}),
        ),
        table(
            "default",
            "/properties/default",
            json!({}),
            |t| json!({"default": t}),
        ),
        table(
            "health",
            "/properties/health",
            json!({}),
            |t| json!({"health": t}),
        ),
        table(
            "otlp",
            "/properties/otlp",
            json!({"endpoint": "http://127.0.0.1:4317"}),
            |t| json!({"otlp": t}),
        ),
        table(
            "otlp.tls",
            "/properties/otlp/properties/tls",
            json!({"ca": "/c"}),
            |t| json!({"otlp": {"endpoint": "https://127.0.0.1:4317", "tls": t}}),
        ),
        table(
            "containers",
            "/properties/containers",
            json!({}),
            |t| json!({"containers": t}),
        ),
        table(
            "incoming",
            "/properties/incoming/items",
            json!({}),
            |t| json!({"incoming": [t]}),
        ),
        table(
            "xdp",
            "/properties/xdp/items",
            json!({"interface": "eth0"}),
            |t| json!({"xdp": [t]}),
        ),
        table(
            "rule",
            "/properties/rule/items",
            json!({"name": "r", "to": ["10.9.0.10:9042"], "action": "bypass", "fail": "closed"}),
            |t| json!({"rule": [t]}),
        ),
        table(
            "rule.tls",
            "/properties/rule/items/properties/tls/anyOf/1",
            json!({"cert": "/c", "key": "/k"}),
            |t| json!({"rule": [{"name": "r", "action": "enrich", "tls": t}]}),
        ),
        table(
            "rule.upstream_tls",
            "/properties/rule/items/properties/upstream_tls",
            json!({"ca": "/c"}),
            |t| json!({"rule": [{"name": "r", "action": "enrich", "upstream_tls": t}]}),
        ),
        table(
            "rule.trigger",
            "/properties/rule/items/properties/trigger",
            json!({"p99_ms": 5, "for": "30s"}),
            |t| json!({"rule": [{"name": "r", "action": "observe", "trigger": t}]}),
        ),
        table(
            "rule.limit",
            "/properties/rule/items/properties/limit",
            json!({"connections": 5}),
            |t| {
                // Of clients on other hosts, who are named.
                let from = match t["per"] == "address" {
                    true => &["10.0.0.0/8"][..],
                    false => &[],
                };
                json!({"rule": [{"name": "r", "action": "bypass", "from": from, "limit": t}]})
            },
        ),
        table(
            "rule.when",
            "/properties/rule/items/properties/when",
            json!({"days": "mon", "from": "05:00", "to": "23:00", "tz": "UTC"}),
            |t| json!({"rule": [{"name": "r", "action": "bypass", "when": t}]}),
        ),
    ];
    for (number, step) in at(STEPS).as_array().unwrap().iter().enumerate() {
        let place = format!("{STEPS}/{number}");
        let name = name_of(step).to_owned();
        let mut base = first_example(step).cloned().unwrap_or_default();
        base.insert("transform".to_owned(), json!(name));
        let steps = tables_of_step(&name, &place, step, &base);
        tables.push(Table {
            name,
            place,
            schema: step.clone(),
            base,
            file: Box::new(with_step),
        });
        tables.extend(steps);
    }
    tables
}

fn with_step(step: &Value) -> Value {
    let mut file = json!({
        "otlp": {"endpoint": "http://127.0.0.1:4317"},
        "rule": [{"name": "r", "action": "enrich", "fail": "closed", "pipeline": [step]}]
    });
    if step["scope"] == "fleet" {
        file["limits"] = json!({"endpoints": ["http://127.0.0.1:2379"]});
    }
    file
}

/// Tables within a step.
fn tables_of_step(name: &str, place: &str, step: &Value, base: &Map<String, Value>) -> Vec<Table> {
    let nested = [
        (
            "guard",
            "when",
            "",
            json!({"days": "mon", "from": "05:00", "to": "23:00", "tz": "UTC"}),
        ),
        ("mirror", "tls", "", json!({"ca": "/c"})),
        ("trace", "tls", "", json!({"ca": "/c"})),
        (
            "rewrite",
            "timestamps",
            "/anyOf/1",
            json!({"max_ahead": "1s"}),
        ),
        (
            "coalesce",
            "tables",
            "/additionalProperties",
            json!({"partition_key": ["a"], "clustering": ["b"], "columns": ["c"]}),
        ),
    ];
    let nested = nested.into_iter().filter(|(of, ..)| *of == name);
    nested
        .map(|(_, key, within, inner)| {
            let within = format!("/properties/{key}{within}");
            let mut base = base.clone();
            if name == "trace" {
                base.insert("endpoint".to_owned(), json!("https://127.0.0.1:4317"));
            }
            Table {
                name: format!("{name}.{key}"),
                schema: step.pointer(&within).unwrap().clone(),
                place: place.to_owned() + &within,
                base: object(inner),
                file: Box::new(move |inner| {
                    let mut step = base.clone();
                    let value = match key {
                        "tables" => json!({"s.t": inner}),
                        _ => inner.clone(),
                    };
                    step.insert(key.to_owned(), value);
                    with_step(&Value::Object(step))
                }),
            }
        })
        .collect()
}

/// Keys that are accepted only beside others.
fn beside(table: &str, key: &str, value: &Value) -> Value {
    match (table, key) {
        ("rule", "upstream_tls") => json!({"action": "enrich"}),
        ("rule", "path") => json!({"action": "enrich", "fail": "open"}),
        ("rule", "sample" | "pipeline") => json!({"action": "enrich"}),
        ("rule", "tls") if value.is_object() => json!({"action": "enrich"}),
        ("rule", "holdout") => json!({"action": "enrich", "fail": "open"}),
        ("rule", "trigger") => json!({"action": "observe"}),
        ("rule", "remember") => json!({"user": ["a"]}),
        ("xdp", "syn_burst") => json!({"syn_rate": 5}),
        (
            "rule.upstream_tls" | "mirror.tls" | "trace.tls" | "otlp.tls" | "policy.tls"
            | "limits.tls" | "cluster.tls",
            "cert",
        ) => json!({"key": "/k"}),
        (
            "rule.upstream_tls" | "mirror.tls" | "trace.tls" | "otlp.tls" | "policy.tls"
            | "limits.tls" | "cluster.tls",
            "key",
        ) => json!({"cert": "/c"}),
        ("policy" | "limits" | "cluster", "user") => json!({"password_file": "/p"}),
        ("policy" | "limits" | "cluster", "password_file") => json!({"user": "u"}),
        ("policy" | "limits", "tls") => json!({"endpoints": ["https://127.0.0.1:2379"]}),
        ("policy", "source") if value != "kubernetes" => json!({}),
        ("policy", "source" | "server" | "token_file") if !value.is_null() => json!({
            "source": "kubernetes", "endpoints": null, "server": "https://10.0.0.1:6443", "tls": {"ca": "/c"}
        }),
        ("cache" | "lookup" | "mirror", "username") => json!({"password_file": "/p"}),
        ("lookup" | "mirror", "password_file") => json!({"username": "u"}),
        ("mirror", "on_failure") => json!({"dual_write": true}),
        ("mirror", "show_values") => json!({"compare": true}),
        ("debug", "bytes") => json!({"values": true}),
        ("debug", "values") => json!({"bytes": null}),
        ("trace" | "otlp", "tls") => json!({"endpoint": "https://127.0.0.1:4317"}),
        ("throttle", "rate") => json!({"burst": 1000}),
        ("protect", "refresh") => {
            json!({"keys": null, "kms": "http://127.0.0.1:1/", "max_age": "10080m"})
        }
        ("protect", "max_age") => {
            json!({"keys": null, "kms": "http://127.0.0.1:1/", "refresh": "100ms"})
        }
        ("protect", "kms" | "timeout") => json!({"keys": null, "kms": "http://127.0.0.1:1/"}),
        ("consistency", "exactly" | "at_least") => json!({"at_most": null}),
        ("rewrite", "default_ttl") => json!({"max_ttl": null}),
        ("debug" | "slowlog", "max_bytes" | "keep") => json!({"file": "/f"}),
        _ => json!({}),
    }
}

impl Table {
    pub(in crate::config) fn keys(&self) -> &Map<String, Value> {
        self.schema["properties"].as_object().unwrap()
    }

    /// A file with one key of the table set, and what that needs.
    pub(in crate::config) fn with(&self, key: &str, value: &Value) -> Value {
        let mut keys = self.base.clone();
        keys.extend(object(beside(&self.name, key, value)));
        keys.insert(key.to_owned(), value.clone());
        keys.retain(|_, value| !value.is_null());
        (self.file)(&Value::Object(keys))
    }
}

/// A file as text.
pub(in crate::config) fn text_of(file: &Value) -> String {
    let keys = file.as_object().unwrap().iter();
    keys.map(|(key, value)| format!("{key} = {}\n", toml(value)))
        .collect()
}

/// The parser's result for a file.
fn parsed(file: &Value) -> Result<Config, String> {
    Config::parse(Path::new("u.toml"), &text_of(file)).map_err(|e| e.to_string())
}

/// Values that a key may have: examples, and those that can be listed.
pub(in crate::config) fn values(property: &Value) -> Vec<Value> {
    let list = |place: &str| property.pointer(place).and_then(Value::as_array);
    let each = |place: &str| list(place).into_iter().flatten().cloned();
    let named = each("/oneOf").filter_map(|one| one.get("const").cloned());
    let listed = each("/items/enum").map(|value| json!([value]));
    each("/examples")
        .chain(each("/enum"))
        .chain(named)
        .chain(listed)
        .collect()
}

/// Whether the schema accepts a file, and the parser; they have to agree.
struct Both {
    schema: jsonschema::Validator,
}

impl Both {
    fn new(schema: &Value) -> Self {
        let schema = jsonschema::draft7::new(schema).unwrap();
        Self { schema }
    }

    fn accept(&self, file: &Value) -> Config {
        if let Err(error) = self.schema.validate(file) {
            panic!("{file}: {error}");
        }
        parsed(file).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    /// Asserts that schema and parser refuse the file, and returns the parser's words.
    fn refuse(&self, file: &Value) -> String {
        assert!(!self.schema.is_valid(file), "{file}");
        parsed(file).map_or_else(|error| error, |_| panic!("{file} is accepted"))
    }
}

/// The places of all tables of a schema: of everything that has keys of its own.
fn places(schema: &Value, place: &str, found: &mut BTreeSet<String>) {
    // What stands elsewhere would not be found.
    assert!(schema.get("$ref").is_none(), "{place}");
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        found.insert(place.to_owned());
        for (key, property) in properties {
            places(property, &format!("{place}/properties/{key}"), found);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(key) {
            places(inner, &format!("{place}/{key}"), found);
        }
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        let each = schema.get(key).and_then(Value::as_array);
        for (number, one) in each.into_iter().flatten().enumerate() {
            places(one, &format!("{place}/{key}/{number}"), found);
        }
    }
}

#[test]
fn every_table_of_the_schema_is_tried() {
    let schema = schema();
    let mut all = BTreeSet::new();
    places(&schema, "", &mut all);
    let tried: BTreeSet<String> = tables(&schema).into_iter().map(|t| t.place).collect();
    assert_eq!(tried, all);
}

#[test]
fn every_table_takes_the_keys_that_the_schema_has_and_no_other() {
    let schema = schema();
    let both = Both::new(&schema);
    for table in tables(&schema) {
        both.accept(&(table.file)(&Value::Object(table.base.clone())));
        let refused = both.refuse(&table.with("no_such_key", &json!(1)));
        let mut known: Vec<&str> = table.keys().keys().map(String::as_str).collect();
        known.retain(|key| *key != "transform");
        known.sort_unstable();
        // serde lists the fields of the type, but of a choice between types.
        if table.name == "rewrite.timestamps" {
            continue;
        }
        let (_, listed) = refused.split_once("unknown field `no_such_key`, ").unwrap();
        let mut listed: Vec<&str> = listed.split('`').skip(1).step_by(2).collect();
        listed.sort_unstable();
        assert_eq!(listed, known, "{}: {refused}", table.name);
    }
}

/// A word with its last letter doubled, which none of ours is.
fn misspelt(word: &str) -> String {
    format!("{word}{}", word.chars().last().unwrap())
}

#[test]
fn an_error_ends_with_what_was_meant_by_a_misspelt_key_or_value() {
    let schema = schema();
    let mut tried = 0;
    let mut wrong = Vec::new();
    let mut ends_with = |meant: &str, file: &Value| {
        tried += 1;
        let refused = parsed(file).unwrap_err();
        if !refused.ends_with(&format!(": did you mean `{meant}`?")) {
            wrong.push(refused);
        }
    };
    for table in tables(&schema) {
        // serde lists nothing of a choice between types.
        if table.name == "rewrite.timestamps" {
            continue;
        }
        for (key, property) in table.keys() {
            if key != "transform" {
                ends_with(key, &table.with(&misspelt(key), &json!(1)));
            }
            // Levels are the step's to read, which lists them.
            if table.name == "consistency" {
                continue;
            }
            let list = |place: &str| property.pointer(place).and_then(Value::as_array);
            let each = |place: &str| list(place).into_iter().flatten();
            let named = each("/oneOf").map(|one| &one["const"]);
            for value in named.chain(each("/enum")).filter_map(Value::as_str) {
                ends_with(value, &table.with(key, &json!(misspelt(value))));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "of {tried}");
    assert!(tried > 200, "{tried}");
}

#[test]
fn a_key_of_another_type_is_refused() {
    let schema = schema();
    let both = Both::new(&schema);
    let wrong = [
        json!("?"),
        json!(-1.5),
        json!(true),
        json!([{"a": 1}]),
        json!({"?": []}),
    ];
    for table in tables(&schema) {
        for (key, property) in table.keys() {
            let says = jsonschema::draft7::new(property).unwrap();
            let mut refused = 0;
            for value in wrong.iter().filter(|value| !says.is_valid(value)) {
                both.refuse(&table.with(key, value));
                refused += 1;
            }
            assert!(refused >= 3, "{}.{key}", table.name);
        }
    }
}

#[test]
fn a_key_that_is_needed_is() {
    let schema = schema();
    let both = Both::new(&schema);
    for table in tables(&schema) {
        let needed = table.schema.get("required").and_then(Value::as_array);
        for key in needed.into_iter().flatten() {
            let refused = both.refuse(&table.with(key.as_str().unwrap(), &Value::Null));
            let says = refused.contains("missing field") || refused.contains("expected");
            assert!(says, "{refused}");
        }
    }
}

#[test]
fn a_default_is_what_holds_without_the_key() {
    let schema = schema();
    let both = Both::new(&schema);
    for table in tables(&schema) {
        for (key, property) in table.keys() {
            let Some(default) = property.get("default") else {
                continue;
            };
            if default.is_object() || default.as_array().is_some_and(Vec::is_empty) {
                continue;
            }
            let [with, without] = [default, &Value::Null]
                .map(|value| format!("{:?}", both.accept(&table.with(key, value))));
            assert_eq!(with, without, "{}.{key}", table.name);
        }
    }
}

#[test]
fn bounds_are_the_parsers() {
    let schema = schema();
    let both = Both::new(&schema);
    let mut bounds = 0;
    for table in tables(&schema) {
        for (key, property) in table.keys() {
            let of = |bound: &str| property.get(bound).cloned();
            let is_whole = property["type"] == "integer";
            for (bound, step) in [("minimum", -1.0), ("maximum", 1.0)] {
                let Some(bound) = of(bound) else { continue };
                bounds += 1;
                both.accept(&table.with(key, &bound));
                let beyond = match is_whole {
                    true if bound.as_u64().is_some_and(|n| n > i32::MAX as u64) => continue,
                    true => json!(bound.as_i64().unwrap() + step as i64),
                    false => json!(bound.as_f64().unwrap() + step * 1e-6),
                };
                both.refuse(&table.with(key, &beyond));
            }
            for (bound, step) in [("x-min", -1), ("x-max", 1)] {
                let Some(Value::String(bound)) = of(bound) else {
                    continue;
                };
                bounds += 1;
                both.accept(&table.with(key, &json!(bound)));
                let digits = bound.trim_end_matches(|c: char| c.is_ascii_alphabetic());
                let beyond = digits.parse::<i64>().unwrap() + step;
                if beyond >= 0 {
                    let beyond = format!("{beyond}{}", &bound[digits.len()..]);
                    let refused = parsed(&table.with(key, &json!(beyond)));
                    assert!(refused.is_err(), "{}.{key} = {beyond}", table.name);
                }
            }
        }
    }
    assert!(bounds > 60, "{bounds}");
}

#[test]
fn every_value_and_every_example_is_accepted() {
    let schema = schema();
    let both = Both::new(&schema);
    for table in tables(&schema) {
        if let Some(example) = first_example(&table.schema) {
            let mut keys = example.clone();
            if let Some(name) = table.base.get("transform") {
                keys.insert("transform".to_owned(), name.clone());
            }
            both.accept(&(table.file)(&Value::Object(keys)));
        }
        for (key, property) in table.keys() {
            for value in values(property) {
                both.accept(&table.with(key, &value));
            }
        }
    }
}

/// The files of `config/`, and what the documents show of files: each with its name.
pub(in crate::config) fn documented() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut pages, mut files) = (
        vec![root.join("README.md")],
        vec![root.join("config/underpass.toml")],
    );
    for (folder, to) in [("docs", &mut pages), ("config/examples", &mut files)] {
        let found = fs::read_dir(root.join(folder)).unwrap();
        to.extend(
            found
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.is_file()),
        );
    }
    let read = |path: &PathBuf| fs::read_to_string(path).unwrap();
    let named = |path: &PathBuf| (path.display().to_string(), read(path));
    let mut texts: Vec<_> = files.iter().map(named).collect();
    pages.retain(|path| path.extension().is_some_and(|ext| ext == "md"));
    for path in pages {
        let page = read(&path);
        let shown = page
            .split("```toml\n")
            .skip(1)
            .filter_map(|rest| rest.split_once("\n```"));
        for (number, (text, _)) in shown.enumerate() {
            texts.push((
                format!("{}, example {}", path.display(), number + 1),
                whole(text),
            ));
        }
    }
    assert!(texts.len() > 30, "{}", texts.len());
    texts
}

#[test]
fn the_files_of_the_documentation_are_accepted() {
    let both = Both::new(&schema());
    for (name, text) in documented() {
        let file: toml::Value = toml::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let file = serde_json::to_value(file).unwrap();
        if let Err(error) = both.schema.validate(&file) {
            panic!("{name}: {error}");
        }
        Config::parse(Path::new("u.toml"), &text).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// A file around a part of a rule.
fn whole(text: &str) -> String {
    let key = text
        .lines()
        .find(|line| !line.starts_with('#') && !line.is_empty());
    let key = key.unwrap_or_default();
    let rule = |action: &str| {
        format!("[[rule]]\nname = \"r\"\naction = \"{action}\"\nfail = \"closed\"\n{text}")
    };
    match key.split([' ', '=']).next().unwrap_or_default() {
        "trigger" => rule("observe"),
        "limit" | "when" => rule("bypass"),
        // A file of keys.
        "active" => String::new(),
        "pipeline" | "tls" | "upstream_tls" => rule("enrich"),
        _ => text.to_owned(),
    }
}
