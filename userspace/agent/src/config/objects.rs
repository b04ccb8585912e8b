//! Policies that are objects of Kubernetes, as files: each rule is a line, so that a place in an error is the rule's number.
//!
//! Whoever may write an `UnderpassPolicy` in a namespace is not root on any node, and the agent is. **Invariant**: each rule of such a policy
//! holds for pods of its own namespace only, because the condition is added here, and has none but [`TENANT_KEYS`] and
//! [`TENANT_STEPS`]: nothing that opens a file of the node or a connection, or that holds for others.

use std::{collections::BTreeSet, fmt::Write as _};

use policy::Destination;
use policy_source::{Kind, PolicyFile, PolicyObject, RulesTake};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::{
    bounds::RULE_MODES,
    sources::{CLOSES, OPENS},
};

/// Rules of one object.
pub(super) const MAX_OBJECT_RULES: usize = 64;

/// The most bytes of a rule's name, which its object's name becomes a part of.
const MAX_RULE_NAME_BYTES: usize = 63;

/// Hexadecimal digits in the place of what is cut off from a name.
const DIGITS: usize = 16;

/// Keys of a rule of an `UnderpassPolicy`.
pub(super) const TENANT_KEYS: [&str; 30] = [
    "name",
    "action",
    "fail",
    "mode",
    "hosts",
    "rollout",
    "to",
    "uid",
    "gid",
    "process",
    "container",
    "labels",
    "service_account",
    "owner",
    "user",
    "keyspace",
    "driver",
    "driver_version",
    "application",
    "protocol",
    "compression",
    "path",
    "remember",
    "sample",
    "holdout",
    "when",
    "limit",
    "trigger",
    "pipeline",
    "tls",
];

/// Steps of its pipelines.
pub(super) const TENANT_STEPS: [&str; 10] = [
    "consistency",
    "count",
    "guard",
    "paging",
    "rewrite",
    "slowlog",
    "stats",
    "tag",
    "throttle",
    "tracing",
];

/// Keys that none of these steps may have there: files of the node, what is sent to the collector of all, and what all hosts share by an etcd.
pub(super) const NOT_TENANTS: [&str; 5] = ["file", "max_bytes", "keep", "otlp", "scope"];

/// Writes a policy as a file.
///
/// # Errors
/// Says what is wrong with it. What a rule means is not looked at.
pub fn file_of(object: &PolicyObject<'_>) -> Result<PolicyFile, String> {
    let rules = object.spec.get("rules").and_then(Value::as_array);
    let rules = rules.ok_or("spec.rules: expected a list of rules; found none")?;
    if rules.len() > MAX_OBJECT_RULES {
        return Err(format!(
            "spec.rules: expected at most {MAX_OBJECT_RULES}; found {}: make further objects",
            rules.len()
        ));
    }
    let mut text = OPENS.to_owned();
    for (n, rule) in rules.iter().enumerate() {
        let at = |why: String| format!("spec.rules[{n}]{why}");
        let rule = rule
            .as_object()
            .ok_or_else(|| at(": expected a rule".into()))?;
        let rule = settled(object, rule.clone()).map_err(at)?;
        let rule = toml_of(&Value::Object(rule)).map_err(at)?.to_string();
        // A line is a rule.
        if rule.contains(['\n', '\r']) {
            return Err(at(": a text has more than one line".into()));
        }
        let _ = writeln!(text, "{rule},");
    }
    text.push_str(CLOSES);
    Ok(PolicyFile {
        take: take_of(&text),
        text,
    })
}

/// Counts what the rules in a text take that was written here. One that was not takes nothing, and is wrong anyway.
pub fn take_of(text: &str) -> RulesTake {
    let table: toml::Table = text.parse().unwrap_or_default();
    let rules = table.get("rule").and_then(toml::Value::as_array);
    let mut taken = Taken::default();
    for rule in rules.into_iter().flatten() {
        taken.add(rule);
    }
    taken.all()
}

/// Counts of what the rules of a policy take, while they are read one by one.
#[derive(Default)]
struct Taken<'r> {
    take: RulesTake,
    names: BTreeSet<&'r str>,
    ports: BTreeSet<u16>,
}

