//! Any bytes as a policy: as a file, and as objects of Kubernetes.

use std::{path::Path, sync::LazyLock};

use policy_source::{Fragment, Fragments, Kind, PolicyObject};
use serde_json::Value;

use super::{Config, ConfigError, InForce, LineColumn, Sources, file_of_object, laid_out, schema};

static SCHEMA: LazyLock<Value> = LazyLock::new(schema);

/// The namespace of objects that are in one.
const NAMESPACE: &str = "shop";

/// A file: an error names a place in it. A good one means the same in full and laid out.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let path = Path::new("a.toml");
    let sources = Sources::of(path, text);
    let read = Config::of(&sources);
    if let Err(error) = &read {
        assert_placed(error, text);
    }
    if let Ok(config) = read {
        let in_full = |sources: Sources, config| InForce::of(sources, config).by(&SCHEMA);
        let full = in_full(sources.clone(), config);
        let again = Sources::of(path, &full);
        match Config::of(&again) {
            Ok(config) => assert_eq!(in_full(again, config), full),
            Err(error) => assert_eq!(error.to_string(), "", "{full}"),
        }
    }
    match laid_out(path, text) {
        Ok(out) => assert_eq!(laid_out(path, &out).ok().as_ref(), Some(&out)),
        Err(error) => {
            assert_placed(&error, text);
            assert!(!error.to_string().contains("without a change"), "{error}");
        }
    }
}

fn assert_placed(error: &ConfigError, text: &str) {
    let ConfigError::Bad { at, message, .. } = error else {
        // Nothing but the text is looked at.
        return assert_eq!(error.to_string(), "");
    };
    let LineColumn { line, column } = *at;
    let of_line = text.split('\n').nth(line.wrapping_sub(1));
    let columns = of_line.map(|line| line.chars().count() + 1);
    assert!(columns.is_some_and(|columns| column <= columns), "{error}");
    assert!(column > 0 && !message.is_empty());
}

/// Specifications of policies, each ended by a zero byte: a rule of a namespace is for its pods alone, and none becomes another.
pub fn objects(data: &[u8]) {
    let mut files = Vec::new();
    let mut expected = Vec::new();
    for (n, spec) in data.split(|byte| *byte == 0).take(4).enumerate() {
        let Ok(spec) = serde_json::from_slice::<Value>(spec) else {
            continue;
        };
        let (kind, namespace) = match n % 2 {
            0 => (Kind::Namespaced, NAMESPACE),
            _ => (Kind::Cluster, ""),
        };
        let object = PolicyObject {
            kind,
            namespace,
            name: "p",
            spec: &spec,
        };
        let Ok(file) = file_of_object(&object) else {
            continue;
        };
        let read: Result<toml::Table, _> = toml::from_str(&file.text);
        let Ok(table) = read else {
            return assert_eq!(file.text, "", "it is no TOML");
        };
        let rules = table.get("rule").and_then(toml::Value::as_array);
        assert_eq!(rules.map(Vec::len), Some(file.take.rules), "{}", file.text);
        assert_eq!(table.len(), 1, "{}", file.text);
        expected.extend(std::iter::repeat_n(kind, file.take.rules));
        files.push(Fragment {
            name: format!("{}/{n}", kind.resource()),
            text: file.text,
        });
    }
    // In the order of their names, as they are put into force.
    expected.sort_by_key(|kind| *kind == Kind::Namespaced);
    let Ok(fragments) = Fragments::of_objects(1, files) else {
        return;
    };
    let sources = Sources::default().with(&fragments);
    if let Ok(raw) = sources.parse() {
        assert_eq!(raw.rule.len(), expected.len());
        for (rule, kind) in raw.rule.iter().zip(expected) {
            let rule = rule.get_ref();
            if kind == Kind::Namespaced {
                let of: Vec<_> = rule.namespace.iter().map(|name| name.get_ref()).collect();
                assert_eq!(of, [NAMESPACE]);
                assert!(rule.cgroup.is_empty() && rule.from.is_empty());
                assert!(rule.name.get_ref().starts_with("shop_p."));
            }
        }
    }
    let _ = Config::of(&sources);
}
