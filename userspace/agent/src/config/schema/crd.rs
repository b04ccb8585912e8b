//! The CRDs of the chart, made of the schema that also checks the file. `UPDATE_DOCS=1 cargo test -p underpass --lib crd` writes them
//! again.
//!
//! A structural schema of Kubernetes says less than JSON Schema: where a value can have one of several types it says nothing, and the agent
//! says what is wrong. Defaults are left out, for the API server would write them into objects.

use std::{fs, path::PathBuf};

use policy::owner_in_full;
use policy_source::{GROUP, VERSION};
use serde_json::{Map, Value, json};

use super::{
    super::{
        objects::{MAX_OBJECT_RULES, NOT_TENANTS, TENANT_KEYS, TENANT_STEPS},
        tests::parse,
    },
    name_of,
    page::STEPS,
    schema, to,
};

/// Bounds where the schema has none. Without them the API server cannot say what a validation costs, and refuses the CRD.
const MAX_TEXT: usize = 1024;
const MAX_ITEMS: usize = 256;

/// Kinds in an entry of `owner`.
const OWNER_KINDS: [&str; 11] = [
    "deployment",
    "deploy",
    "statefulset",
    "sts",
    "daemonset",
    "ds",
    "replicaset",
    "rs",
    "job",
    "cronjob",
    "cj",
];

/// Validations of a rule, for what most often is wrong with one: an expression (CEL), and what `kubectl apply` says.
const RULES: [(&str, &str); 8] = [
    (
        "self.name != 'default' && !self.name.matches('^mark-[0-9]+$')",
        "name: `default`, and `mark-` and a number, are the agent's",
    ),
    (
        "self.action != 'deny' || has(self.fail)",
        "fail: expected `open` or `closed` in a rule that denies: what happens to connections while the agent is away",
    ),
    (
        "!has(self.pipeline) || self.action == 'enrich' || has(self.trigger)",
        "pipeline: needs action `enrich`, or a `trigger`",
    ),
    (
        "!has(self.trigger) || self.action == 'observe'",
        "trigger: needs action `observe`",
    ),
    (
        "!has(self.sample) || self.action == 'enrich'",
        "sample: needs action `enrich`",
    ),
    (
        "!has(self.remember) || self.action == 'bypass'",
        "remember: needs action `bypass`",
    ),
    (
        "!has(self.limit) || self.action != 'deny'",
        "limit: not with action `deny`",
    ),
    (
        "!has(self.pipeline) || has(self.fail) || !self.pipeline.exists(step, step.transform in ['guard', 'audit', 'protect', 'throttle'])",
        "fail: expected `open` or `closed` in a rule with the steps `guard`, `audit`, `protect` or `throttle`",
    ),
];

#[test]
fn the_charts_crds_are_what_the_schema_says() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/underpass/crds");
    for (file, crd) in crds() {
        let path = folder.join(file);
        let text = serde_json::to_string_pretty(&crd).unwrap() + "\n";
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == text,
            "{} is stale: set UPDATE_DOCS=1 and run this test again",
            path.display()
        );
    }
}

#[test]
fn what_nodes_refuse_by_its_form_kubectl_refuses() {
    let rule = schema().pointer("/properties/rule/items").unwrap().clone();
    let rule = rule_of(&rule, true);
    let takes = |key: &str, value: &Value| {
        jsonschema::draft7::new(&rule["properties"][key])
            .unwrap()
            .is_valid(value)
    };
    for (key, value, is_taken) in [
        ("rollout", "0%", true),
        ("rollout", "99.5%", true),
        ("rollout", "100%", true),
        ("rollout", "100.0%", true),
        ("rollout", "005%", true),
        ("rollout", "101%", false),
        ("rollout", "100.1%", false),
        ("rollout", "200%", false),
        ("rollout", "10", false),
        ("rollout", "-1%", false),
        ("rollout", "NaN%", false),
        ("holdout", "0%", true),
        ("holdout", "0.5%", true),
        ("holdout", "49.9%", true),
        ("holdout", "50%", true),
        ("holdout", "50.00%", true),
        ("holdout", "50.1%", false),
        ("holdout", "51%", false),
        ("holdout", "90%", false),
        ("holdout", "100%", false),
    ] {
        assert_eq!(takes(key, &json!(value)), is_taken, "{key} {value}");
        let rest = match key {
            "holdout" => "action = \"enrich\"\nfail = \"open\"",
            _ => "action = \"bypass\"",
        };
        let text = format!("[[rule]]\nname = \"r\"\n{rest}\n{key} = {value:?}\n");
        assert_eq!(parse(&text).is_ok(), is_taken, "{key} {value}");
    }
    for (owner, is_taken) in [
        ("deploy/web", true),
        ("Deployment/web-*", true),
        ("STS/db", true),
        ("statefulset/db", true),
        ("ds/a", true),
        ("daemonset/a", true),
        ("rs/a", true),
        ("replicaset/a", true),
        ("job/a", true),
        ("cj/a", true),
        ("cronjob/a", true),
        ("web", false),
        ("pod/web", false),
        ("deploy/", false),
        ("/web", false),
        ("deploy/a/b", false),
        ("deploys/a", false),
        ("", false),
    ] {
        assert_eq!(takes("owner", &json!([owner])), is_taken, "{owner}");
        assert_eq!(owner_in_full(owner).is_some(), is_taken, "{owner}");
    }
}