impl<'r> Taken<'r> {
    /// Adds a rule. What is no destination is told with its rule, and takes nothing.
    fn add(&mut self, rule: &'r toml::Value) {
        let list = |key: &str| {
            rule.get(key)
                .and_then(toml::Value::as_array)
                .into_iter()
                .flatten()
        };
        for to in list("to").filter_map(toml::Value::as_str) {
            match Destination::parse(to) {
                Ok(Destination::Fixed(targets)) => {
                    self.take.destinations += targets.len();
                    self.ports
                        .extend(targets.iter().filter_map(|target| target.port));
                }
                Ok(Destination::Named(target)) => {
                    self.names.insert(to);
                    self.take.destinations += target.ports.len().max(1);
                    self.ports.extend(target.ports);
                }
                Err(_) => {}
            }
        }
        let ids = ["uid", "gid", "process"].into_iter().flat_map(list);
        self.take.ids += ids.count();
        let mode = rule.get("mode").and_then(toml::Value::as_str);
        let is_shadow = |(name, is_shadow): &(&str, bool)| *is_shadow && mode == Some(*name);
        self.take.shadows += usize::from(RULE_MODES.iter().any(is_shadow));
        self.take.rules += 1;
    }

    fn all(self) -> RulesTake {
        RulesTake {
            names: self.names.len(),
            ports: self.ports.len(),
            ..self.take
        }
    }
}

/// A rule with the name that it has among all of the cluster, for the pods that it may be for.
fn settled(
    object: &PolicyObject<'_>,
    mut rule: Map<String, Value>,
) -> Result<Map<String, Value>, String> {
    let name = rule.get("name").and_then(Value::as_str);
    let name = name.ok_or(".name: expected a name")?;
    let name = whole_name(object, name);
    if object.kind == Kind::Namespaced {
        may_have(&rule)?;
        rule.insert("namespace".to_owned(), Value::from(vec![object.namespace]));
    }
    rule.insert("name".to_owned(), name.into());
    Ok(rule)
}

/// The name of a rule: `namespace_object.rule`, or `object.rule` of a cluster's. The part before the first `_` has a dot exactly in the latter, so that
/// no namespace can take the name of another's rule.
fn whole_name(object: &PolicyObject<'_>, name: &str) -> String {
    let whole = match object.kind {
        Kind::Cluster => format!("{}.{name}", object.name),
        Kind::Namespaced => format!("{}_{}.{name}", object.namespace, object.name),
    };
    if whole.len() <= MAX_RULE_NAME_BYTES || !whole.is_ascii() {
        return whole;
    }
    let digest = Sha256::digest(whole.as_bytes());
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let (kept, _) = whole.split_at(MAX_RULE_NAME_BYTES - DIGITS - 1);
    format!("{kept}-{}", digits.get(..DIGITS).unwrap_or_default())
}

/// Whether a rule has nothing that a namespace may not say.
fn may_have(rule: &Map<String, Value>) -> Result<(), String> {
    const CLUSTERS: &str = "is for a ClusterUnderpassPolicy";
    if let Some(key) = rule.keys().find(|key| !TENANT_KEYS.contains(&key.as_str())) {
        return Err(format!(".{key}: {CLUSTERS}"));
    }
    if rule.get("tls").is_some_and(|tls| !tls.is_boolean()) {
        return Err(format!(".tls: a certificate {CLUSTERS}"));
    }
    let steps = rule.get("pipeline").and_then(Value::as_array);
    for (n, step) in steps.into_iter().flatten().enumerate() {
        let name = step
            .get("transform")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if !TENANT_STEPS.contains(&name) {
            return Err(format!(".pipeline[{n}]: the step `{name}` {CLUSTERS}"));
        }
        if let Some(key) = NOT_TENANTS.iter().find(|key| step.get(**key).is_some()) {
            return Err(format!(".pipeline[{n}].{key}: {CLUSTERS}"));
        }
    }
    Ok(())
}

