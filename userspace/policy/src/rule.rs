//! One rule: its conditions on a connection, its action, and the first condition that fails.

use std::{fmt, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use ipnet::IpNet;

use crate::{
    Candidate, ContainerConditions, Destinations, Match, NetnsPattern, ProcessPattern, Sample,
    SessionConditions, Window,
};

/// A rule's name, as the policy file spells it; `default` for the default.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleName(Arc<str>);

impl RuleName {
    /// Wraps the text of a name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name of the default.
    pub fn of_default() -> Self {
        Self::new("default")
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The action that a rule takes on a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Leave the flow alone: the socket talks to the database itself.
    Bypass,
    /// Leave the flow alone, and read its CQL headers in passing.
    Observe,
    /// Carry the flow through the agent, which decodes it.
    Enrich,
    /// Refuse the flow: `connect()` fails with EPERM.
    Deny,
}

impl Action {
    /// Every action.
    pub const ALL: [Self; 4] = [Self::Bypass, Self::Observe, Self::Enrich, Self::Deny];

    /// Finds an action by its name in the policy file.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.as_str() == name)
    }

    /// How much the action keeps from the database: a larger number is stricter.
    pub fn strictness(self) -> u8 {
        match self {
            Action::Bypass | Action::Observe => 0,
            Action::Enrich => 1,
            Action::Deny => 2,
        }
    }

    /// The action's name in the policy file and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Bypass => "bypass",
            Action::Observe => "observe",
            Action::Enrich => "enrich",
            Action::Deny => "deny",
        }
    }
}

/// The fate of a flow that the agent should serve and cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Fail {
    /// The flow goes straight to the database.
    #[default]
    Open,
    /// The flow is refused: `connect()` fails with EPERM.
    Closed,
}

impl Fail {
    /// The value's name in the policy file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Fail::Open => "open",
            Fail::Closed => "closed",
        }
    }
}

/// The applications whose sockets a rule lets into a sockmap. Without any, the kernel carries none of
/// the rule's flows past TCP or past the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Shortcut {
    /// Neither side's.
    #[default]
    Neither,
    /// The client's.
    Client,
    /// The database's.
    Database,
    /// Both sides'.
    Both,
}

impl Shortcut {
    /// Whether the client's socket may enter a sockmap.
    pub fn takes_client(self) -> bool {
        matches!(self, Self::Client | Self::Both)
    }

    /// Whether the database's socket may enter a sockmap.
    pub fn takes_database(self) -> bool {
        matches!(self, Self::Database | Self::Both)
    }
}

/// One rule of a policy. An empty list of conditions holds for every connection.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The rule's name, unique in its policy.
    pub name: RuleName,
    /// Networks of clients on other hosts. With any, the rule holds for no connection that this host
    /// opens itself.
    pub from: Vec<IpNet>,
    /// Destinations that the rule holds for.
    pub to: Destinations,
    /// User ids of the connecting process.
    pub uids: Vec<u32>,
    /// Group ids of the connecting process.
    pub gids: Vec<u32>,
    /// Names of the connecting process.
    pub processes: Vec<ProcessPattern>,
    /// cgroup v2 paths from the mount's root (`/system.slice/x.service`); a path holds for
    /// everything beneath it.
    pub cgroups: Vec<PathBuf>,
    /// Network namespaces of the connecting process.
    pub namespaces: Vec<NetnsPattern>,
    /// Names and labels of the connecting process's container.
    pub containers: ContainerConditions,
    /// Conditions on the session, which only the handshake tells. With any, this is a session rule.
    pub session: SessionConditions,
    /// The databases behind the addresses in `to`, which are then virtual. At most [`MAX_BACKENDS`].
    pub backends: Vec<SocketAddr>,
    /// Whether the rule protects: what passes it by is a hole, and nobody passes it by a choice of his own.
    pub protects: bool,
    /// The action that the rule would take, if it stands in shadow: then it is counted, decides nothing, and its own action is
    /// [`Action::Bypass`].
    pub shadow: Option<Action>,
    /// Whether the rule is a mark. A mark never chooses backends: the file's rules do.
    pub is_mark: bool,
    /// The action on flows that meet the rule.
    pub action: Action,
    /// The fate of a flow that the agent cannot serve.
    pub fail: Fail,
    /// The applications whose sockets may enter a sockmap.
    pub shortcut: Shortcut,
    /// How much of each frame is copied of the rule's flows, which are left alone and read from copies of their
    /// packets. Only with [`Action::Enrich`] and a pipeline that only reads; without, flows come to the agent.
    pub taps: Option<TapDepth>,
    /// Whether the rule asks for the session and copies of the handshake answer: the flow is left alone, because
    /// nothing that it may meet needs its bytes ([`Policy::takes_in`](crate::Policy::takes_in)).
    pub asks_copies: bool,
    /// The time for which the agent's decision by this rule stands for later connections of the
    /// process to the endpoint. Only with [`Action::Bypass`].
    pub remember: Option<Duration>,
    /// The fraction of the rule's flows that are enriched; all, when absent. Only with [`Action::Enrich`].
    pub sample: Option<Sample>,
    /// The fraction of the rule's flows that are left alone, so that the others can be compared with them; none, when absent.
    /// Only with [`Action::Enrich`], and where the kernel decides.
    pub holdout: Option<Sample>,
    /// How many connections one client may have by the rule at the same time. None: any number.
    pub limit: Option<ClientLimit>,
    /// The time during which the rule is there. None: always.
    pub when: Option<Window>,
}