#[test]
fn keys_of_namespaces_are_keys_of_rules() {
    let schema = schema();
    let rule = schema.pointer("/properties/rule/items/properties").unwrap();
    assert!(TENANT_KEYS.iter().all(|key| rule.get(key).is_some()));
    let steps = schema.pointer(STEPS).and_then(Value::as_array).unwrap();
    for name in TENANT_STEPS {
        let step = steps.iter().find(|step| name_of(step) == name).unwrap();
        // What names a file, a host or a secret has a title or a name like these: a new one is looked at before namespaces get it.
        for (key, value) in step["properties"].as_object().unwrap() {
            let told = value.to_string();
            let is_reach = ["absolute path", "IP:PORT", "URL", "\"ca\""]
                .iter()
                .any(|word| told.contains(word));
            assert!(
                !is_reach || NOT_TENANTS.contains(&key.as_str()),
                "{name}.{key}: {told}"
            );
        }
    }
}

fn crds() -> [(&'static str, Value); 3] {
    let rule = schema().pointer("/properties/rule/items").unwrap().clone();
    let status = status();
    let policy = |is_tenants: bool| {
        let rule = rule_of(&rule, is_tenants);
        json!({
            "type": "object",
            "required": ["spec"],
            "properties": {
                "spec": {
                    "type": "object",
                    "required": ["rules"],
                    "properties": {"rules": {
                        "description": "The rules, in the order in which they are asked.",
                        "type": "array",
                        "maxItems": MAX_OBJECT_RULES,
                        "items": rule,
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                    }},
                },
                "status": status,
            },
        })
    };
    let counted = json!([
        {"name": "In force", "type": "string", "jsonPath": ".status.inForce",
         "description": "Nodes on which it is in force as it is now, of all nodes that have an agent or should have one."},
        {"name": "Refused", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Refused\")].status"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]);
    let columns = json!([
        {"name": "Agent", "type": "string", "jsonPath": ".state.agent"},
        {"name": "In force", "type": "integer", "jsonPath": ".state.policies"},
        {"name": "Refused", "type": "integer", "jsonPath": ".state.refusals"},
    ]);
    let node = json!({
        "type": "object",
        "properties": {"state": {
            "type": "object",
            // It is said as a whole; of what is said key by key, nothing could be taken back.
            "x-kubernetes-map-type": "atomic",
            "description": "What the agent of a node says of each policy: written by the agent, read by whoever counts.",
            "properties": {
                "agent": {"type": "string", "maxLength": MAX_TEXT},
                "policies": {"type": "integer", "description": "Policies that are in force as they are now."},
                "refusals": {"type": "integer", "description": "Policies that are refused: of each that stays which was in force."},
                "inForce": {"type": "object", "additionalProperties": {"type": "integer"}},
                "refused": {"type": "object", "additionalProperties": {
                    "type": "object",
                    "properties": {
                        "generation": {"type": "integer"},
                        "message": {"type": "string", "maxLength": 2 * MAX_TEXT},
                    },
                }},
            },
        }},
    });
    [
        (
            "underpasspolicies.json",
            crd(
                "UnderpassPolicy",
                "underpasspolicies",
                "Namespaced",
                policy(true),
                &counted,
            ),
        ),
        (
            "clusterunderpasspolicies.json",
            crd(
                "ClusterUnderpassPolicy",
                "clusterunderpasspolicies",
                "Cluster",
                policy(false),
                &counted,
            ),
        ),
        (
            "underpassnodes.json",
            crd(
                "UnderpassNode",
                "underpassnodes",
                "Namespaced",
                node,
                &columns,
            ),
        ),
    ]
}

/// Status of a policy, which the counter writes, and whoever may write policies does not.
fn status() -> Value {
    let text = json!({"type": "string", "maxLength": 2 * MAX_TEXT});
    let condition = json!({
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": text,
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": text,
            "message": text,
            "observedGeneration": {"type": "integer"},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
        },
    });
    json!({
        "type": "object",
        "description": "On how many nodes the policy is in force, as the agents say.",
        "properties": {
            "observedGeneration": {"type": "integer", "description": "The generation that was counted."},
            "nodes": {"type": "integer", "description": "Nodes that have an agent, or should have one."},
            "nodesInForce": {"type": "integer"},
            "nodesRefused": {"type": "integer"},
            "inForce": {"type": "string", "maxLength": MAX_TEXT, "description": "Both numbers, for people."},
            "conditions": {
                "type": "array",
                "maxItems": 8,
                "items": condition,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        },
    })
}

fn crd(kind: &str, plural: &str, scope: &str, schema: Value, columns: &Value) -> Value {
    let mut version = json!({
        "name": VERSION,
        "served": true,
        "storage": true,
        "additionalPrinterColumns": columns,
    });
    if schema.pointer("/properties/status").is_some() {
        // Neither does a status count as a change of what is wanted, nor may whoever writes that write it.
        version["subresources"] = json!({"status": {}});
    }
    version["schema"] = json!({"openAPIV3Schema": schema});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
            "versions": [version],
        },
    })
}

