//! `[host]`, and the conditions of a rule on the host: `hosts` and `rollout`.
//!
//! A rule that is not for this host is taken out before anything else is made of the rules; its other keys are checked by
//! whoever pushes the policy, and by the hosts that it is for.

use std::collections::BTreeMap;

use nix::sys::utsname::uname;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use toml::{Spanned, Value};

use super::{
    bounds::{MAX_HOST_LABELS, MAX_HOST_NAME_BYTES, MAX_LABEL_BYTES},
    error::Flaw,
    raw::{RawConfig, RawRule},
    value::expected,
};

/// The label that every host has: its name.
const NAME: &str = "name";

/// The host that reads the file, as rules of a fleet know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The name: that of the system, unless the file says another.
    pub name: String,
    /// The labels, without the name.
    pub labels: BTreeMap<String, String>,
}

/// The host that reads the file, as the rules of a fleet know it (`hosts`, `rollout`). The name is read when the agent starts, labels are read again with
/// the rules.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"name": "db1.example", "labels": {"role": "db", "rack": "r1"}}]))]
pub(super) struct RawHost {
    /// Name of this host: the label `name`, the host's place in a `rollout`, and under which `underpass policy status` lists it.
    /// The system's host name unless the file says another.
    #[schemars(
        with = "Option<String>",
        regex(pattern = "^[A-Za-z0-9._-]{1,253}$"),
        extend("examples" = ["db1.example"])
    )]
    pub name: Option<Spanned<String>>,
    /// Labels of this host, such as `os`, `role`, `rack`. Not `name`.
    #[serde(default)]
    #[schemars(
        with = "BTreeMap<String, String>",
        extend("maxProperties" = MAX_HOST_LABELS, "examples" = [{"role": "db", "rack": "r1"}])
    )]
    pub labels: BTreeMap<String, Spanned<String>>,
}

/// One value, or more of which one has to be the host's.
#[derive(schemars::JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "only the schema is made of it")]
pub(super) enum RawWanted {
    /// The value.
    One(String),
    /// The values.
    Any(Vec<String>),
}

/// Reads `[host]`.
pub(super) fn of(raw: RawHost) -> Result<Host, Flaw> {
    let name = match raw.name {
        Some(name) if is_name(name.get_ref()) => name.into_inner(),
        Some(name) => {
            let what = format!(
                "1 to {MAX_HOST_NAME_BYTES} letters, digits, `-`, `_`, `.` (it becomes a key)"
            );
            return expected("host.name", &name, &what);
        }
        None => of_system(),
    };
    if raw.labels.len() > MAX_HOST_LABELS {
        let first = raw.labels.values().next().map(Spanned::span);
        let found = raw.labels.len();
        let message = format!("host.labels: expected at most {MAX_HOST_LABELS}; found {found}");
        return Err(Flaw::new(first.unwrap_or_default(), message));
    }
    let mut labels = BTreeMap::new();
    for (key, value) in raw.labels {
        if key == NAME || key.is_empty() || key.len() > MAX_LABEL_BYTES {
            let what = format!(
                "keys of 1 to {MAX_LABEL_BYTES} bytes other than `{NAME}`, which is `host.name`"
            );
            let found = Spanned::new(value.span(), key);
            return expected("host.labels", &found, &what);
        }
        if value.get_ref().len() > MAX_LABEL_BYTES {
            let what = format!("at most {MAX_LABEL_BYTES} bytes");
            return expected(&format!("host.labels.{key}"), &value, &what);
        }
        labels.insert(key, value.into_inner());
    }
    Ok(Host { name, labels })
}

fn is_name(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=MAX_HOST_NAME_BYTES).contains(&name.len()) && name.chars().all(legal)
}

/// The system's name for the host, with `-` for whatever a name cannot have.
fn of_system() -> String {
    let name = uname().map(|system| system.nodename().to_string_lossy().into_owned());
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name = name.unwrap_or_default();
    let name = name.chars().map(|c| if legal(c) { c } else { '-' });
    // Each is a byte by now.
    let name: String = name.take(MAX_HOST_NAME_BYTES).collect();
    match name.is_empty() {
        true => "localhost".to_owned(),
        false => name,
    }
}

impl Host {
    /// The place of the host among all that there could be, from 0 on and below 1: the first eight bytes of the SHA-256 of its
    /// name, as a number. A growing share takes in more and more hosts, and lets none go.
    fn place(&self) -> f64 {
        let hash = Sha256::digest(self.name.as_bytes());
        let first = hash.iter().take(8);
        let number = first.fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        // The 53 bits that a float has.
        (number >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn value(&self, key: &str) -> Option<&str> {
        match key {
            NAME => Some(&self.name),
            key => self.labels.get(key).map(String::as_str),
        }
    }
}

impl RawConfig {
    /// Takes out the rules that are for other hosts.
    pub(super) fn keep_those_for(&mut self, host: &Host) -> Result<(), Flaw> {
        let rules = std::mem::take(&mut self.rule);
        for rule in rules {
            if rule.get_ref().is_for(host)? {
                self.rule.push(rule);
            }
        }
        Ok(())
    }

    /// Has each rule be for every host, once its conditions on the host are found to be right.
    pub(super) fn keep_all(&mut self, host: &Host) -> Result<(), Flaw> {
        for rule in &mut self.rule {
            let rule = rule.get_mut();
            rule.is_for(host)?;
            rule.hosts.clear();
            rule.rollout = None;
        }
        Ok(())
    }
}

impl RawRule {
    fn is_for(&self, host: &Host) -> Result<bool, Flaw> {
        let mut is = true;
        for (key, wanted) in &self.hosts {
            let values = wanted_values(key, wanted)?;
            is &= host.value(key).is_some_and(|value| values.contains(&value));
        }
        let Some(rollout) = &self.rollout else {
            return Ok(is);
        };
        Ok(is && host.place() < share(rollout)?)
    }
}

fn wanted_values<'v>(key: &str, wanted: &'v Spanned<Value>) -> Result<Vec<&'v str>, Flaw> {
    let values = match wanted.get_ref() {
        Value::String(one) => Some(vec![one.as_str()]),
        Value::Array(values) => values.iter().map(Value::as_str).collect(),
        _ => None,
    };
    let key = format!("rule.hosts.{key}");
    match values.filter(|values| !values.is_empty()) {
        Some(values) => Ok(values),
        None => expected(
            &key,
            wanted,
            "a label's value, or a list of values, such as [\"r1\", \"r2\"]",
        ),
    }
}

