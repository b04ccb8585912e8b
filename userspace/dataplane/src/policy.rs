//! Rules, and what "the first match wins" means.
//!
//! [`Policy::first_match`] is the plain reading, one rule after the other. The kernel
//! decides by [`crate::compile`]'s sets; a property test holds the two together. What the
//! kernel leaves to the agent, [`Policy::decide`] decides.

mod containers;
mod patterns;
mod sample;
mod session;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use ebpf::abi;
use ipnet::IpNet;

pub use containers::{
    Container, ContainerConditions, Glob, MAX_CONTAINER_CONDITIONS, MAX_CONTAINER_TEXT_BYTES,
};
pub use patterns::{MAX_PROCESS_NAME_BYTES, NetnsPattern, ProcessPattern, Target};
pub use sample::Sample;
pub use session::{
    Compression, Decision, Fact, MAX_FACT_BYTES, Protocol, Session, SessionConditions, SessionKey,
    TextPattern,
};

/// Rules in one policy; the width of a rule set in the kernel.
pub const MAX_RULES: usize = abi::MAX_RULES as usize;

/// Backends behind one rule's virtual addresses.
pub const MAX_BACKENDS: usize = abi::MAX_BACKENDS as usize;

/// Rules with backends in one policy.
pub const MAX_BALANCED: usize = abi::MAX_BALANCED as usize;

/// A rule's name, as in the file; `default` for the default.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleName(Arc<str>);

impl RuleName {
    /// A name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name of the default.
    pub fn of_default() -> Self {
        Self::new("default")
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What happens to a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Left alone: the socket talks to the database itself.
    Bypass,
    /// Left alone, and its CQL headers are read in passing.
    Observe,
    /// Goes through the agent, which decodes it.
    Enrich,
    /// `connect()` fails with EPERM.
    Deny,
}

impl Action {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Bypass, Self::Observe, Self::Enrich, Self::Deny];

    /// By its name in the policy file.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.as_str() == name)
    }

    /// As in the policy file and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Bypass => "bypass",
            Action::Observe => "observe",
            Action::Enrich => "enrich",
            Action::Deny => "deny",
        }
    }
}

/// What happens to a flow that the agent should serve and cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Fail {
    /// It goes straight to the database.
    #[default]
    Open,
    /// `connect()` fails with EPERM.
    Closed,
}

impl Fail {
    /// As in the policy file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Fail::Open => "open",
            Fail::Closed => "closed",
        }
    }
}

/// One rule. An empty list does not care.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Unique in its policy.
    pub name: RuleName,
    /// Networks of clients on other hosts. With any, the rule holds for no connection that this host
    /// opens itself.
    pub from: Vec<IpNet>,
    /// Destinations.
    pub to: Vec<Target>,
    /// The caller's user ids.
    pub uids: Vec<u32>,
    /// The caller's process names.
    pub processes: Vec<ProcessPattern>,
    /// cgroup v2 paths from the mount's root (`/system.slice/x.service`); a path holds for
    /// everything beneath it.
    pub cgroups: Vec<PathBuf>,
    /// The caller's network namespaces.
    pub namespaces: Vec<NetnsPattern>,
    /// What the caller's container is called.
    pub containers: ContainerConditions,
    /// What the handshake has to tell. With any of it, this is a session rule.
    pub session: SessionConditions,
    /// The databases behind the addresses in `to`, which are then virtual. At most [`MAX_BACKENDS`].
    pub backends: Vec<SocketAddr>,
    /// It is a mark: which backends stand behind an address is for the file's rules to say.
    pub is_mark: bool,
    /// What happens to the flow.
    pub action: Action,
    /// What happens when the agent cannot serve it.
    pub fail: Fail,
    /// Left alone, it may skip TCP where its other end is on this host, too.
    pub shortcut: bool,
    /// For how long the agent's decision by this rule stands for later connections of the
    /// process to the endpoint. Only with [`Action::Bypass`].
    pub remember: Option<Duration>,
    /// How many of its flows are enriched; all, when absent. Only with [`Action::Enrich`].
    pub sample: Option<Sample>,
}

