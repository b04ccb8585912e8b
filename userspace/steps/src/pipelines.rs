//! The pipelines of all rules: transforms for their requests, and reporters.

use std::{collections::HashMap, sync::Arc};

use cql_edit::Pipeline;
use flow::About;
use limits::Limit;
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

    /// All transforms for requests, by rule.
    pub fn edits(&self) -> impl Iterator<Item = (&RuleName, &Pipeline)> {
        let steps = self.0.iter();
        steps.filter_map(|(rule, steps)| Some((rule, steps.edit.as_ref()?)))
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
            open_keys(rule, steps, services)?;
        }
        self.open_journals(services)
    }

    /// Returns the rules of which something cannot be read or opened, each with the reason. Of the others everything is open.
    pub fn open_each(&self, services: &Services) -> Vec<(RuleName, anyhow::Error)> {
        let each = self.0.iter().filter_map(|(rule, steps)| {
            let keys = open_keys(rule, steps, services);
            let opened = keys.and_then(|()| open_journals(rule, steps, services));
            Some((rule.clone(), opened.err()?))
        });
        each.collect()
    }

    /// Opens what effects ask and reporters write to, before the pipelines are in force.
    ///
    /// # Errors
    /// Names what cannot be opened, and the rule.
    pub fn open_journals(&self, services: &Services) -> anyhow::Result<()> {
        for (rule, steps) in &self.0 {
            open_journals(rule, steps, services)?;
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

    /// The limits that the hosts of a fleet share.
    pub fn limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        let steps = self.0.values().filter_map(|steps| steps.edit.as_ref());
        steps.flat_map(|steps| steps.iter().filter_map(|step| step.limit()))
    }

    /// Whether some rule's pipeline changes requests.
    pub fn edit(&self) -> bool {
        self.0.values().any(|steps| steps.edit.is_some())
    }
}

fn open_keys(rule: &RuleName, steps: &Steps, services: &Services) -> anyhow::Result<()> {
    for source in &steps.keys {
        let opened = source.open(&services.rings);
        opened.map_err(|e| anyhow::anyhow!("rule {rule}: {}: {e}", protect::NAME))?;
    }
    Ok(())
}

fn open_journals(rule: &RuleName, steps: &Steps, services: &Services) -> anyhow::Result<()> {
    for effect in &steps.effects {
        let opened = effect.open(rule, services);
        opened.map_err(|e| anyhow::anyhow!("rule {rule}: {}: {e}", effect.name()))?;
    }
    for reporter in steps.report.iter().flat_map(|report| report.iter()) {
        let opened = reporter.open(services);
        opened.map_err(|e| anyhow::anyhow!("rule {rule}: {}: {e}", reporter.name()))?;
    }
    Ok(())
}

/// The state of the keys of pipelines, as far as no server has to be asked.
#[derive(Debug, Default)]
pub struct KeysRead {
    /// Why files of keys cannot be used.
    pub errors: Vec<String>,
    /// Key servers that were not asked.
    pub doubts: Vec<String>,
}
