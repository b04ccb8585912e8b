//! Counters of the BPF programs: connections by rule and outcome, safer paths by cause.

use std::collections::{BTreeMap, HashMap};

use ebpf::abi;

use policy::RuleName;

macro_rules! labelled {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:ident => $label:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant = abi::$value as u8),* }

        impl $name {
            /// Every counter, in the order of their numbers.
            pub const ALL: [Self; [$(abi::$value),*].len()] = [$(Self::$variant),*];

            /// The value's name as a metric's label.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $label),* }
            }
        }
    };
}

pub(crate) use labelled;

labelled!(
    /// The outcome of a `connect()`.
    Outcome {
        /// Bypass: left alone.
        Untouched = OUTCOME_UNTOUCHED => "untouched",
        /// Sent to the agent.
        Intercepted = OUTCOME_INTERCEPTED => "intercepted",
        /// Refused by its rule.
        Denied = OUTCOME_DENIED => "denied",
        /// Could not be served; left alone, as its rule's `fail` says.
        FailedOpen = OUTCOME_FAILED_OPEN => "failed_open",
        /// Could not be served; refused, as its rule's `fail` says.
        FailedClosed = OUTCOME_FAILED_CLOSED => "failed_closed",
        /// Left alone, as the agent decided of another connection of the process.
        Remembered = OUTCOME_REMEMBERED => "remembered",
        /// Sent straight to a backend of the virtual address that was dialled.
        Balanced = OUTCOME_BALANCED => "balanced",
        /// The rule stands in shadow and would have held; it is counted for the rule that decides, too.
        Shadowed = OUTCOME_SHADOWED => "shadowed",
    }
);

labelled!(
    /// Why a flow took a safer path than its rule asked for.
    Cause {
        /// The agent's listener is gone.
        AgentAway = CAUSE_AGENT_AWAY => "agent_away",
        /// The agent has as many flows as it may.
        AgentFull = CAUSE_AGENT_FULL => "agent_full",
        /// The caller lives in another network namespace, and only the agent's own is served.
        ForeignNetns = CAUSE_FOREIGN_NETNS => "foreign_netns",
        /// The socket is bound to a device and would not reach the loopback.
        BoundToDevice = CAUSE_BOUND_TO_DEVICE => "bound_to_device",
        /// The destination is a link-local IPv6 address, whose scope the hook cannot see.
        LinkLocal = CAUSE_LINK_LOCAL => "link_local",
        /// The kernel had no memory for the socket's storage.
        NoMemory = CAUSE_NO_MEMORY => "no_memory",
        /// The table of pending connects is full.
        PendingConnectsFull = CAUSE_PENDING_CONNECTS_FULL => "pending_connects_full",
        /// The agent did not read held SYNs fast enough; the client sends them again.
        RingFull = CAUSE_RING_FULL => "ring_full",
        /// Somebody dialled the agent's listener without having been intercepted.
        Stranger = CAUSE_STRANGER => "stranger",
        /// A SYN whose headers are longer than what is kept of one: it is not held, and its connection is refused.
        OddSyn = CAUSE_ODD_SYN => "odd_syn",
        /// The table of observed flows is full; further flows are left alone unobserved.
        MetersFull = CAUSE_METERS_FULL => "meters_full",
        /// The target of a redirect was gone: the bytes went up to the agent.
        SpliceTargetGone = CAUSE_SPLICE_TARGET_GONE => "splice_target_gone",
        /// A spliced client's socket began to speak TLS in the kernel.
        SpliceTls = CAUSE_SPLICE_TLS => "splice_tls",
        /// The agent did not read the kernel's calls fast enough; every spliced flow is looked at.
        SpliceRingFull = CAUSE_SPLICE_RING_FULL => "splice_ring_full",
        /// A flow that would take the shortcut and does not go over the loopback device.
        ShortcutRemote = CAUSE_SHORTCUT_REMOTE => "shortcut_remote",
        /// The table of sockets on the shortcut is full.
        ShortcutsFull = CAUSE_SHORTCUTS_FULL => "shortcuts_full",
        /// The kernel does not take the socket: kTLS, MPTCP, another program's sockmap.
        ShortcutRefused = CAUSE_SHORTCUT_REFUSED => "shortcut_refused",
        /// The shortcut failed its test, or the agent is gone.
        ShortcutOff = CAUSE_SHORTCUT_OFF => "shortcut_off",
        /// A packet of a spliced flow held bytes that had been seen and could not be cut off.
        SpliceCorrupted = CAUSE_SPLICE_CORRUPTED => "splice_corrupted",
        /// Redirected bytes could not be cut into frames: the flow cannot be decoded any more.
        SplicePositionLost = CAUSE_SPLICE_POSITION_LOST => "splice_position_lost",
        /// No backend of a virtual address takes new connections.
        NoBackend = CAUSE_NO_BACKEND => "no_backend",
        /// Nobody is known to listen where a client on another host connects to.
        DatabaseAway = CAUSE_DATABASE_AWAY => "database_away",
        /// A client on another host is to be observed, and its database is not beneath the agent's
        /// cgroup: nobody reads its packets.
        DatabaseUnmetered = CAUSE_DATABASE_UNMETERED => "database_unmetered",
        /// The agent does not serve the caller's network namespace yet, or may not serve more.
        NoNetnsAgent = CAUSE_NO_NETNS_AGENT => "no_netns_agent",
        /// The client's data met the listener, before the kernel could find the accepted socket: it
        /// is sent again.
        Overtaken = CAUSE_OVERTAKEN => "overtaken",
        /// A database on this host has sent on a connection that is gone, and the agent has no listener
        /// that would answer.
        StrayUnanswered = CAUSE_STRAY_UNANSWERED => "stray_unanswered",
        /// A flow that is to be observed, which this kernel cannot: it is left alone unobserved.
        ObserveOff = CAUSE_OBSERVE_OFF => "observe_off",
        /// The user holds as many of the agent's flows as one may, or as one may in a cgroup.
        UserFull = CAUSE_USER_FULL => "user_full",
        /// The processes of the cgroup hold as many of the agent's flows as one cgroup's may.
        CgroupFull = CAUSE_CGROUP_FULL => "cgroup_full",
        /// An application in a sockmap did not read on while bytes waited in TCP: its flow left the
        /// sockmap.
        ReaderStalled = CAUSE_READER_STALLED => "reader_stalled",
        /// The client has as many connections as its rule lets it have: this one is refused.
        ClientLimit = CAUSE_CLIENT_LIMIT => "client_limit",
        /// The table of clients whose connections are counted is full: this one passes uncounted.
        ClientsFull = CAUSE_CLIENTS_FULL => "clients_full",
    }
);

