//! Conditions that pick running flows.

use std::path::PathBuf;

use dataplane::{OrigDst, Process};
use policy::{Candidate, Held, Rule, RuleName, Session};

/// The flows of which all of its conditions hold.
#[derive(Clone, Debug)]
pub struct Selector {
    text: String,
    /// The rule that a running flow has met.
    met: Option<RuleName>,
    rule: Rule,
}

/// The known facts of a running flow.
pub struct Known<'a> {
    /// The address that the client dialled.
    pub to: OrigDst,
    /// The process that opened the flow.
    pub process: &'a Process,
    /// The rule that the flow met first, and the one that has decided it since: its session's, or a mark.
    pub rules: [&'a RuleName; 2],
    /// The known facts of its session, if anybody looked.
    pub session: Option<&'a Session>,
    /// Whether its session is still being learned.
    pub undecided: bool,
}

/// The result of matching a selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// The selector matches.
    Yes,
    /// The selector does not match.
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
        if self
            .met
            .as_ref()
            .is_some_and(|met| !flow.rules.contains(&met))
        {
            return Holds::No;
        }
        let names_cgroups = !self.rule.cgroups.is_empty();
        let cgroup = names_cgroups.then(cgroup).flatten();
        let candidate = Candidate {
            from: None,
            to: flow.to.socket_addr(),
            uid: flow.process.uid,
            gid: flow.process.gid,
            process: flow.process.name.clone(),
            // A process that is gone is in no cgroup that can be named.
            cgroup: cgroup.unwrap_or_default(),
            // A selector cannot name a namespace.
            netns: None,
        };
        if self.rule.miss(&candidate).is_some() {
            return Holds::No;
        }
        let unknown = Session::default();
        match self.rule.session.hold(flow.session.unwrap_or(&unknown)) {
            Held::Yes => Holds::Yes,
            Held::No => Holds::No,
            // Facts that will be learned are matched with rules, and those cannot name a rule.
            Held::Open if flow.undecided && self.met.is_none() => Holds::Later,
            Held::Open | Held::Unknowable => Holds::Unknown,
        }
    }
}
