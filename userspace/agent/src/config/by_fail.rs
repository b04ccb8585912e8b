//! Rules of the fleet's last policy that are treated by their `fail`, as while the agent is away: a key, a journal's folder or a certificate
//! is not there when it starts. The others come into force, and each of them is still met where it was.

use std::collections::HashMap;

use policy::{Action, Fail, RuleName};
use policy_source::Fragments;
use toml::{Table, Value};

use super::sources::{CLOSES, OPENS};

/// Keys that such a rule keeps: by them it is met by the same connections as before, and by these alone.
const STAY: [&str; 25] = [
    "name",
    "action",
    "mode",
    "hosts",
    "rollout",
    "when",
    "from",
    "to",
    "uid",
    "gid",
    "process",
    "cgroup",
    "netns",
    "container",
    "labels",
    "namespace",
    "service_account",
    "owner",
    "user",
    "keyspace",
    "driver",
    "driver_version",
    "application",
    "protocol",
    "compression",
];

/// Keys that one keeps which refuses nobody.
const STAY_WHERE_NOBODY_IS_REFUSED: [&str; 2] = ["backends", "limit"];

/// Returns files in which these rules refuse connections, or leave them alone, by their `fail`.
///
/// # Errors
/// Says which text is no TOML. All of them were parsed before.
pub fn by_fail(files: &Fragments, rules: &HashMap<RuleName, Fail>) -> Result<Fragments, String> {
    let mut files = files.clone();
    for file in &mut files.files {
        let whole: Table = file
            .text
            .parse()
            .map_err(|why| format!("{}: {why}", file.name))?;
        let Some(Value::Array(all)) = whole.get("rule") else {
            continue;
        };
        let fail = |rule: &Value| {
            rules
                .get(&RuleName::new(rule.get("name")?.as_str()?))
                .copied()
        };
        if all.iter().all(|rule| fail(rule).is_none()) {
            continue;
        }
        let treated = all.iter().map(|rule| match (fail(rule), rule.as_table()) {
            (Some(fail), Some(table)) => Value::Table(treated(table, fail)),
            _ => rule.clone(),
        });
        // As objects are laid out, so that all of them are still read as one text.
        let lines: String = treated.map(|rule| format!("{rule},\n")).collect();
        file.text = format!("{OPENS}{lines}{CLOSES}");
    }
    Ok(files)
}

fn treated(rule: &Table, fail: Fail) -> Table {
    // One that observes has a pipeline for what its trigger enriches, and goes on to observe.
    let observes = rule.get("action").and_then(Value::as_str) == Some(Action::Observe.as_str());
    let action = match fail {
        _ if observes => Action::Observe,
        Fail::Open => Action::Bypass,
        Fail::Closed => Action::Deny,
    };
    let stays = |key: &str, value: &Value| {
        STAY.contains(&key)
            || action != Action::Deny && STAY_WHERE_NOBODY_IS_REFUSED.contains(&key)
            // Whether the client encrypts; and no certificate.
            || key == "tls" && value.is_bool()
    };
    let kept = rule.iter().filter(|(key, value)| stays(key, value));
    let mut kept: Table = kept
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    kept.insert("action".into(), action.as_str().into());
    if action == Action::Deny {
        kept.insert("fail".into(), Fail::Closed.as_str().into());
    }
    kept
}

#[cfg(test)]
mod tests {
    use policy_source::Fragment;

    use super::*;
    use crate::config::{Config, Sources, schema};

    /// Keys of a rule that such a one does not keep.
    const GO: [&str; 10] = [
        "fail",
        "holdout",
        "path",
        "pipeline",
        "remember",
        "sample",
        "shortcut",
        "tls",
        "trigger",
        "upstream_tls",
    ];

    #[test]
    fn each_key_of_a_rule_stays_or_goes() {
        let schema = schema();
        let rule = schema.pointer("/properties/rule/items/properties").unwrap();
        let mut keys: Vec<&str> = rule.as_object().unwrap().keys().map(|key| &**key).collect();
        let mut known = [&STAY[..], &STAY_WHERE_NOBODY_IS_REFUSED, &GO].concat();
        keys.sort_unstable();
        known.sort_unstable();
        assert_eq!(keys, known);
    }

    const FILE: &str = r#"
[[rule]]
name = "protects"
to = [":1"]
user = ["app"]
action = "enrich"
fail = "closed"
path = "inline"
pipeline = [{ transform = "audit", file = "/away/audit.log" }]

[[rule]]
name = "reads"
to = [":2"]
labels = { team = "shop" }
action = "enrich"
sample = 0.5
limit = { connections = 3 }
pipeline = [{ transform = "audit", file = "/away/audit.log" }]
fail = "open"

[[rule]]
name = "watches"
to = [":3"]
action = "observe"
trigger = { p99_ms = 5, for = "30s" }
pipeline = [{ transform = "slowlog", file = "/away/slow.log", over = "1s" }]

[[rule]]
name = "counts"
to = [":4"]
action = "enrich"
pipeline = [{ transform = "count" }]
"#;

    #[test]
    fn named_rules_are_treated_by_their_fail_and_others_stay() {
        let files = Fragments::new(
            7,
            vec![Fragment {
                name: "a.toml".into(),
                text: FILE.into(),
            }],
        );
        let files = files.unwrap();
        let own = Sources::of("/own.toml".as_ref(), "");
        let before = Config::of(&own.clone().with(&files)).unwrap();
        let rules = before.policy.rules.iter().take(3);
        let rules = rules.map(|rule| (rule.name.clone(), rule.fail)).collect();
        let treated = by_fail(&files, &rules).unwrap();
        assert_eq!(treated.revision, 7);
        let after = Config::of(&own.with(&treated)).unwrap().policy;
        let actions: Vec<_> = after.rules.iter().map(|rule| rule.action).collect();
        let meant = [
            Action::Deny,
            Action::Bypass,
            Action::Observe,
            Action::Enrich,
        ];
        assert_eq!(actions, meant);
        for (old, new) in before.policy.rules.iter().zip(&after.rules) {
            assert_eq!((&old.name, &old.to), (&new.name, &new.to));
            assert_eq!(old.limit, new.limit);
            assert_eq!(format!("{:?}", old.session), format!("{:?}", new.session));
        }
        assert_eq!(by_fail(&files, &HashMap::new()), Ok(files));
    }
}
