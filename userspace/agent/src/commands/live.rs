//! `check --live`: how often each rule of a file has been met in a running agent.

use std::collections::BTreeMap;

use policy::{Doubt, Policy, Timestamp};
use serde::Serialize;
use serde_json::Value;

use super::{
    flows::{get, list, shown},
    table,
    whereabouts::Admin,
};

/// A rule's counts since the agent began, and what is to be thought of them.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Row {
    rule: String,
    /// None: the file has no such rule.
    action: Option<&'static str>,
    #[serde(flatten)]
    counts: Counts,
    note: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Counts {
    /// Connections that this host opened, by the rule that decided at connect().
    connections: u64,
    /// Connections of other hosts, by the rule that decided at the edge.
    at_the_edge: u64,
    /// Flows that their session decided.
    by_session: u64,
    /// Running connections that are read.
    adopted: u64,
    /// Flows that are there now.
    flows: u64,
}

impl Counts {
    fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    fn of_metric(&mut self, name: &str) -> Option<&mut u64> {
        match name {
            "underpass_connections_total" => Some(&mut self.connections),
            "underpass_edge_connections_total" => Some(&mut self.at_the_edge),
            "underpass_sessions_decided_total" => Some(&mut self.by_session),
            "underpass_observed_adopted_total" => Some(&mut self.adopted),
            _ => None,
        }
    }
}

/// Asks the agent at `admin`. `now` is for rules with a window. Rules in the file's order, then those that only the agent has.
///
/// # Errors
/// Nobody answers there.
pub(super) fn rows(policy: &Policy, admin: &Admin, now: Timestamp) -> anyhow::Result<Vec<Row>> {
    let mut counts = counted(&get(admin, "/metrics")?);
    for flow in list(admin, &get(admin, "/flows")?)? {
        counts.entry(shown(&flow, "rule")).or_default().flows += 1;
    }
    Ok(joined(policy, counts, now))
}

/// The sums of the metrics' samples, by rule.
fn counted(metrics: &str) -> BTreeMap<String, Counts> {
    let mut counts = BTreeMap::<String, Counts>::new();
    let samples = metrics.lines().filter(|line| !line.starts_with('#'));
    for (name, rest) in samples.filter_map(|line| line.split_once('{')) {
        let Some((labels, value)) = rest.rsplit_once("} ") else {
            continue;
        };
        let Some((_, rule)) = labels.split_once("rule=\"") else {
            continue;
        };
        let (rule, _) = rule.split_once('"').unwrap_or((rule, ""));
        let mut none = Counts::default();
        // A rule of which nothing else is counted has no line.
        if let (Ok(value), Some(_)) = (value.parse::<f64>(), none.of_metric(name)) {
            let of_rule = counts.entry(rule.to_owned()).or_default();
            if let Some(count) = of_rule.of_metric(name) {
                *count += value as u64;
            }
        }
    }
    counts
}

fn joined(policy: &Policy, mut counts: BTreeMap<String, Counts>, now: Timestamp) -> Vec<Row> {
    let doubts = policy.doubts();
    let rules = policy.rules.iter().map(|rule| {
        let name = rule.name.as_str();
        let counts = counts.remove(name).unwrap_or_default();
        let doubt = doubts.iter().find_map(|doubt| match doubt {
            Doubt::Hidden { rule, by } if rule.as_str() == name => {
                Some(format!("hidden by {by}: it decides nothing"))
            }
            Doubt::Never { rule, keys: [a, b] } if rule.as_str() == name => {
                Some(format!("`{a}` and `{b}` never hold together"))
            }
            _ => None,
        });
        let window = rule.when.as_ref().map(|when| (when, when.state(now)));
        let closed = window.filter(|(_, state)| !state.is_open);
        let closed = closed.map(|(when, state)| format!("{state} ({when})"));
        let shadow = || {
            rule.is_shadow()
                .then(|| "in shadow: it counts, and does nothing".to_owned())
        };
        let never = || {
            counts
                .is_zero()
                .then(|| "never met since the agent began".to_owned())
        };
        Row {
            rule: name.to_owned(),
            action: Some(rule.shadow.unwrap_or(rule.action).as_str()),
            note: doubt.or(closed).or_else(shadow).or_else(never),
            counts,
        }
    });
    let mut rows: Vec<Row> = rules.collect();
    let default = counts.remove("default").unwrap_or_default();
    rows.push(Row {
        rule: "default".to_owned(),
        action: Some(policy.default_action.as_str()),
        counts: default,
        note: None,
    });
    rows.extend(counts.into_iter().map(|(rule, counts)| Row {
        rule,
        counts,
        note: Some("not in this file".to_owned()),
        ..Row::default()
    }));
    rows
}

/// The rows under their headings.
pub(super) fn text(rows: &[Row]) -> String {
    let headings = [
        "RULE",
        "ACTION",
        "CONNECTIONS",
        "AT THE EDGE",
        "BY SESSION",
        "ADOPTED",
        "FLOWS NOW",
        "NOTE",
    ];
    let cells = rows.iter().map(|row| {
        let counts = &row.counts;
        vec![
            row.rule.replace(char::is_control, "?"),
            row.action.unwrap_or("-").to_owned(),
            counts.connections.to_string(),
            counts.at_the_edge.to_string(),
            counts.by_session.to_string(),
            counts.adopted.to_string(),
            counts.flows.to_string(),
            row.note.clone().unwrap_or_default(),
        ]
    });
    table::render(&headings, &cells.collect::<Vec<_>>())
}

/// The rows as JSON; null where they were not asked for.
pub(super) fn json(rows: Option<&[Row]>) -> Value {
    serde_json::to_value(rows).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_rule() {
        let counts = counted(
            "# HELP underpass_connections_total x\n\
             underpass_connections_total{outcome=\"enriched\",rule=\"a\"} 3\n\
             underpass_connections_total{outcome=\"denied\",rule=\"a\"} 2\n\
             underpass_sessions_decided_total{action=\"bypass\",rule=\"b\"} 7\n\
             underpass_frames_total{from=\"client\",opcode=\"query\",rule=\"c\"} 1\n\
             underpass_flows 9\n",
        );
        assert_eq!(counts.len(), 2, "{counts:?}");
        assert_eq!((counts["a"].connections, counts["b"].by_session), (5, 7));
    }
}
