//! The pipelines of all rules: transforms for their requests, and reporters.

use std::{collections::HashMap, sync::Arc};

use cql_edit::Pipeline;
use flow::About;
use policy::RuleName;
use prometheus::Registry;

use crate::{
    Reporters, Services,
    effect::Effect,
    journal::Place,
    protect::{self, ProtectMetrics, Rings},
};

pub use crate::pipeline_metrics::{Counting, PipelineMetrics};

/// The pipelines of a policy file's rules, by rule.
#[derive(Clone, Debug, Default)]
pub struct Pipelines(HashMap<RuleName, Steps>);

/// The steps of a rule's pipeline.
#[derive(Clone, Debug)]
pub struct Steps {
    /// The steps that may change what passes, in their order. None: there are none.
    pub edit: Option<Pipeline>,
    /// The steps that only look on. None: there are none.
    pub report: Option<Reporters>,
    /// The effects that have to be opened for the steps in `edit`.
    pub effects: Vec<Arc<dyn Effect>>,
    /// The sources of keys for the steps in `edit`.
    pub keys: Vec<Arc<protect::Source>>,
    /// The description of the steps for operators.
    pub about: Arc<About>,
}

impl Pipelines {
    /// The pipelines of these rules.
    pub fn new(of: impl IntoIterator<Item = (RuleName, Steps)>) -> Self {
        Self(of.into_iter().collect())
    }

    /// Returns the transforms for the requests of this rule's flows. None: there are none.
    pub fn edits_of(&self, rule: &RuleName) -> Option<Pipeline> {
        self.0.get(rule)?.edit.clone()
    }

    /// Returns the reporters of this rule's flows. None: there are none.
    pub fn reporters_of(&self, rule: &RuleName) -> Option<Reporters> {
        self.0.get(rule)?.report.clone()
    }

    /// Returns the description of the rule's pipeline. None: there is no pipeline.
    pub fn about(&self, rule: &RuleName) -> Option<Arc<About>> {
        Some(self.0.get(rule)?.about.clone())
    }

    /// Reads the certificates that steps name, and opens nothing.
    ///
    /// # Errors
    /// Names the bad file, the error, and the rule.
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

    /// Reads the keys that are in files, and asks no key server. Returns, in words, what keeps keys from being there.
    pub fn read_keys(&self) -> KeysRead {
        let mut read = KeysRead::default();
        let Ok(metrics) = ProtectMetrics::register(&Registry::new()) else {
            return read;
        };
        let rings = Rings::new(metrics);
        for (rule, steps) in &self.0 {
            let said = |why: String| format!("rule {rule}: {}: {why}", protect::NAME);
            for source in &steps.keys {
                match source.read(&rings) {
                    Ok(doubt) => read.doubts.extend(doubt.map(said)),
                    Err(why) => read.errors.push(said(why)),
                }
            }
        }
        read.doubts.sort();
        read.errors.sort();
        read
    }

    /// Reads keys, and opens what effects and reporters need, before the pipelines are in force.
    ///
    /// # Errors
    /// Names what cannot be read or opened, and the rule.
    pub fn open(&self, services: &Services) -> anyhow::Result<()> {
        for (rule, steps) in &self.0 {
            for source in &steps.keys {
                let opened = source.open(&services.rings);
                opened.map_err(|e| anyhow::anyhow!("rule {rule}: {}: {e}", protect::NAME))?;
            }
        }
        self.open_journals(services)
    }

    /// Opens what effects ask and reporters write to, before the pipelines are in force.
    ///
    /// # Errors
    /// Names what cannot be opened, and the rule.
    pub fn open_journals(&self, services: &Services) -> anyhow::Result<()> {
        for (rule, steps) in &self.0 {
            for effect in &steps.effects {
                let opened = effect.open(rule, services);
                opened.map_err(|e| anyhow::anyhow!("rule {rule}: {}: {e}", effect.name()))?;
            }
            for reporter in steps.report.iter().flat_map(|report| report.iter()) {
                let opened = reporter.open(services);
                opened.map_err(|e| anyhow::anyhow!("rule {rule}: {}: {e}", reporter.name()))?;
            }
        }
        Ok(())
    }

    /// Whether some pipeline takes keys from elsewhere, which may have changed there.
    pub fn has_keys(&self) -> bool {
        self.0.values().any(|steps| !steps.keys.is_empty())
    }

    /// The places of all journals.
    pub fn journals(&self) -> impl Iterator<Item = &Place> {
        let reporters = self.0.values().flat_map(|steps| &steps.report);
        let journals = reporters.flat_map(|report| report.iter().filter_map(|r| r.journal()));
        journals.map(|journal| &journal.to)
    }

    /// Whether some rule's pipeline needs to know how flows have begun.
    pub fn want_openings(&self) -> bool {
        let mut steps = self.0.values().filter_map(|steps| steps.edit.as_ref());
        steps.any(|steps| steps.iter().any(|step| step.wants_opening()))
    }

    /// Whether some rule's pipeline changes requests.
    pub fn edit(&self) -> bool {
        self.0.values().any(|steps| steps.edit.is_some())
    }
}

/// The state of the keys of pipelines, as far as no server has to be asked.
#[derive(Debug, Default)]
pub struct KeysRead {
    /// Why files of keys cannot be used.
    pub errors: Vec<String>,
    /// Key servers that were not asked.
    pub doubts: Vec<String>,
}
<<<<<<< HEAD
=======

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
>>>>>>> main
