//! What is done to requests, and who is told of them, by rule.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use cql::StreamId;
use cql_edit::{Log, LookedUp, Pipeline, Unreadable, Unseen, Waited};
use dataplane::policy::RuleName;
use prometheus::{IntCounterVec, Registry};

use crate::{
    effects::Effect,
    marks,
    metrics::counters_by,
    protect,
    reporters::{Means, Refusal, Reporters},
};

/// The pipelines of a file's rules.
#[derive(Clone, Debug, Default)]
pub struct Pipelines(HashMap<RuleName, Steps>);

/// What a rule's pipeline consists of.
#[derive(Clone, Debug)]
pub struct Steps {
    /// Those that may change what passes, in their order. None: none.
    pub edit: Option<Pipeline>,
    /// Those that only look on. None: none.
    pub report: Option<Reporters>,
    /// What is to be opened for the former.
    pub effects: Vec<Arc<dyn Effect>>,
    /// Where their keys come from.
    pub keys: Vec<Arc<protect::Source>>,
    /// What operators are shown of them.
    pub about: Arc<About>,
}

/// What there is to know of a flow that comes to a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Why it is the flow that does, where not all of the rule's do.
    pub because: Option<&'static str>,
    /// The steps' names, in the file's order.
    pub names: String,
}

impl Pipelines {
    /// Of these rules.
    pub fn new(of: impl IntoIterator<Item = (RuleName, Steps)>) -> Self {
        Self(of.into_iter().collect())
    }

    /// What is done to the requests of this rule's flows; None: nothing.
    pub fn edits_of(&self, rule: &RuleName) -> Option<Pipeline> {
        self.0.get(rule)?.edit.clone()
    }

    /// Who is told of them; None: nobody.
    pub fn reporters_of(&self, rule: &RuleName) -> Option<Reporters> {
        self.0.get(rule)?.report.clone()
    }

    /// What operators are shown of it; None: there is none.
    pub fn about(&self, rule: &RuleName) -> Option<Arc<About>> {
        Some(self.0.get(rule)?.about.clone())
    }

    /// Reads the certificates that steps name, and opens nothing.
    ///
    /// # Errors
    /// Which file is bad, why, and for which rule.
    pub fn read(&self) -> anyhow::Result<()> {
        for (rule, steps) in &self.0 {
            for effect in &steps.effects {
                let read = effect.reads();
                read.map_err(|e| anyhow::anyhow!("rule {rule}: {}: {e}", effect.name()))?;
            }
            for reporter in steps.report.iter().flat_map(|report| report.iter()) {
                let read = reporter.reads();
                read.map_err(|e| anyhow::anyhow!("rule {rule}: {}: {e}", reporter.name()))?;
            }
        }
        Ok(())
    }

    /// Reads keys and opens what their reporters write to, before they are in force.
    ///
    /// # Errors
    /// What cannot be read or opened, and for which rule.
    pub fn open(&self, means: &Means) -> anyhow::Result<()> {
        for (rule, steps) in &self.0 {
            for source in &steps.keys {
                let opened = source.open(&means.rings);
                opened.map_err(|e| anyhow::anyhow!("rule {rule}: {}: {e}", protect::NAME))?;
            }
        }
        self.open_journals(means)
    }

    /// Opens what their effects ask and their reporters write to, before they are in force.
    ///
    /// # Errors
    /// What cannot be opened, and for which rule.
    pub fn open_journals(&self, means: &Means) -> anyhow::Result<()> {
        for (rule, steps) in &self.0 {
            for effect in &steps.effects {
                let opened = effect.open(rule, means);
                opened.map_err(|e| anyhow::anyhow!("rule {rule}: {}: {e}", effect.name()))?;
            }
            for reporter in steps.report.iter().flat_map(|report| report.iter()) {
                let opened = reporter.open(means);
                opened.map_err(|e| anyhow::anyhow!("rule {rule}: {}: {e}", reporter.name()))?;
            }
        }
        Ok(())
    }

    /// Some rule's wants to know how flows have begun.
    pub fn want_openings(&self) -> bool {
        let mut steps = self.0.values().filter_map(|steps| steps.edit.as_ref());
        steps.any(|steps| steps.iter().any(|step| step.wants_opening()))
    }

    /// Some rule's changes requests.
    pub fn edit(&self) -> bool {
        self.0.values().any(|steps| steps.edit.is_some())
    }
}

/// What pipelines did.
#[derive(Clone, Debug)]
pub struct PipelineMetrics {
    steps: IntCounterVec,
    unseen: IntCounterVec,
    unreadable: IntCounterVec,
    waited: IntCounterVec,
    lookups: IntCounterVec,
    /// Rules that have had a label: one more for each that a reload brings.
    rules: Arc<Mutex<HashSet<RuleName>>>,
}

/// Rules beyond this many that had a pipeline in this agent's life share a label.
const MAX_LABELS: usize = 1_000;

/// Theirs.
const OTHERS: &str = "others";

impl PipelineMetrics {
    /// Declares and registers them.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counters = |name, help, labels: &[&str]| counters_by(registry, name, help, labels);
        Ok(Self {
            steps: counters(
                "underpass_transforms_total",
                "Requests that a transform has changed, answered, refused, slowed down, or would have refused \
                 (`shadow`), and responses that it has withheld, by rule, transform, outcome and reason.",
                &["rule", "transform", "outcome", "reason"],
            )?,
            unseen: counters(
                "underpass_pipeline_unseen_total",
                "Requests, and responses that it asked for, that could not be shown to their rule's pipeline, by \
                 rule, reason and what became of them.",
                &["rule", "reason", "outcome"],
            )?,
            unreadable: counters(
                "underpass_pipeline_unreadable_total",
                "Flows that their rule's pipeline cannot read, by rule, reason and what became of \
                 them.",
                &["rule", "reason", "outcome"],
            )?,
            waited: counters(
                "underpass_pipeline_waited_total",
                "Requests and responses that a step had wait for an answer from outside, or wanted to, by rule, \
                 transform and what became of them.",
                &["rule", "transform", "outcome"],
            )?,
            lookups: counters(
                "underpass_lookups_total",
                "Statements, prepared where nobody looked, that the database was to be asked for by `lookup`, by rule and \
                 what became of that.",
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

    /// Counts under this rule.
    pub fn of(&self, rule: &RuleName) -> Counting {
        let rule = marks::series_of(rule.clone());
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
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

/// What the pipeline of one flow does is counted.
#[derive(Clone, Debug)]
pub struct Counting {
    metrics: PipelineMetrics,
    rule: RuleName,
    /// Since somebody last asked for them.
    refusals: Vec<(StreamId, Refusal)>,
}

impl Counting {
    /// Its pipeline cannot read it.
    pub fn unreadable(&self, why: Unreadable, denied: bool) {
        let labels = [self.rule.as_str(), why.as_str(), fate(denied, "denied")];
        self.metrics.unreadable.with_label_values(&labels).inc();
    }

    /// Which requests, by their streams, the client is told were refused, and why. To be called for
    /// each piece of requests.
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