/// Writes a value in TOML. A key whose value is null is left out.
///
/// # Errors
/// Says what TOML does not have.
fn toml_of(value: &Value) -> Result<toml::Value, String> {
    Ok(match value {
        Value::Null => return Err(": a list has null in it".to_owned()),
        Value::Bool(value) => (*value).into(),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => number.into(),
            (None, Some(float)) if !number.is_u64() => float.into(),
            _ => return Err(": a number is too large".to_owned()),
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => items
            .iter()
            .map(toml_of)
            .collect::<Result<Vec<_>, _>>()?
            .into(),
        Value::Object(table) => {
            let table = table.iter().filter(|(_, value)| !value.is_null());
            let table = table.map(|(key, value)| Ok((key.clone(), toml_of(value)?)));
            toml::Value::Table(table.collect::<Result<_, String>>()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use ebpf::abi;
    use policy_source::{Fragment, Fragments};
    use serde_json::json;

    use super::*;
    use crate::config::{Config, Sources, network::MAX_RULE_DESTINATIONS};

    fn text(namespace: &str, name: &str, spec: &Value) -> Result<String, String> {
        let kind = match namespace.is_empty() {
            true => Kind::Cluster,
            false => Kind::Namespaced,
        };
        let file = file_of(&PolicyObject {
            kind,
            namespace,
            name,
            spec,
        })?;
        Ok(file.text)
    }

    fn config(files: &[(&str, String)]) -> Result<Config, String> {
        let files = files.iter().map(|(name, text)| Fragment {
            name: (*name).to_owned(),
            text: text.clone(),
        });
        let fragments = Fragments {
            files: files.collect(),
            ..Fragments::default()
        };
        let own = Sources::of(
            "/own.toml".as_ref(),
            "[policy]\nsource = \"kubernetes\"\nserver = \"https://a:1\"\ntls = { ca = \"/ca\" }\n",
        );
        Config::of(&own.with(&fragments)).map_err(|error| error.to_string())
    }

    #[test]
    fn rules_are_those_of_a_file_and_a_place_is_the_rules_number() {
        let spec = json!({"rules": [
            {"name": "a", "to": [":9042"], "action": "enrich", "fail": "open", "sample": 0.5, "mode": null,
             "when": {"days": "mon-fri", "tz": "UTC"}, "labels": {"app": "web\"x\""},
             "pipeline": [{"transform": "guard", "refuse": ["ddl"]}, {"transform": "stats"}]},
            {"name": "b", "to": [":9042"], "action": "bypass"},
        ]});
        let good = text("shop", "web", &spec).unwrap();
        assert_eq!(good.lines().count(), 3, "{good}");
        let config_of = |text| config(&[("underpasspolicies/shop/web", text)]);
        let rules = config_of(good).unwrap().policy.rules;
        let names: Vec<_> = rules.iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!(names, ["shop_web.a", "shop_web.b"]);
        for rule in &rules {
            let namespaces = &rule.containers.pods.namespaces;
            assert_eq!(
                namespaces
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>(),
                ["shop"]
            );
        }
        let bad = json!({"rules": [spec["rules"][0], {"name": "b", "action": "byp"}]});
        let said = config_of(text("shop", "web", &bad).unwrap()).unwrap_err();
        assert!(
            said.starts_with("kubernetes:underpasspolicies/shop/web:2:"),
            "{said}"
        );
        assert!(said.contains("rule.action: expected"), "{said}");
    }

    #[test]
    fn a_namespaces_rules_have_nothing_of_the_nodes_or_of_others() {
        let rule = |key: &str, value: Value| {
            let mut rule = json!({"name": "r", "action": "enrich", "fail": "open"});
            rule[key] = value;
            json!({"rules": [rule]})
        };
        for (key, value) in [
            ("namespace", json!(["other"])),
            ("from", json!(["10.0.0.0/8"])),
            ("netns", json!(["1"])),
            ("cgroup", json!(["/"])),
            ("backends", json!(["10.0.0.1:1"])),
            ("upstream_tls", json!({"ca": "/etc/shadow"})),
            ("tls", json!({"cert": "/c", "key": "/k"})),
            ("shortcut", json!(true)),
            ("colour", json!(1)),
            ("pipeline", json!([{"transform": "audit", "file": "/a"}])),
            (
                "pipeline",
                json!([{"transform": "stats"}, {"transform": "mirror", "to": "10.0.0.1:1"}]),
            ),
            (
                "pipeline",
                json!([{"transform": "slowlog", "over": "1s", "file": "/etc/passwd"}]),
            ),
            (
                "pipeline",
                json!([{"transform": "slowlog", "over": "1s", "otlp": true}]),
            ),
            (
                "pipeline",
                json!([{"transform": "throttle", "rate": 1, "scope": "fleet"}]),
            ),
            ("pipeline", json!([{"over": "1s"}])),
        ] {
            let refused = text("shop", "web", &rule(key, value.clone()));
            assert!(
                refused
                    .unwrap_err()
                    .contains("is for a ClusterUnderpassPolicy"),
                "{key}"
            );
            assert!(text("", "web", &rule(key, value)).is_ok(), "{key}");
        }
        for (spec, said) in [
            (json!({}), "spec.rules: expected a list"),
            (json!({"rules": [1]}), "spec.rules[0]: expected a rule"),
            (json!({"rules": [{}]}), "spec.rules[0].name"),
            (
                json!({"rules": [{"name": "a", "sample": u64::MAX}]}),
                "spec.rules[0]: a number",
            ),
            (
                json!({"rules": [{"name": "a", "to": [":1", null]}]}),
                "spec.rules[0]: a list has null",
            ),
            (
                json!({"rules": [{"name": "a", "labels": {"app": "a\nb"}}]}),
                "spec.rules[0]: a text has more than one line",
            ),
            (
                json!({"rules": vec![json!({"name": "a"}); 65]}),
                "at most 64",
            ),
        ] {
            let refused = text("", "web", &spec).unwrap_err();
            assert!(refused.contains(said), "{refused}");
        }
    }

    #[test]
    fn names_and_rules_are_counted() {
        let spec = json!({"rules": [
            {"name": "a", "to": ["db.shop:9042-9044", ":9042-9143", "10.0.0.1:9042", "[::1]", "no/where"], "uid": [7, "app"], "mode": "shadow"},
            {"name": "b", "to": ["db.shop:9042-9044", "cluster:main", "_cql._tcp.shop"], "gid": [7], "process": ["java"], "mode": "enforce"},
        ]});
        let file = file_of(&PolicyObject {
            kind: Kind::Namespaced,
            namespace: "shop",
            name: "web",
            spec: &spec,
        });
        let take = RulesTake {
            rules: 2,
            names: 3,
            destinations: 3 + 102 + 1 + 1 + 3 + 1 + 1,
            ports: 102,
            ids: 4,
            shadows: 1,
        };
        assert_eq!(file.unwrap().take, take);
    }

    /// Half of everything that rules of all namespaces and of the cluster have together is the cluster's.
    #[test]
    fn what_namespaces_take_leaves_half_for_the_cluster() {
        use policy::{MAX_DESTINATION_PORTS, MAX_DESTINATIONS, MAX_SHADOWS};
        use policy_source::{
            MAX_NAMESPACE_DESTINATIONS, MAX_NAMESPACES_DESTINATIONS, MAX_NAMESPACES_IDS,
            MAX_NAMESPACES_PORTS, MAX_NAMESPACES_SHADOWS,
        };
        assert_eq!(MAX_NAMESPACES_DESTINATIONS, MAX_DESTINATIONS / 2);
        assert_eq!(MAX_NAMESPACES_PORTS, MAX_DESTINATION_PORTS / 2);
        assert_eq!(MAX_NAMESPACES_SHADOWS, MAX_SHADOWS / 2);
        let fit = abi::MAX_UIDS.min(abi::MAX_GIDS).min(abi::MAX_PROCESSES);
        assert_eq!(MAX_NAMESPACES_IDS as u32, fit / abi::GENERATIONS / 2);
        assert_eq!(MAX_NAMESPACE_DESTINATIONS, MAX_RULE_DESTINATIONS);
    }

    #[test]
    fn no_namespace_takes_anothers_name() {
        let names = [
            ("", "a", "b_c"),
            ("a", "b", "c"),
            ("", "a.b", "c"),
            ("ab", "c", "d"),
            ("a", "b_c", "d"),
        ];
        let mut whole: Vec<String> = Vec::new();
        for (namespace, name, rule) in names {
            let object = PolicyObject {
                kind: if namespace.is_empty() {
                    Kind::Cluster
                } else {
                    Kind::Namespaced
                },
                namespace,
                name,
                spec: &Value::Null,
            };
            whole.push(whole_name(&object, rule));
            let long = whole_name(&object, &"r".repeat(63));
            assert_eq!(long.len(), MAX_RULE_NAME_BYTES, "{long}");
            whole.push(long);
        }
        let n = whole.len();
        whole.sort();
        whole.dedup();
        assert_eq!(whole.len(), n);
    }
}