/// Ordered rules and a default.
#[derive(Clone, Debug)]
pub struct Policy {
    /// At most [`MAX_RULES`]; the first that holds decides.
    pub rules: Vec<Rule>,
    /// When no rule holds.
    pub default_action: Action,
    /// For a default that enriches.
    pub default_fail: Fail,
}

/// What is known of a connection at its beginning.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The client on another host. Then nothing is known of a process, and rules that name one do not
    /// hold. None: a process of this host connects.
    pub from: Option<IpAddr>,
    /// The address dialled.
    pub to: SocketAddr,
    /// The caller's user id.
    pub uid: u32,
    /// The caller's process name (`/proc/PID/comm`).
    pub process: String,
    /// The caller's cgroup v2 path.
    pub cgroup: PathBuf,
    /// The inode's number of the caller's network namespace; None: not known, and rules that name one do
    /// not hold.
    pub netns: Option<u32>,
}

/// The rule that a connection meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// Index in [`Policy::rules`]; None for the default.
    pub index: Option<usize>,
    /// Its name.
    pub rule: RuleName,
    /// Its action.
    pub action: Action,
    /// Its `fail`.
    pub fail: Fail,
    /// It is a session rule: whether it holds is decided in the agent.
    pub session: bool,
}

/// The condition by which a rule did not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// Its `from`.
    From,
    /// Its `to`.
    To,
    /// Its `uid`.
    Uid,
    /// Its `process`.
    Process,
    /// Its `cgroup`.
    Cgroup,
    /// Its `netns`.
    Netns,
    /// Its `container` or `labels`, or these and its `cgroup`.
    Container,
}

impl Miss {
    /// The key in the policy file.
    pub fn key(self) -> &'static str {
        match self {
            Miss::From => "from",
            Miss::To => "to",
            Miss::Uid => "uid",
            Miss::Process => "process",
            Miss::Cgroup => "cgroup",
            Miss::Netns => "netns",
            Miss::Container => "container",
        }
    }
}

impl Candidate {
    /// One on another host, of which there is no process.
    pub fn elsewhere(from: IpAddr, to: SocketAddr) -> Self {
        Self {
            from: Some(from),
            to,
            uid: u32::MAX,
            process: String::new(),
            cgroup: PathBuf::new(),
            netns: None,
        }
    }
}

impl Rule {
    /// What the kernel does with a flow that meets the rule: whatever a session rule's action,
    /// only the agent can tell whether it holds.
    pub fn kernel_action(&self) -> Action {
        if self.is_session() {
            Action::Enrich
        } else {
            self.action
        }
    }

    /// Whether it says which backends stand behind an address that it holds for, if only that there
    /// are none: a session rule may not hold in the end, and a mark was not asked.
    pub(crate) fn settles_backends(&self) -> bool {
        !self.backends.is_empty() || !(self.is_session() || self.is_mark)
    }

    fn as_match(&self, index: usize, action: Action) -> Match {
        Match {
            index: Some(index),
            rule: self.name.clone(),
            action,
            fail: self.fail,
            session: self.is_session(),
        }
    }

    /// Whether it may hold for what this host opens.
    pub(crate) fn is_of_here(&self) -> bool {
        self.from.is_empty()
    }

    /// Whether it may hold for what clients on other hosts open. One that names neither them nor a
    /// destination speaks of this host's own connections: else it would hold for whoever comes in.
    pub(crate) fn is_of_elsewhere(&self) -> bool {
        let names_either = !self.from.is_empty() || !self.to.is_empty();
        let names_process = !self.uids.is_empty()
            || !self.processes.is_empty()
            || self.names_cgroups()
            || !self.namespaces.is_empty();
        names_either && !names_process
    }

