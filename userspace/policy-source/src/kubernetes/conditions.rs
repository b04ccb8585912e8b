//! The status of a policy: on how many nodes it is in force, and why not on others.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::status::cut;

/// The two conditions.
const IN_FORCE: &str = "InForce";
const REFUSED: &str = "Refused";

/// A policy's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Status {
    /// The generation that was counted.
    observed_generation: i64,
    /// Nodes on which there is an agent, or should be one.
    nodes: usize,
    nodes_in_force: usize,
    nodes_refused: usize,
    /// Both numbers, for people: `4998/5000`.
    in_force: String,
    conditions: Vec<Condition>,
}

/// A condition, as Kubernetes has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: String,
    message: String,
    observed_generation: i64,
    last_transition_time: String,
}

/// The answers of nodes on one generation of a policy.
#[derive(Debug, Default)]
pub(super) struct Tally<'t> {
    /// Nodes on which it is in force.
    pub(super) in_force: usize,
    /// Nodes that refuse it.
    pub(super) refused: usize,
    /// The first of them, by its name, with its reason.
    pub(super) first: Option<(&'t str, &'t str)>,
}

impl Tally<'_> {
    /// Makes the status, of which the last one is known: the time of a condition is that of its last change. `bound`: so many nodes are
    /// counted, and there are more.
    pub(super) fn status(
        &self,
        generation: i64,
        nodes: usize,
        bound: Option<usize>,
        last: &Status,
    ) -> Status {
        let Self {
            in_force, refused, ..
        } = *self;
        let silent = nodes.saturating_sub(in_force + refused);
        let or_uncounted = bound.map_or_else(String::new, |bound| {
            format!(", or are beyond the {bound} that are counted")
        });
        let (everywhere, reason) = match in_force {
            0 => ("False", "OnNoNode"),
            some if some < nodes => ("False", "OnSomeNodes"),
            _ => ("True", "OnEveryNode"),
        };
        let mut conditions = vec![Condition {
            kind: IN_FORCE.to_owned(),
            status: everywhere.to_owned(),
            reason: reason.to_owned(),
            message: format!(
                "in force on {in_force} of {nodes} nodes; {refused} refuse it, {silent} have not answered{or_uncounted}"
            ),
            ..Condition::default()
        }];
        let (is_refused, reason, message) = match self.first {
            None => ("False", "ByNoNode", String::new()),
            Some((node, why)) => {
                let others = match refused {
                    0 | 1 => String::new(),
                    _ => format!(" (and {} more)", refused - 1),
                };
                let message = format!("{node}{others}: {why}");
                ("True", "BySomeNodes", cut(&message))
            }
        };
        conditions.push(Condition {
            kind: REFUSED.to_owned(),
            status: is_refused.to_owned(),
            reason: reason.to_owned(),
            message,
            ..Condition::default()
        });
        for condition in &mut conditions {
            condition.observed_generation = generation;
            let before = last.conditions.iter();
            let before = before
                .filter(|old| old.kind == condition.kind && old.status == condition.status)
                .find(|old| !old.last_transition_time.is_empty());
            condition.last_transition_time =
                before.map_or_else(now, |old| old.last_transition_time.clone());
        }
        Status {
            observed_generation: generation,
            nodes,
            nodes_in_force: in_force,
            nodes_refused: refused,
            in_force: format!("{in_force}/{nodes}"),
            conditions,
        }
    }
}

/// The time, in whole seconds, as RFC 3339 has it.
fn now() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second())
        .unwrap_or(now)
        .to_string()
}