/// A share of hosts, from 0 to 1.
fn share(text: &Spanned<String>) -> Result<f64, Flaw> {
    let percent = text.get_ref().strip_suffix('%').map(str::parse::<f64>);
    match percent {
        Some(Ok(percent)) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => expected(
            "rule.rollout",
            text,
            "a share of hosts from \"0%\" to \"100%\"",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::parse;

    fn host(name: &str) -> Host {
        let labels = [("role", "db"), ("rack", "r1")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Host {
            name: name.to_owned(),
            labels: labels.into(),
        }
    }

    fn rules(conditions: &str) -> Result<usize, String> {
        let text = format!(
            "[host]\nname = \"db1\"\nlabels = {{ role = \"db\", rack = \"r1\" }}\n\
             [[rule]]\nname = \"r\"\nto = [\":1\"]\naction = \"bypass\"\n{conditions}\n"
        );
        let config = parse(&text).map_err(|error| error.to_string())?;
        Ok(config.policy.rules.len())
    }

    #[test]
    fn a_rule_is_for_the_hosts_that_have_each_label() {
        for (conditions, n) in [
            ("", 1),
            ("hosts = { role = \"db\" }", 1),
            ("hosts = { role = \"db\", rack = [\"r2\", \"r1\"] }", 1),
            ("hosts = { role = \"db\", rack = [\"r2\", \"r3\"] }", 0),
            ("hosts = { role = \"web\" }", 0),
            ("hosts = { os = \"linux\" }", 0),
            ("hosts = { name = [\"db1\"] }", 1),
            ("hosts = { name = \"db2\" }", 0),
            ("rollout = \"0%\"", 0),
            ("rollout = \"100%\"", 1),
        ] {
            assert_eq!(rules(conditions), Ok(n), "{conditions}");
        }
        for (conditions, said) in [
            (
                "hosts = { role = 1 }",
                "rule.hosts.role: expected a label's value",
            ),
            (
                "hosts = { role = [] }",
                "rule.hosts.role: expected a label's value",
            ),
            (
                "rollout = \"101%\"",
                "rule.rollout: expected a share of hosts",
            ),
            (
                "rollout = \"-1%\"",
                "rule.rollout: expected a share of hosts",
            ),
            (
                "rollout = \"NaN%\"",
                "rule.rollout: expected a share of hosts",
            ),
            (
                "rollout = \"10\"",
                "rule.rollout: expected a share of hosts",
            ),
        ] {
            let refused = rules(conditions).unwrap_err();
            assert!(refused.contains(said), "{refused}");
        }
    }

    #[test]
    fn a_growing_share_only_adds_hosts_and_has_as_many_as_it_says() {
        // `printf db1 | sha256sum` begins with these digits: others can find the place of a host, too.
        let digits = u64::from_str_radix("82e64648d9abefef", 16).unwrap();
        let place = digits as f64 / 2.0_f64.powi(64);
        assert!((host("db1").place() - place).abs() < 1e-9);
        let names = (0..10_000).map(|n| host(&format!("db{n}.example")));
        let mut places: Vec<f64> = names.map(|host| host.place()).collect();
        places.sort_by(f64::total_cmp);
        for percent in [1, 10, 50, 99] {
            let share = f64::from(percent) / 100.0;
            let within = places.iter().filter(|place| **place < share).count() as f64;
            assert!(
                (within / 10_000.0 - share).abs() < 0.02,
                "{percent} %: {within}"
            );
        }
        assert!(places.iter().all(|place| (0.0..1.0).contains(place)));
    }

    #[test]
    fn a_host_has_a_name_and_bounded_labels() {
        for (table, said) in [
            ("name = \"a/b\"", "host.name: expected 1 to 253 letters"),
            ("labels = { name = \"a\" }", "other than `name`"),
        ] {
            let refused = parse(&format!("[host]\n{table}\n"))
                .unwrap_err()
                .to_string();
            assert!(refused.contains(said), "{refused}");
        }
        let many = (0..=MAX_HOST_LABELS).map(|n| format!("l{n} = \"\""));
        let many = many.collect::<Vec<_>>().join(", ");
        let refused = parse(&format!("[host]\nlabels = {{ {many} }}\n"))
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("host.labels: expected at most 64"),
            "{refused}"
        );
        let named = parse("").unwrap().host.name;
        assert!(is_name(&named), "{named:?}");
    }
}
