//! Kinds of faults: names, and the time that flows have to get over each.

use std::time::Duration;

/// The time in which an agent from which another has taken over ends: longer than it drains.
pub const DRAINED: Duration = Duration::from_secs(60);

/// The time for which an agent drains at most. Some flows stay with it for so long.
pub const DRAINS: Duration = Duration::from_secs(15);

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Reload,
    Mark,
    Upgrade,
    Kill,
    Keeper,
    Stop,
    Memory,
    Disk,
    Descriptors,
    Netns,
    Database,
    Burst,
    /// Nothing that is done here: no process of this machine ran.
    Machine,
}

impl Fault {
    /// The kinds of a long run.
    pub const ALL: [Self; 12] = [
        Self::Reload,
        Self::Mark,
        Self::Upgrade,
        Self::Kill,
        Self::Keeper,
        Self::Stop,
        Self::Memory,
        Self::Disk,
        Self::Descriptors,
        Self::Netns,
        Self::Database,
        Self::Burst,
    ];

    /// The kinds of a short run.
    pub const FEW: [Self; 2] = [Self::Stop, Self::Upgrade];

    /// Whether it ends an agent, or a keeper, of which an agent has only one.
    pub fn ends_process(self) -> bool {
        matches!(
            self,
            Self::Kill | Self::Upgrade | Self::Memory | Self::Keeper
        )
    }

    /// The name and the description, as in the table of a run.
    pub fn described(self) -> (&'static str, &'static str) {
        match self {
            Self::Reload => (
                "reload",
                "the policy changes; half of the times a bad one first",
            ),
            Self::Mark => (
                "mark",
                "running flows are taken out of their rule and back, or denied for a second",
            ),
            Self::Upgrade => ("upgrade", "another agent takes over"),
            Self::Kill => ("kill", "SIGKILL to the agent, and a start within 0.8 s"),
            Self::Keeper => ("keeper", "SIGKILL to all keepers"),
            Self::Stop => ("stop", "SIGSTOP to the agent for 0.2 to 2 s"),
            Self::Memory => (
                "memory",
                "the agents' cgroup gets 1 MiB beyond what it has, for 0.5 to 2 s",
            ),
            Self::Disk => (
                "disk",
                "the file system of the audit is full for 0.3 to 1.5 s",
            ),
            Self::Descriptors => (
                "descriptors",
                "the agent gets no further descriptor for 0.5 to 2 s",
            ),
            Self::Netns => (
                "namespace",
                "a network namespace with a client and a database comes and goes",
            ),
            Self::Database => (
                "database",
                "a database dies, and comes back within a second",
            ),
            Self::Burst => ("burst", "1,000 connects at once"),
            Self::Machine => (
                "machine",
                "nothing that was done: no thread of the test ran for 0.3 s or more",
            ),
        }
    }

    /// The time that flows have until all is as before.
    pub fn recovery(self) -> Duration {
        match self {
            // An agent without descriptors takes no flows for five seconds.
            Self::Descriptors => Duration::from_secs(6),
            Self::Machine => Duration::ZERO,
            // The agent before drains.
            Self::Upgrade => DRAINS + Duration::from_secs(2),
            // A SYN that nobody answered is sent again after a second.
            _ => Duration::from_secs(2),
        }
    }
}