labelled!(
    /// The turn that a message took whose sender is on the shortcut: the shortcut, or TCP and why.
    Turn {
        /// Into the peer's queue, past TCP.
        Shortcut = TURN_SHORTCUT => "shortcut",
        /// TCP: the other end is not on the shortcut (not yet, not beneath the cgroup, or closed).
        Alone = TURN_ALONE => "alone",
        /// Bytes that took TCP have not been read yet.
        Behind = TURN_BEHIND => "behind",
        /// TCP: its bytes have been read, but a reader may still be waiting for more of them.
        ReaderWaits = TURN_READER_WAITS => "reader_waits",
        /// So large that the shortcut gains nothing.
        Bulk = TURN_BULK => "bulk",
        /// The reader has left too much unread.
        FlowFull = TURN_FLOW_FULL => "flow_full",
        /// The host's TCP uses as much memory as it may without pressure.
        HostFull = TURN_HOST_FULL => "host_full",
        /// The agent is gone or says nothing.
        AgentAway = TURN_AGENT_AWAY => "agent_away",
        /// An end is another protocol's, above TCP: kTLS, MPTCP.
        UpperLayer = TURN_UPPER_LAYER => "upper_layer",
        /// TCP: a reader did not read on, or the agent has taken a leg back, and it is leaving the shortcut.
        Left = TURN_LEFT => "left",
        /// TCP: the agent sends to an application whose socket blocks by now.
        ReaderBlocks = TURN_READER_BLOCKS => "reader_blocks",
    }
);

/// Connections of one rule that ended up one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleCount<O = Outcome> {
    /// The rule.
    pub rule: RuleName,
    /// The way.
    pub outcome: O,
    /// How many since the agent started.
    pub connections: u64,
}

/// Sums by rule and outcome, one by one, in the order of the rules' names.
pub(crate) fn one_by_one<O: Copy, const N: usize>(
    sums: HashMap<RuleName, [u64; N]>,
    outcomes: [O; N],
) -> Vec<RuleCount<O>> {
    let sums: BTreeMap<_, _> = sums.into_iter().collect();
    let each = sums.into_iter().flat_map(|(rule, counts)| {
        let counts = outcomes.into_iter().zip(counts);
        counts.map(move |(outcome, connections)| RuleCount {
            rule: rule.clone(),
            outcome,
            connections,
        })
    });
    each.collect()
}

/// A reading of all counters.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Every rule of the present and of past policies, every outcome.
    pub by_rule: Vec<RuleCount>,
    /// Every cause.
    pub by_cause: Vec<(Cause, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_in_the_order_of_the_kernels_numbers() {
        assert_eq!(Outcome::ALL.len(), abi::OUTCOMES as usize);
        assert_eq!(Cause::ALL.len(), abi::CAUSES as usize);
        for (n, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, n);
        }
        assert_eq!(Turn::ALL.len(), abi::TURNS as usize);
        for (n, turn) in Turn::ALL.into_iter().enumerate() {
            assert_eq!(turn as usize, n);
        }
        for (n, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, n);
        }
    }
}
