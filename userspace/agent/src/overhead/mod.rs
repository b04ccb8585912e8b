//! The cost of underpass here: connections that are treated as their rule says, compared with such as the rule left alone.

pub mod estimate;
mod metrics;

use std::sync::PoisonError;

use dataplane::Groups;
use estimate::{Group, Interval, Missing};
pub use metrics::OverheadMetrics;
use policy::{Policy, RuleName, Sample};
use proxy::ProxyContext;
use serde::Serialize;

use crate::observed::SharedDataplane;

/// Quantiles that are compared.
const QUANTILES: [f64; 2] = [0.5, 0.99];

/// A rule's comparison, as `/overhead` gives it.
#[derive(Debug, Serialize)]
pub struct OverheadView {
    rule: String,
    /// The share of new connections that is held out. None: the policy in force holds none out any more.
    holdout: Option<f64>,
    held_out: GroupView,
    treated: GroupView,
    /// By how much what is treated is slower, in microseconds.
    p50: DifferenceView,
    p99: DifferenceView,
    /// By how much more of its requests fail, as a share.
    errors: DifferenceView,
}

#[derive(Debug, Serialize)]
struct GroupView {
    connections: usize,
    requests: u64,
    errors: u64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

impl GroupView {
    fn of(group: &Group) -> Self {
        let [p50_us, p99_us] = QUANTILES.map(|share| Some(micro(group.quantile(share)?)));
        Self {
            connections: group.connections(),
            requests: group.requests(),
            errors: group.errors(),
            p50_us,
            p99_us,
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum DifferenceView {
    Known { value: f64, low: f64, high: f64 },
    NotYet { not_yet: String },
}

/// The ledger of a rule.
struct OfRule {
    rule: RuleName,
    holdout: Option<Sample>,
    groups: Groups,
}

/// Reads the ledgers of all rules with a holdout, and of those that had one.
fn ledgers(dataplane: &SharedDataplane, policy: &Policy) -> Vec<OfRule> {
    let mut dataplane = dataplane.lock().unwrap_or_else(PoisonError::into_inner);
    let compared = dataplane.as_mut().map(dataplane::Dataplane::compared);
    let mut compared = match compared {
        Some(Ok(compared)) => compared,
        Some(Err(error)) => {
            tracing::error!("cannot read the connections that are to be compared: {error}");
            return Vec::new();
        }
        None => return Vec::new(),
    };
    let drawing = policy.rules.iter().filter(|rule| rule.holdout.is_some());
    let mut all: Vec<_> = drawing
        .map(|rule| OfRule {
            rule: rule.name.clone(),
            holdout: rule.holdout,
            groups: compared.remove(&rule.name).unwrap_or_default(),
        })
        .collect();
    all.extend(compared.into_iter().map(|(rule, groups)| OfRule {
        rule,
        holdout: None,
        groups,
    }));
    all
}

/// Compares, rule by rule.
pub fn views(dataplane: &SharedDataplane, shared: &ProxyContext) -> Vec<OverheadView> {
    let policy = shared.policy.borrow().clone();
    ledgers(dataplane, &policy).iter().map(view).collect()
}

fn view(of: &OfRule) -> OverheadView {
    let [held_out, treated] =
        [&of.groups.held_out, &of.groups.treated].map(|group| Group::new(group));
    let holdout = of.holdout.map(Sample::fraction);
    let told = |found: Result<Interval, Vec<(&str, Missing)>>, unit: fn(f64) -> f64| match found {
        Ok(Interval { value, low, high }) => DifferenceView::Known {
            value: unit(value),
            low: unit(low),
            high: unit(high),
        },
        Err(missing) => DifferenceView::NotYet {
            not_yet: not_yet(&missing, holdout),
        },
    };
    let [p50, p99] =
        QUANTILES.map(|share| told(estimate::difference(&treated, &held_out, share), micro));
    OverheadView {
        rule: of.rule.to_string(),
        holdout,
        held_out: GroupView::of(&held_out),
        treated: GroupView::of(&treated),
        p50,
        p99,
        errors: told(estimate::errors(&treated, &held_out), |share| share),
    }
}

/// Says what is missing, of the group that is furthest from being enough.
fn not_yet(missing: &[(&str, Missing)], holdout: Option<f64>) -> String {
    let texts = missing.iter().map(|(group, missing)| {
        let group = group.replace('_', " ");
        match (missing, holdout) {
            (Missing::Requests(n), _) => {
                format!("about {n} more requests on connections that are {group}")
            }
            (Missing::Connections(n), Some(share)) if group == "held out" => {
                let all = (*n as f64 / share).ceil();
                format!("{n} more connections that are {group}, of about {all} new ones")
            }
            (Missing::Connections(n), _) => format!("{n} more connections that are {group}"),
        }
    });
    format!("needs {}", texts.collect::<Vec<_>>().join(", and "))
}

/// Microseconds, to the nanosecond.
fn micro(seconds: f64) -> f64 {
    (seconds * 1e9).round() / 1e3
}