    /// The first condition on `c` that does not hold, if any.
    pub fn miss(&self, c: &Candidate) -> Option<Miss> {
        fn none<T>(list: &[T], holds: impl FnMut(&T) -> bool) -> bool {
            !list.is_empty() && !list.iter().any(holds)
        }
        let local = c.from.is_none();
        let is_from = |net: &IpNet| c.from.is_some_and(|ip| net.contains(&ip.to_canonical()));
        let is_beneath = |g: &PathBuf| c.cgroup.starts_with(g);
        let is_of_neither = !local && self.from.is_empty() && self.to.is_empty();
        if none(&self.from, is_from) {
            Some(Miss::From)
        } else if none(&self.to, |t| t.holds(c.to)) {
            Some(Miss::To)
        } else if none(&self.uids, |u| local && *u == c.uid) {
            Some(Miss::Uid)
        } else if none(&self.processes, |p| local && p.holds(&c.process)) {
            Some(Miss::Process)
        } else if none(&self.cgroups, |g| local && is_beneath(g)) {
            Some(Miss::Cgroup)
        } else if self.names_cgroups() && !(local && self.places().iter().any(is_beneath)) {
            Some(Miss::Container)
        } else if none(&self.namespaces, |n| {
            local && c.netns.is_some() && n.inode() == c.netns
        }) {
            Some(Miss::Netns)
        } else if is_of_neither {
            Some(Miss::From)
        } else {
            None
        }
    }
}

impl Policy {
    /// The rule that `c` meets as it connects, and what the kernel does with it.
    pub fn first_match(&self, c: &Candidate) -> Match {
        let mut rules = self.rules.iter().enumerate();
        match rules.find(|(_, r)| r.miss(c).is_none()) {
            Some((index, rule)) => rule.as_match(index, rule.kernel_action()),
            None => self.default_match(c),
        }
    }

    /// The rule whose backends stand behind the address that `c` dials, if it is a virtual one: the
    /// first that has any, unless one before it is sure to hold and has none.
    pub fn balances(&self, c: &Candidate) -> Option<&Rule> {
        let mut rules = self.rules.iter();
        let settler = rules.find(|r| r.settles_backends() && r.miss(c).is_none());
        settler.filter(|r| !r.backends.is_empty())
    }

    /// Virtual addresses that clients on other hosts may dial and that a rule wants the agent to see:
    /// because their flows are to be enriched, or depend on their session.
    pub fn taken_addresses(&self) -> BTreeSet<SocketAddr> {
        let asks = |rule: &&Rule| rule.is_of_elsewhere() && rule.kernel_action() == Action::Enrich;
        let asking: Vec<&Rule> = self.rules.iter().filter(asks).collect();
        let holds = |rule: &Rule, at: SocketAddr| {
            rule.to.is_empty() || rule.to.iter().any(|target| target.holds(at))
        };
        let balanced = self.rules.iter().filter(|rule| !rule.backends.is_empty());
        let addresses = balanced
            .flat_map(|rule| &rule.to)
            .filter_map(Target::endpoint);
        addresses
            .filter(|at| asking.iter().any(|rule| holds(rule, *at)))
            .collect()
    }

    /// What a rule says is to happen when the flow cannot be served; the default's where there is no
    /// such rule.
    pub fn fail_of(&self, name: &RuleName) -> Fail {
        let rule = self.rules.iter().find(|rule| rule.name == *name);
        rule.map_or(self.default_fail, |rule| rule.fail)
    }

    /// The default speaks of this host's own connections: what others open is left alone.
    fn default_match(&self, c: &Candidate) -> Match {
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

    /// Whether any flow is observed.
    pub fn observes(&self) -> bool {
        let mut actions = self.rules.iter().map(|rule| rule.action);
        self.default_action == Action::Observe || actions.any(|action| action == Action::Observe)
    }

    /// Whether any flow may take the shortcut.
    pub fn shortcuts(&self) -> bool {
        self.rules.iter().any(|r| r.shortcut)
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

    /// Likewise for network namespaces.
    pub fn names_namespaces(&self) -> bool {
        self.rules.iter().any(|r| !r.namespaces.is_empty())
    }
}