/// A bound on the connections that one client has by a rule at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientLimit {
    /// Connections, at most.
    pub connections: u32,
    /// The kind of client.
    pub per: LimitPer,
}

/// The kind of a client that a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitPer {
    /// A user.
    Uid,
    /// A process.
    Process,
    /// An address of a client on another host.
    Address,
}

/// How much of each frame copies have: what the steps of a rule that only reads need together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TapDepth {
    /// Headers, texts of statements and names of prepared ones.
    Frames,
    /// And the beginning of every body.
    Bodies,
    /// And values, and how many rows are in a response.
    Details,
    /// And responses, to be compared with others.
    Answers,
}

/// The condition by which a rule did not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// The rule's `from`.
    From,
    /// The rule's `to`.
    To,
    /// The rule's `uid`.
    Uid,
    /// The rule's `gid`.
    Gid,
    /// The rule's `process`.
    Process,
    /// The rule's `cgroup`.
    Cgroup,
    /// The rule's `netns`.
    Netns,
    /// The rule's `container` or `labels`, or these together with its `cgroup`.
    Container,
}

impl Miss {
    /// The condition's key in the policy file.
    pub fn key(self) -> &'static str {
        match self {
            Miss::From => "from",
            Miss::To => "to",
            Miss::Uid => "uid",
            Miss::Gid => "gid",
            Miss::Process => "process",
            Miss::Cgroup => "cgroup",
            Miss::Netns => "netns",
            Miss::Container => "container",
        }
    }
}

impl Rule {
    /// The action that the kernel takes on a flow that meets the rule. For a session rule that is
    /// `enrich`, whatever its own action: only the agent can tell whether the rule holds.
    pub fn kernel_action(&self) -> Action {
        if self.is_session() {
            Action::Enrich
        } else {
            self.action
        }
    }

    /// Whether the kernel leaves a flow that meets the rule alone, and hands over copies of its packets: to
    /// read it, or to learn which rule it meets.
    pub fn is_tapped(&self) -> bool {
        match self.is_session() {
            true => self.asks_copies,
            false => self.taps.is_some(),
        }
    }

    /// Whether the rule stands in shadow: it never decides.
    pub fn is_shadow(&self) -> bool {
        self.shadow.is_some()
    }

    /// Whether the rule is the one that decides, unless one before it does, as far as is known at connect().
    pub(crate) fn may_decide(&self, candidate: &Candidate) -> bool {
        !self.is_shadow() && self.miss(candidate).is_none()
    }

    /// Whether the rule has a condition on the session, so that only the agent can tell whether it holds.
    pub fn is_session(&self) -> bool {
        !self.session.is_empty()
    }

