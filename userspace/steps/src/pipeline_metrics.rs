//! The metrics of the pipelines of rules.

use std::{collections::HashSet, sync::Arc};

use cql::StreamId;
use cql_edit::{Log, LookedUp, Unreadable, Unseen, Waited};
use parking_lot::Mutex;
use policy::RuleName;
use prometheus::{IntCounterVec, Registry};
use telemetry::{counters_by, series_of};

use crate::Refusal;

/// The metrics of pipelines.
#[derive(Clone, Debug)]
pub struct PipelineMetrics {
    steps: IntCounterVec,
    unseen: IntCounterVec,
    unreadable: IntCounterVec,
    waited: IntCounterVec,
    lookups: IntCounterVec,
    /// Rules that have had a label. A reload can add rules.
    rules: Arc<Mutex<HashSet<RuleName>>>,
}

/// The most rules of this agent's life that get a label of their own; rules beyond them share one.
const MAX_LABELS: usize = 1_000;

/// The label that such rules share.
const OTHERS: &str = "others";

impl PipelineMetrics {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counters = |name, help, labels: &[&str]| counters_by(registry, name, help, labels);
        Ok(Self {
            steps: counters(
                "underpass_transforms_total",
                "Requests that a transform has changed, answered, refused, slowed down, warned of, or would have \
                 refused (`shadow`), and responses that it has changed or withheld, by rule, transform, outcome and reason.",
                &["rule", "transform", "outcome", "reason"],
            )?,
            unseen: counters(
                "underpass_pipeline_unseen_total",
                "Requests, and responses that a step wanted, that could not be shown to their rule's pipeline, by rule, reason and outcome.",
                &["rule", "reason", "outcome"],
            )?,
            unreadable: counters(
                "underpass_pipeline_unreadable_total",
                "Flows that their rule's pipeline cannot read, by rule, reason and outcome.",
                &["rule", "reason", "outcome"],
            )?,
            waited: counters(
                "underpass_pipeline_waited_total",
                "Requests and responses that were suspended until an answer from outside, or should have been, by rule, transform and outcome.",
                &["rule", "transform", "outcome"],
            )?,
            lookups: counters(
                "underpass_lookups_total",
                "Statements that `lookup` wanted from the database, because the agent did not see them prepared, by rule and outcome.",
                &["rule", "outcome"],
            )?,
            rules: Arc::default(),
        })
    }

    /// Gives each metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        let mut counting = self.of(&RuleName::new("rule"));
        counting.changed("transform");
        counting.unseen(StreamId(0), Unseen::TooLarge, true);
        counting.unreadable(Unreadable::Tls, true);
        counting.waited("transform", Waited::Passed);
        counting.looked_up(LookedUp::Found);
    }

    /// Counts a flow's events under this rule.
    pub fn of(&self, rule: &RuleName) -> Counting {
        let rule = series_of(rule.clone());
        let mut rules = self.rules.lock();
        let label = match rules.get(&rule) {
            Some(label) => label.clone(),
            None if rules.len() < MAX_LABELS => {
                rules.insert(rule.clone());
                rule
            }
            None => RuleName::new(OTHERS),
        };
        Counting {
            metrics: self.clone(),
            rule: label,
            refusals: Vec::new(),
        }
    }
}

/// The counters of one flow's pipeline.
#[derive(Clone, Debug)]
pub struct Counting {
    metrics: PipelineMetrics,
    rule: RuleName,
    /// The refusals since [`Self::refusals`] was last called.
    refusals: Vec<(StreamId, Refusal)>,
}

impl Counting {
    /// Counts a flow that its pipeline cannot read.
    pub fn unreadable(&self, why: Unreadable, denied: bool) {
        let labels = [self.rule.as_str(), why.as_str(), fate(denied, "denied")];
        self.metrics.unreadable.with_label_values(&labels).inc();
    }

    /// Returns the requests, by their streams, that the client is told were refused, and why. To be
    /// called for each piece of requests.
    pub fn refusals(&mut self) -> Vec<(StreamId, Refusal)> {
        std::mem::take(&mut self.refusals)
    }

    fn step(&self, transform: &str, outcome: &str, reason: &str) {
        let labels = [self.rule.as_str(), transform, outcome, reason];
        self.metrics.steps.with_label_values(&labels).inc();
    }
}

fn fate(stopped: bool, how: &'static str) -> &'static str {
    match stopped {
        true => how,
        false => "passed",
    }
}

impl Log for Counting {
    fn changed(&mut self, transform: &'static str) {
        self.step(transform, "changed", "");
    }

    fn refused(&mut self, stream: StreamId, transform: &'static str, reason: &'static str) {
        self.step(transform, "refused", reason);
        let step = transform;
        self.refusals.push((stream, Refusal { step, reason }));
    }

    fn withheld(&mut self, transform: &'static str, reason: &'static str) {
        self.step(transform, "withheld", reason);
    }

    fn answered(&mut self, transform: &'static str) {
        self.step(transform, "answered", "");
    }

    fn would_refuse(&mut self, transform: &'static str, reason: &'static str) {
        self.step(transform, "would_refuse", reason);
    }

    fn warned(&mut self, transform: &'static str, reason: &'static str, is_told: bool) {
        let outcome = if is_told { "warned" } else { "not_warned" };
        self.step(transform, outcome, reason);
    }

    fn slowed(&mut self, transform: &'static str, _: u64) {
        self.step(transform, "slowed", "");
    }

    fn waited(&mut self, transform: &'static str, what: Waited) {
        let labels = [self.rule.as_str(), transform, what.as_str()];
        self.metrics.waited.with_label_values(&labels).inc();
    }

    fn looked_up(&mut self, what: LookedUp) {
        let labels = [self.rule.as_str(), what.as_str()];
        self.metrics.lookups.with_label_values(&labels).inc();
    }

    fn unshown(&mut self, why: Unseen) {
        let labels = [self.rule.as_str(), why.as_str(), "withheld"];
        self.metrics.unseen.with_label_values(&labels).inc();
    }

    fn unseen(&mut self, stream: StreamId, why: Unseen, refused: bool) {
        let labels = [self.rule.as_str(), why.as_str(), fate(refused, "refused")];
        self.metrics.unseen.with_label_values(&labels).inc();
        if refused {
            let (step, reason) = ("unseen", why.as_str());
            self.refusals.push((stream, Refusal { step, reason }));
        }
    }
}
