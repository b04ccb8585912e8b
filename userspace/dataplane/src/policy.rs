//! Rules, and what "the first match wins" means.
//!
//! [`Policy::first_match`] is the plain reading, one rule after the other. The kernel
//! decides by [`crate::compile`]'s sets; a property test holds the two together. What the
//! kernel leaves to the agent, [`Policy::decide`] decides.

mod session;
#[cfg(test)]
mod tests;

use std::{fmt, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use ebpf::abi;
use ipnet::IpNet;

pub use session::{
    Compression, Decision, Fact, MAX_FACT_BYTES, Protocol, Session, SessionConditions, SessionKey,
    TextPattern,
};

/// Rules in one policy; the width of a rule set in the kernel.
pub const MAX_RULES: usize = abi::MAX_RULES as usize;

/// `comm` has room for this many bytes; the kernel cuts longer names.
pub const MAX_PROCESS_NAME_BYTES: usize = abi::COMM_BYTES as usize - 1;

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
    pub fn as_str(self) -> &'static str {
        match self {
            Fail::Open => "open",
            Fail::Closed => "closed",
        }
    }
}

/// A destination: a network, a port, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Any address when absent. An IPv6 network never holds an IPv4-mapped address.
    pub network: Option<IpNet>,
    /// Any port when absent.
    pub port: Option<u16>,
}

impl Target {
    fn holds(&self, dst: SocketAddr) -> bool {
        let ip = dst.ip().to_canonical();
        self.network.is_none_or(|net| net.contains(&ip))
            && self.port.is_none_or(|port| port == dst.port())
    }
}

/// A process name, exact or a prefix (`spark*`). At most [`MAX_PROCESS_NAME_BYTES`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProcessPattern {
    pub(crate) text: String,
    pub(crate) prefix: bool,
}

impl ProcessPattern {
    /// `name`, or `prefix*`. None when it is longer than a process name can be, empty, or
    /// has a `*` anywhere else.
    pub fn parse(pattern: &str) -> Option<Self> {
        let (text, prefix) = match pattern.strip_suffix('*') {
            Some(text) => (text, true),
            None => (pattern, false),
        };
        let fits = text.len() <= MAX_PROCESS_NAME_BYTES && !text.contains(['*', '\0']);
        (fits && (prefix || !text.is_empty())).then(|| Self {
            text: text.to_owned(),
            prefix,
        })
    }

    fn holds(&self, name: &str) -> bool {
        if self.prefix {
            name.starts_with(&self.text)
        } else {
            name == self.text
        }
    }
}

impl fmt::Display for ProcessPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.text, if self.prefix { "*" } else { "" })
    }
}

/// One rule. An empty list does not care.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Unique in its policy.
    pub name: RuleName,
    /// Destinations.
    pub to: Vec<Target>,
    /// The caller's user ids.
    pub uids: Vec<u32>,
    /// The caller's process names.
    pub processes: Vec<ProcessPattern>,
    /// cgroup v2 paths from the mount's root (`/system.slice/x.service`); a path holds for
    /// everything beneath it.
    pub cgroups: Vec<PathBuf>,
    /// What the handshake has to tell. With any of it, this is a session rule.
    pub session: SessionConditions,
    /// What happens to the flow.
    pub action: Action,
    /// What happens when the agent cannot serve it.
    pub fail: Fail,
    /// Left alone, it may skip TCP where its other end is on this host, too.
    pub shortcut: bool,
    /// For how long the agent's decision by this rule stands for later connections of the
    /// process to the endpoint. Only with [`Action::Bypass`].
    pub remember: Option<Duration>,
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

/// What is known of a connection at `connect()`.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The address dialled.
    pub to: SocketAddr,
    /// The caller's user id.
    pub uid: u32,
    /// The caller's process name (`/proc/PID/comm`).
    pub process: String,
    /// The caller's cgroup v2 path.
    pub cgroup: PathBuf,
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
    /// Its `to`.
    To,
    /// Its `uid`.
    Uid,
    /// Its `process`.
    Process,
    /// Its `cgroup`.
    Cgroup,
}

impl Miss {
    /// The key in the policy file.
    pub fn key(self) -> &'static str {
        match self {
            Miss::To => "to",
            Miss::Uid => "uid",
            Miss::Process => "process",
            Miss::Cgroup => "cgroup",
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

    fn as_match(&self, index: usize, action: Action) -> Match {
        Match {
            index: Some(index),
            rule: self.name.clone(),
            action,
            fail: self.fail,
            session: self.is_session(),
        }
    }

    /// The first condition on `c` that does not hold, if any.
    pub fn miss(&self, c: &Candidate) -> Option<Miss> {
        fn none<T>(list: &[T], holds: impl FnMut(&T) -> bool) -> bool {
            !list.is_empty() && !list.iter().any(holds)
        }
        if none(&self.to, |t| t.holds(c.to)) {
            Some(Miss::To)
        } else if none(&self.uids, |u| *u == c.uid) {
            Some(Miss::Uid)
        } else if none(&self.processes, |p| p.holds(&c.process)) {
            Some(Miss::Process)
        } else if none(&self.cgroups, |g| c.cgroup.starts_with(g)) {
            Some(Miss::Cgroup)
        } else {
            None
        }
    }
}

impl Policy {
    /// The rule that `c` meets at `connect()`, and what the kernel does with it.
    pub fn first_match(&self, c: &Candidate) -> Match {
        let mut rules = self.rules.iter().enumerate();
        match rules.find(|(_, r)| r.miss(c).is_none()) {
            Some((index, rule)) => rule.as_match(index, rule.kernel_action()),
            None => self.default_match(),
        }
    }

    fn default_match(&self) -> Match {
        Match {
            index: None,
            rule: RuleName::of_default(),
            action: self.default_action,
            fail: self.default_fail,
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

    /// Whether any rule names a cgroup, which must then be looked up again as they come
    /// and go.
    pub fn names_cgroups(&self) -> bool {
        self.rules.iter().any(|r| !r.cgroups.is_empty())
    }
}
