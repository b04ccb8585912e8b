//! Metrics of decisions that the agent makes: by session, by mark, by trigger.

use std::{collections::HashSet, sync::Arc};

use cql::Unknowable;
use dataplane::NotRemembered;
use parking_lot::Mutex;
use policy::{MAX_RULES, Match};
use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use crate::{
    labels,
    registered::{counters, counters_by},
};

/// The outcomes for a running flow that a mark matches.
pub const MARKED_RESULTS: [&str; 5] = ["changed", "asked", "already", "could_not", "reset"];

/// Rules whose sessions are counted by name, over all policies since the start, so that
/// generated names cannot pile up: as many as one policy has. Further ones count as `other`.
const MAX_SESSION_RULES: usize = MAX_RULES;

/// Flows that their session decided, and what could not be decided.
#[derive(Clone, Debug)]
pub struct SessionMetrics {
    /// Flows that were decided by their session, by rule and action.
    decided: IntCounterVec,
    /// The rules that `decided` knows.
    rules: Arc<Mutex<HashSet<String>>>,
    /// Session facts that could not become known, by reason.
    pub unknowable: IntCounterVec,
    /// Decisions that do not stand for later connections although their rule says so, by reason.
    pub not_remembered: IntCounterVec,
}

impl SessionMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            decided: counters_by(
                registry,
                "underpass_sessions_decided_total",
                "Flows whose rule was decided by their session, by that rule and its action.",
                &["rule", "action"],
            )?,
            rules: Arc::default(),
            unknowable: counters(
                registry,
                "underpass_sessions_undecidable_total",
                "Facts of a session that could not become known, so that rules which name them did not hold, by reason.",
                "reason",
                &Unknowable::ALL
                    .iter()
                    .map(|u| u.as_str())
                    .collect::<Vec<_>>(),
            )?,
            not_remembered: counters(
                registry,
                "underpass_not_remembered_total",
                "Decisions that are not remembered for later connections of the process although their rule says so, by reason.",
                "reason",
                &NotRemembered::LABELS,
            )?,
        })
    }

    /// Counts a flow that was decided by its session.
    pub fn count(&self, by: &Match) {
        let mut rules = self.rules.lock();
        let rule = labels::series_of(by.rule.clone());
        let rule = rule.as_str();
        let known = rules.contains(rule)
            || (rules.len() < MAX_SESSION_RULES && rules.insert(rule.to_owned()));
        drop(rules);
        let rule = if known { rule } else { "other" };
        self.decided
            .with_label_values(&[rule, by.action.as_str()])
            .inc();
    }

    /// Makes metrics whose labels are a policy's show up: for documentation.
    pub(super) fn declare_for_docs(&self) {
        self.decided.with_label_values(&["", ""]);
    }
}

/// Marks, triggers and windows: what changes flows while the agent runs.
#[derive(Clone, Debug)]
pub struct MarkMetrics {
    /// Active marks.
    pub active: IntGauge,
    /// 1 for rules whose trigger is on, 0 for others that have one.
    pub triggered: IntGaugeVec,
    /// 1 for rules whose window is open, 0 for others that have one.
    pub window_open: IntGaugeVec,
    /// Running flows that a mark matched, by outcome.
    pub flows: IntCounterVec,
}

impl MarkMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let active = IntGauge::new("underpass_marks", "Active marks.")?;
        registry.register(Box::new(active.clone()))?;
        let triggered = IntGaugeVec::new(
            Opts::new(
                "underpass_triggered",
                "1 while the rule's `trigger` has new connections enriched, else 0.",
            ),
            &["rule"],
        )?;
        registry.register(Box::new(triggered.clone()))?;
        let window_open = IntGaugeVec::new(
            Opts::new(
                "underpass_window_open",
                "1 while the rule's window (`when`) is open, else 0: the rule is as if it were not there.",
            ),
            &["rule"],
        )?;
        registry.register(Box::new(window_open.clone()))?;
        Ok(Self {
            active,
            triggered,
            window_open,
            flows: counters(
                registry,
                "underpass_marked_flows_total",
                "Running flows that a mark selected, by result: changed, asked (decided once their session is known), already (nothing to change), could_not, reset (could not be changed, and were closed).",
                "result",
                &MARKED_RESULTS,
            )?,
        })
    }

    /// Makes metrics whose labels are a policy's show up: for documentation.
    pub(super) fn declare_for_docs(&self) {
        self.triggered.with_label_values(&[""]);
        self.window_open.with_label_values(&[""]);
    }
}