    /// Whether a flow that is left alone may skip TCP where its other end is on this host, too. Of a
    /// session rule it is in the agent by the time that its rule is known.
    pub fn skips_tcp(&self) -> bool {
        self.shortcut == Shortcut::Both && self.action == Action::Bypass
    }

    /// Whether connections between an application and the agent of a flow that meets the rule may skip TCP.
    pub fn shortens_legs(&self) -> bool {
        let is_inline = self.action == Action::Enrich && self.taps.is_none();
        is_inline && self.shortcut != Shortcut::Neither
    }

    /// Whether the rule holds for some cgroups only.
    pub fn names_cgroups(&self) -> bool {
        !(self.cgroups.is_empty() && self.containers.is_empty())
    }

    /// The cgroups that the rule holds for, if it [names any](Self::names_cgroups): its own, or those of
    /// the containers that were found for it.
    pub fn cgroups_held(&self) -> &[PathBuf] {
        match self.containers.is_empty() {
            true => &self.cgroups,
            false => &self.containers.found,
        }
    }

    /// Whether the rule settles which backends stand behind an address that it holds for, if only that
    /// there are none. A session rule without backends settles nothing, since it may not hold in the
    /// end; nor does a mark, which never chooses backends.
    pub fn settles_backends(&self) -> bool {
        !self.backends.is_empty() || !(self.is_session() || self.is_mark || self.is_shadow())
    }

    pub(crate) fn as_match(&self, index: usize, action: Action) -> Match {
        Match {
            index: Some(index),
            rule: self.name.clone(),
            action,
            fail: self.fail,
            session: self.is_session(),
        }
    }

    /// Whether the rule may hold for connections that this host opens.
    pub fn is_of_here(&self) -> bool {
        self.from.is_empty()
    }

    /// Whether the rule may hold for connections that clients on other hosts open. A rule that names
    /// neither clients nor a destination holds for this host's own connections only; otherwise it would
    /// hold for everybody who connects to this host. So does one in shadow.
    pub fn is_of_elsewhere(&self) -> bool {
        let names_either = !self.from.is_empty() || !self.to.is_any();
        let names_process = !self.uids.is_empty()
            || !self.gids.is_empty()
            || !self.processes.is_empty()
            || self.names_cgroups()
            || !self.namespaces.is_empty();
        names_either && !names_process && !self.is_shadow()
    }

    /// Whether the rule's `to` holds for an address, whoever dials it.
    pub fn holds_to(&self, to: SocketAddr) -> bool {
        self.to.holds(to)
    }

    /// The first condition that does not hold for `candidate`, if any.
    pub fn miss(&self, candidate: &Candidate) -> Option<Miss> {
        fn none<T>(list: &[T], holds: impl FnMut(&T) -> bool) -> bool {
            !list.is_empty() && !list.iter().any(holds)
        }
        let local = candidate.from.is_none();
        let is_from = |net: &IpNet| {
            candidate
                .from
                .is_some_and(|ip| net.contains(&ip.to_canonical()))
        };
        let is_beneath = |g: &PathBuf| candidate.cgroup.starts_with(g);
        let is_of_neither = !local && self.from.is_empty() && self.to.is_any();
        if none(&self.from, is_from) {
            Some(Miss::From)
        } else if !self.to.holds(candidate.to) {
            Some(Miss::To)
        } else if none(&self.uids, |u| local && *u == candidate.uid) {
            Some(Miss::Uid)
        } else if none(&self.gids, |g| local && *g == candidate.gid) {
            Some(Miss::Gid)
        } else if none(&self.processes, |p| local && p.holds(&candidate.process)) {
            Some(Miss::Process)
        } else if none(&self.cgroups, |g| local && is_beneath(g)) {
            Some(Miss::Cgroup)
        } else if self.names_cgroups() && !(local && self.cgroups_held().iter().any(is_beneath)) {
            Some(Miss::Container)
        } else if none(&self.namespaces, |n| {
            local && candidate.netns.is_some() && n.inode() == candidate.netns
        }) {
            Some(Miss::Netns)
        } else if is_of_neither {
            Some(Miss::From)
        } else {
            None
        }
    }
}