/// The schema of a rule, with the steps of its pipeline as one table that has the keys of each.
fn rule_of(rule: &Value, is_tenants: bool) -> Value {
    let steps = rule
        .pointer("/properties/pipeline/items/oneOf")
        .and_then(Value::as_array)
        .unwrap();
    let steps = steps
        .iter()
        .filter(|step| !is_tenants || TENANT_STEPS.contains(&name_of(step)));
    let mut names = Vec::new();
    let mut keys = Map::new();
    for step in steps {
        names.push(name_of(step));
        for (key, value) in step["properties"].as_object().unwrap() {
            if is_tenants && NOT_TENANTS.contains(&key.as_str()) {
                continue;
            }
            let mut said = structural(value);
            said.as_object_mut().unwrap().remove("description");
            let one = keys.entry(key.clone()).or_insert_with(|| said.clone());
            // Each step means something else by it.
            if *one != said {
                *one = anything();
            }
        }
    }
    keys.insert(
        "transform".to_owned(),
        json!({"type": "string", "enum": names}),
    );
    let mut rule = structural(rule);
    let has = rule["properties"].as_object_mut().unwrap();
    if is_tenants {
        has.retain(|key, _| TENANT_KEYS.contains(&key.as_str()));
        has.insert(
            "tls".to_owned(),
            json!({
                "type": "boolean",
                "description": "Condition on the session: whether the client encrypts.",
            }),
        );
    }
    for (key, value) in to::form().as_object().unwrap() {
        has.get_mut("to").unwrap()["items"][key] = value.clone();
    }
    has.get_mut("owner").unwrap()["items"]["pattern"] = owner_form().into();
    let pipeline = has.get_mut("pipeline").unwrap();
    pipeline["items"] = json!({"type": "object", "required": ["transform"], "properties": keys});
    let rules = RULES
        .iter()
        .map(|(rule, message)| json!({"rule": rule, "message": message}));
    rule["x-kubernetes-validations"] = rules.collect();
    rule
}

/// Returns the form of an entry of `owner`, as [`policy::owner_in_full`] reads it: a kind in any case, and a name.
fn owner_form() -> String {
    let in_any_case = |kind: &str| -> String {
        let letters = kind.chars();
        letters
            .map(|letter| format!("[{}{letter}]", letter.to_ascii_uppercase()))
            .collect()
    };
    let kinds = OWNER_KINDS.map(in_any_case).join("|");
    format!("^({kinds})/[^/]+$")
}

fn anything() -> Value {
    json!({"x-kubernetes-preserve-unknown-fields": true})
}

/// Says of a value as much as a structural schema can.
fn structural(schema: &Value) -> Value {
    let mut found = Map::new();
    let description = schema.get("description");
    if let Some(description) = description {
        found.insert("description".to_owned(), description.clone());
    }
    let Some(kind) = schema.get("type").and_then(Value::as_str) else {
        let is_number_or_text = schema
            .get("type")
            .is_some_and(|kinds| *kinds == json!(["integer", "string"]));
        match is_number_or_text {
            true => found.insert("x-kubernetes-int-or-string".to_owned(), true.into()),
            false => found.insert(
                "x-kubernetes-preserve-unknown-fields".to_owned(),
                true.into(),
            ),
        };
        return Value::Object(found);
    };
    found.insert("type".to_owned(), kind.into());
    for key in [
        "enum",
        "pattern",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "maxProperties",
        "required",
    ] {
        if let Some(value) = schema.get(key) {
            found.insert(key.to_owned(), value.clone());
        }
    }
    if let Some(least) = schema.get("exclusiveMinimum") {
        found.insert("minimum".to_owned(), least.clone());
        found.insert("exclusiveMinimum".to_owned(), true.into());
    }
    match kind {
        "string" => drop(found.entry("maxLength").or_insert(MAX_TEXT.into())),
        "array" => {
            found.entry("maxItems").or_insert(MAX_ITEMS.into());
            let items = schema.get("items").map_or_else(anything, structural);
            found.insert("items".to_owned(), items);
        }
        "object" => match (
            schema.get("properties").and_then(Value::as_object),
            schema.get("additionalProperties"),
        ) {
            (Some(properties), _) => {
                let properties = properties
                    .iter()
                    .map(|(key, value)| (key.clone(), structural(value)));
                found.insert("properties".to_owned(), Value::Object(properties.collect()));
            }
            (None, Some(each)) if each.is_object() => {
                found.entry("maxProperties").or_insert(MAX_ITEMS.into());
                found.insert("additionalProperties".to_owned(), structural(each));
            }
            _ => drop(found.insert(
                "x-kubernetes-preserve-unknown-fields".to_owned(),
                true.into(),
            )),
        },
        _ => {}
    }
    Value::Object(found)
}
