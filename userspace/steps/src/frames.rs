//! The metrics of `count` and `debug`.

use std::{collections::HashSet, sync::Arc};

use cql::Opcode;
use parking_lot::Mutex;
use policy::RuleName;
use prometheus::{IntCounter, IntCounterVec, Registry};
use telemetry::{counters_by, series_of};

/// The most rules of this agent's life that get a label of their own; rules beyond them share one.
const MAX_LABELS: usize = 1_000;

/// The label that such rules share.
const OTHERS: &str = "others";

/// The metrics of frames.
#[derive(Clone, Debug)]
pub struct FrameMetrics {
    passed: IntCounterVec,
    skipped: IntCounterVec,
    /// The rules that have a label.
    rules: Arc<Mutex<HashSet<RuleName>>>,
}

impl FrameMetrics {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counters = |name, help, labels: &[&str]| counters_by(registry, name, help, labels);
        Ok(Self {
            passed: counters(
                "underpass_frames_total",
                "Frames of rules with `count`, by rule, who has sent them (`client`, `database`) and \
                 opcode.",
                &["rule", "from", "opcode"],
            )?,
            skipped: counters(
                "underpass_debug_skipped_total",
                "Frames of sampled flows of which `debug` has no line because there were `per_second` of \
                 them, by rule.",
                &["rule"],
            )?,
            rules: Arc::default(),
        })
    }

    /// Gives each metric a first sample, so that the documentation sees it.
    pub(super) fn declare_for_docs(&self) {
        self.passed("rule", true, None);
        self.skipped("rule");
    }

    /// Returns the name under which a rule is counted.
    pub(super) fn label(&self, rule: &RuleName) -> RuleName {
        let rule = series_of(rule.clone());
        let mut rules = self.rules.lock();
        if rules.contains(&rule) {
            return rule;
        }
        match rules.len() < MAX_LABELS {
            true => {
                rules.insert(rule.clone());
                rule
            }
            false => RuleName::new(OTHERS),
        }
    }

    /// Returns the counter of frames of this kind.
    pub(super) fn passed(
        &self,
        rule: &str,
        is_request: bool,
        opcode: Option<Opcode>,
    ) -> IntCounter {
        let opcode = opcode.map_or("unknown", Opcode::as_str);
        let labels = [rule, from(is_request), opcode];
        self.passed.with_label_values(&labels)
    }

    /// Returns the counter of frames without a line.
    pub(super) fn skipped(&self, rule: &str) -> IntCounter {
        self.skipped.with_label_values(&[rule])
    }
}

/// Names the side that has sent a frame.
pub(super) fn from(is_request: bool) -> &'static str {
    match is_request {
        true => "client",
        false => "database",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded() {
        let metrics = FrameMetrics::register(&Registry::new()).unwrap();
        let label = |n: usize| metrics.label(&RuleName::new(&format!("r{n}")));
        for n in 0..MAX_LABELS {
            assert_eq!(label(n).as_str(), format!("r{n}"));
        }
        assert_eq!(label(MAX_LABELS).as_str(), OTHERS);
        assert_eq!(label(0).as_str(), "r0");
    }
}
