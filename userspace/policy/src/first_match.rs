//! A policy, a connection at its beginning, and the rule that the connection meets.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use crate::{Action, Fail, LimitPer, Rule, RuleName, Shortcut, Target};

/// Ordered rules, of which the first that holds decides, and a default.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The rules in their order, at most [`MAX_RULES`](crate::MAX_RULES).
    pub rules: Vec<Rule>,
    /// The action when no rule holds.
    pub default_action: Action,
    /// The fate of a flow that a default of `enrich` sends to an agent that cannot serve it.
    pub default_fail: Fail,
}

/// A connection at its beginning: everything that the kernel knows of it, and that rules are held
/// against.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The client's address, if the client is on another host. Nothing is known of its process then, and
    /// rules that name one do not hold. None: a process of this host connects.
    pub from: Option<IpAddr>,
    /// The address that is dialled.
    pub to: SocketAddr,
    /// The connecting process's user id.
    pub uid: u32,
    /// The connecting process's group id.
    pub gid: u32,
    /// The connecting process's name (`/proc/PID/comm`).
    pub process: String,
    /// The connecting process's cgroup v2 path.
    pub cgroup: PathBuf,
    /// The inode's number of the connecting process's network namespace. None: not known, and rules that
    /// name a namespace do not hold.
    pub netns: Option<u32>,
}

/// The rule that a connection meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// The rule's index in [`Policy::rules`]; None for the default.
    pub index: Option<usize>,
    /// The rule's name.
    pub rule: RuleName,
    /// The rule's action.
    pub action: Action,
    /// The rule's `fail`.
    pub fail: Fail,
    /// Whether the rule is a session rule: the agent decides whether it holds.
    pub session: bool,
}

impl Candidate {
    /// A connection from another host, of whose process nothing is known.
    pub fn elsewhere(from: IpAddr, to: SocketAddr) -> Self {
        Self {
            from: Some(from),
            to,
            uid: u32::MAX,
            gid: u32::MAX,
            process: String::new(),
            cgroup: PathBuf::new(),
            netns: None,
        }
    }
}

impl Policy {
    /// The rule that `c` meets as it connects, with the action that the kernel takes.
    pub fn first_match(&self, c: &Candidate) -> Match {
        let mut rules = self.rules.iter().enumerate();
        match rules.find(|(_, r)| r.may_decide(c)) {
            Some((index, rule)) => rule.as_match(index, rule.kernel_action()),
            None => self.default_match(c),
        }
    }

    /// The rule whose backends stand behind the address that `c` dials, if the address is virtual: the
    /// first that holds and has any, unless a rule before it is certain to hold and has none.
    pub fn balances(&self, c: &Candidate) -> Option<&Rule> {
        let mut rules = self.rules.iter();
        let settler = rules.find(|r| r.settles_backends() && r.may_decide(c));
        settler.filter(|r| !r.backends.is_empty())
    }

    /// Virtual addresses that clients on other hosts may dial and whose flows a rule sends to the agent:
    /// because they are to be enriched, or because the decision depends on their session.
    pub fn taken_addresses(&self) -> BTreeSet<SocketAddr> {
        let asks = |rule: &&Rule| rule.is_of_elsewhere() && rule.kernel_action() == Action::Enrich;
        let asking: Vec<&Rule> = self.rules.iter().filter(asks).collect();
        let balanced = self.rules.iter().filter(|rule| !rule.backends.is_empty());
        let addresses = balanced
            .flat_map(|rule| rule.to.fixed())
            .filter_map(Target::endpoint);
        addresses
            .filter(|at| asking.iter().any(|rule| rule.holds_to(*at)))
            .collect()
    }

    /// The `fail` of the rule with this name; the default's where there is no such rule.
    pub fn fail_of(&self, name: &RuleName) -> Fail {
        let rule = self.rules.iter().find(|rule| rule.name == *name);
        rule.map_or(self.default_fail, |rule| rule.fail)
    }

    /// The `shortcut` of the rule with this name; where there is no such rule, nobody opted in.
    pub fn shortcut_of(&self, name: &RuleName) -> Shortcut {
        let rule = self.rules.iter().find(|rule| rule.name == *name);
        rule.map_or(Shortcut::Neither, |rule| rule.shortcut)
    }

    /// The default, as a match. The default holds for this host's own connections only: connections from
    /// other hosts are left alone.
    pub(crate) fn default_match(&self, c: &Candidate) -> Match {
        let (action, fail) = match c.from {
            None => (self.default_action, self.default_fail),
            Some(_) => (Action::Bypass, Fail::Open),
        };
        Match {
            index: None,
            rule: RuleName::of_default(),
            action,
            fail,
            session: false,
        }
    }

    /// Whether any flow is observed: by its rule's action, because it is tapped, or because it is compared with others.
    pub fn observes(&self) -> bool {
        let is_compared = |rule: &Rule| rule.holdout.is_some();
        let mut rules = self.rules.iter();
        self.default_action == Action::Observe
            || rules.any(|rule| rule.action == Action::Observe || is_compared(rule))
            || self.taps()
    }

    /// Whether any flow is read from copies of its packets.
    pub fn taps(&self) -> bool {
        self.rules.iter().any(Rule::is_tapped)
    }

    /// Whether any flow may take the shortcut, or a connection of its to the agent.
    pub fn shortcuts(&self) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| rule.skips_tcp() || rule.shortens_legs())
    }

    /// Whether any application's socket may enter a sockmap.
    pub fn opts_in(&self) -> bool {
        self.rules.iter().any(|r| r.shortcut != Shortcut::Neither)
    }

    /// Whether any rule bounds the connections of a client on this host.
    pub fn limits_here(&self) -> bool {
        let mut limits = self.rules.iter().filter_map(|rule| rule.limit);
        limits.any(|limit| limit.per != LimitPer::Address)
    }

    /// Whether any rule bounds the connections of a client on another host.
    pub fn limits_elsewhere(&self) -> bool {
        let mut limits = self.rules.iter().filter_map(|rule| rule.limit);
        limits.any(|limit| limit.per == LimitPer::Address)
    }

    /// Whether any decision may be remembered.
    pub fn remembers(&self) -> bool {
        self.rules.iter().any(|r| r.remember.is_some())
    }

    /// Whether any rule names a cgroup or a container, which must then be looked up again as they come
    /// and go.
    pub fn names_cgroups(&self) -> bool {
        self.rules.iter().any(Rule::names_cgroups)
    }

    /// Whether any rule names a network namespace, which must then be looked up again as they come and go.
    pub fn names_namespaces(&self) -> bool {
        self.rules.iter().any(|r| !r.namespaces.is_empty())
    }
}
