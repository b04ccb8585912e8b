//! Rules that need the bytes of a connection, and rules that are content with copies.

use std::fmt;

use crate::{Action, Fail, Policy, Rule, RuleName};

/// Why a connection whose session is asked for comes to the agent, although its rule would read copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakesIn {
    /// The rule that it may meet; the default's name where none holds.
    pub rule: RuleName,
    /// The reason.
    pub why: NeedsBytes,
}

/// The need of a rule that copies do not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeedsBytes {
    /// The rule denies.
    Denies,
    /// `fail = "closed"` denies where the session cannot be known.
    FailsClosed,
    /// A step of the rule, or TLS, needs the bytes; or nobody asked for copies.
    ReadsInline,
    /// The agent dials the rule's backends.
    Balances,
    /// Copies do not say of which namespace a connection is.
    NamesNamespaces,
}

impl fmt::Display for TakesIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = &self.rule;
        match self.why {
            NeedsBytes::Denies => write!(f, "rule {rule} may deny"),
            NeedsBytes::FailsClosed => write!(
                f,
                "fail = \"closed\" of rule {rule} refuses where the session cannot be known"
            ),
            NeedsBytes::ReadsInline => write!(f, "rule {rule} may be met, which is inline"),
            NeedsBytes::Balances => write!(f, "the agent dials the backends of rule {rule}"),
            NeedsBytes::NamesNamespaces => write!(
                f,
                "`netns` of rule {rule} is not known of a connection that is left alone"
            ),
        }
    }
}

impl Policy {
    /// The first reason why a connection that meets the session rule at `index` has to come to the agent. None:
    /// whatever its session turns out to be, it is left alone, observed, or read from copies.
    pub fn takes_in(&self, index: usize) -> Option<TakesIn> {
        let asked = self.rules.get(index)?;
        let needs = |rule: &Rule, why| TakesIn {
            rule: rule.name.clone(),
            why,
        };
        if let Some(balances) = self.balances_for(asked) {
            return Some(needs(balances, NeedsBytes::Balances));
        }
        let from_here = self.rules.iter().skip(index);
        for rule in from_here.filter(|rule| rule.shares_targets(asked) && !rule.is_shadow()) {
            if let Some(why) = rule.needs_bytes() {
                return Some(needs(rule, why));
            }
            if !rule.is_session() && rule.covers(asked) {
                return None;
            }
        }
        let why = match self.default_action {
            Action::Bypass | Action::Observe => return None,
            Action::Deny => NeedsBytes::Denies,
            Action::Enrich => NeedsBytes::ReadsInline,
        };
        Some(TakesIn {
            rule: RuleName::of_default(),
            why,
        })
    }

    /// A rule with backends behind an address that `rule` may hold for.
    pub fn balances_for(&self, rule: &Rule) -> Option<&Rule> {
        let mut rules = self.rules.iter();
        rules.find(|other| !other.backends.is_empty() && other.shares_targets(rule))
    }
}

impl Rule {
    fn needs_bytes(&self) -> Option<NeedsBytes> {
        match self.action {
            Action::Deny => Some(NeedsBytes::Denies),
            Action::Enrich if self.taps.is_none() => Some(NeedsBytes::ReadsInline),
            _ if self.is_session() && self.fail == Fail::Closed => Some(NeedsBytes::FailsClosed),
            _ if !self.namespaces.is_empty() => Some(NeedsBytes::NamesNamespaces),
            Action::Bypass | Action::Observe | Action::Enrich => None,
        }
    }
}
