//! Conditions that pick running flows.

use std::path::PathBuf;

use dataplane::{OrigDst, Process};
use policy::{Candidate, Rule, RuleName, Session};

/// The flows of which all of its conditions hold.
#[derive(Clone, Debug)]
pub struct Selector {
    text: String,
    /// The rule that a running flow has met.
    met: Option<RuleName>,
    rule: Rule,
}

/// What is known of a running flow.
pub struct Known<'a> {
    /// Where it was dialled to.
    pub to: OrigDst,
    /// Who opened it.
    pub process: &'a Process,
    /// The rule that it has met.
    pub rule: &'a RuleName,
    /// What is known of its session, if anybody looked.
    pub session: Option<&'a Session>,
    /// Its session is still being learned.
    pub undecided: bool,
}

/// Whether a selector holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// It does.
    Yes,
    /// It does not.
    No,
    /// The session will tell.
    Later,
    /// Nobody will ever know: the session was not looked at.
    Unknown,
}

impl Selector {
    /// Flows that meet the conditions of `rule` and, if `met` is set, that have met that rule. `text`: as an
    /// operator has written it.
    pub fn new(text: String, met: Option<RuleName>, rule: Rule) -> Self {
        Self { text, met, rule }
    }

    /// The conditions as an operator has written them.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The rule that later connections meet. None: only running flows are meant.
    pub fn later(&self) -> Option<&Rule> {
        self.met.is_none().then_some(&self.rule)
    }

    /// Gives the rule of its conditions this name.
    pub fn rename(&mut self, name: &RuleName) {
        self.rule.name = name.clone();
    }

    /// Whether a running flow is meant. `cgroup` looks its cgroup up.
    pub fn holds(&self, flow: &Known<'_>, cgroup: impl FnOnce() -> Option<PathBuf>) -> Holds {
        if self.met.as_ref().is_some_and(|met| met != flow.rule) {
            return Holds::No;
        }
        let names_cgroups = !self.rule.cgroups.is_empty();
        let cgroup = names_cgroups.then(cgroup).flatten();
        let candidate = Candidate {
            from: None,
            to: flow.to.socket_addr(),
            uid: flow.process.uid,
            process: flow.process.name.clone(),
            // Of a process that is gone: in none that can be named.
            cgroup: cgroup.unwrap_or_default(),
            // Which cannot be named.
            netns: None,
        };
        if self.rule.miss(&candidate).is_some() {
            return Holds::No;
        }
        let unknown = Session::default();
        match self.rule.session.hold(flow.session.unwrap_or(&unknown)) {
            Some(true) => Holds::Yes,
            Some(false) => Holds::No,
            // What will be learned is held against rules, and those cannot name a rule.
            None if flow.undecided && self.met.is_none() => Holds::Later,
            None => Holds::Unknown,
        }
    }
}
