//! Rules that can never decide: those that an earlier one hides, and those whose conditions exclude each other.
//!
//! Everything here is told from the rules alone, and only what is certain: a rule that is not named may be hidden all the same.

use ipnet::IpNet;

use crate::{
    Action, Compression, Fail, Match, NetnsPattern, Policy, ProcessPattern, Protocol, Rule,
    RuleName, Target,
};

/// A rule that never decides, or an order of rules that lets connections past one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Every connection for which it holds meets an earlier rule.
    Hidden {
        /// The rule.
        rule: RuleName,
        /// The earlier one.
        by: RuleName,
    },
    /// Two of its conditions never hold together.
    Never {
        /// The rule.
        rule: RuleName,
        /// The keys of the two.
        keys: [&'static str; 2],
    },
    /// A rule before one that denies asks for the session first, and lets pass what it cannot ask.
    LetsPast {
        /// The rule that asks.
        rule: RuleName,
        /// The rule that denies.
        denies: RuleName,
    },
}

impl Policy {
    /// Rules that are probably not meant as they stand.
    pub fn doubts(&self) -> Vec<Doubt> {
        let never = self.rules.iter().filter_map(|rule| {
            let (rule, keys) = (&rule.name, rule.excludes_itself()?);
            Some(Doubt::Never {
                rule: rule.clone(),
                keys,
            })
        });
        let pairs = self.rules.iter().enumerate().flat_map(|(n, rule)| {
            let before = self.rules.get(..n).unwrap_or_default();
            let hides = before.iter().find(|earlier| earlier.hides(rule));
            let hidden = hides.map(|by| Doubt::Hidden {
                rule: rule.name.clone(),
                by: by.name.clone(),
            });
            let denies = rule.action == Action::Deny && hidden.is_none();
            let asks = before
                .iter()
                .filter(move |earlier| denies && earlier.lets_past(rule));
            let past = asks.map(|asks| Doubt::LetsPast {
                rule: asks.name.clone(),
                denies: rule.name.clone(),
            });
            hidden.into_iter().chain(past)
        });
        never.chain(pairs).collect()
    }
}

impl Policy {
    /// The rule that decides, instead of the one at `index`, on a connection of that rule whose session cannot be
    /// known. Only rules that surely hold for it count.
    pub fn met_unknown(&self, index: usize) -> Match {
        let nobody = Match {
            index: None,
            rule: RuleName::of_default(),
            action: self.default_action,
            fail: self.default_fail,
            session: false,
        };
        let Some(asked) = self.rules.get(index) else {
            return nobody;
        };
        let from_here = self.rules.iter().enumerate().skip(index);
        let mut met = from_here.filter(|(_, rule)| rule.covers(asked));
        met.find_map(|(index, rule)| match (rule.is_session(), rule.fail) {
            (true, Fail::Open) => None,
            (true, Fail::Closed) => Some(rule.as_match(index, Action::Deny)),
            (false, _) => Some(rule.as_match(index, rule.action)),
        })
        .unwrap_or(nobody)
    }

    /// Whether nobody may get past the rule of this index by a choice of his own: it protects, or it asks for the session,
    /// and a rule behind it that may hold then protects.
    pub fn guards(&self, index: usize) -> bool {
        let Some((rule, behind)) = self.rules.get(index..).and_then(<[Rule]>::split_first) else {
            return false;
        };
        let may_meet = |later: &Rule| later.protects && rule.shares_targets(later);
        rule.protects || rule.is_session() && behind.iter().any(may_meet)
    }
}

impl Rule {
    /// Whether a destination may be one of both rules.
    pub(crate) fn shares_targets(&self, other: &Rule) -> bool {
        self.to.may_meet(&other.to)
    }

    /// Whether every connection that `later` holds for meets this rule before.
    fn hides(&self, later: &Rule) -> bool {
        let same_session = self.session.is_empty() || self.session == later.session;
        same_session && self.sample.is_none() && !self.is_mark && self.covers(later)
    }

    /// Whether a connection that `denies` would refuse can pass by this rule, because the agent cannot ask for its
    /// session.
    fn lets_past(&self, denies: &Rule) -> bool {
        self.is_session() && self.fail == Fail::Open && self.covers(denies)
    }

    /// Whether this rule decides, or asks for the session, wherever `later`'s conditions on a connection hold, whatever names
    /// stand for.
    pub(crate) fn covers(&self, later: &Rule) -> bool {
        fn each<A, B>(mine: &[A], theirs: &[B], covers: impl Fn(&A, &B) -> bool) -> bool {
            mine.is_empty()
                || !theirs.is_empty() && theirs.iter().all(|b| mine.iter().any(|a| covers(a, b)))
        }
        let is_within = |wide: &IpNet, narrow: &IpNet| wide.contains(narrow);
        // A rule without clients and destinations is of this host only; one of processes, too.
        let reaches = !later.is_of_elsewhere() || self.is_of_elsewhere();
        let containers = !self.containers.is_empty() && self.containers != later.containers;
        let is_there = self.when.is_none() || self.when == later.when;
        self.to.always_cover(&later.to)
            && reaches
            && is_there
            && !self.is_shadow()
            && !containers
            && each(&self.from, &later.from, is_within)
            && each(&self.uids, &later.uids, |a, b| a == b)
            && each(&self.gids, &later.gids, |a, b| a == b)
            && each(&self.processes, &later.processes, ProcessPattern::covers)
            && each(&self.cgroups, &later.cgroups, |a, b| b.starts_with(a))
            && each(&self.namespaces, &later.namespaces, NetnsPattern::eq)
    }

    /// The keys of two conditions of which one excludes the other.
    fn excludes_itself(&self) -> Option<[&'static str; 2]> {
        let of_processes = [
            ("uid", self.uids.is_empty()),
            ("gid", self.gids.is_empty()),
            ("process", self.processes.is_empty()),
            ("cgroup", self.cgroups.is_empty()),
            ("netns", self.namespaces.is_empty()),
            ("container", self.containers.is_empty()),
        ];
        if !self.from.is_empty()
            && let Some((key, _)) = of_processes.iter().find(|(_, is_empty)| !is_empty)
        {
            return Some(["from", key]);
        }
        let (protocols, compressions) = (&self.session.protocols, &self.session.compressions);
        // Version 5 has no Snappy (native_protocol_v5.spec, §5).
        let is_v5 = !protocols.is_empty() && protocols.iter().all(|p| *p == Protocol::V5);
        let is_snappy =
            !compressions.is_empty() && compressions.iter().all(|c| *c == Compression::Snappy);
        (is_v5 && is_snappy).then_some(["protocol", "compression"])
    }
}

impl Target {
    pub(crate) fn meets(&self, other: &Self) -> bool {
        let nets = match (self.network, other.network) {
            (Some(a), Some(b)) => a.contains(&b) || b.contains(&a),
            _ => true,
        };
        let ports = match (self.port, other.port) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        };
        nets && ports
    }

    pub(crate) fn covers(&self, narrow: &Self) -> bool {
        let within = |wide: IpNet| narrow.network.is_some_and(|net| wide.contains(&net));
        self.network.is_none_or(within) && (self.port.is_none() || self.port == narrow.port)
    }
}

impl ProcessPattern {
    fn covers(&self, narrow: &Self) -> bool {
        match self.is_prefix() {
            true => narrow.text().starts_with(self.text()),
            false => self == narrow,
        }
    }
}
