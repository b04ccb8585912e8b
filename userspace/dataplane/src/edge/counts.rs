//! Counters of the edge: packets by verdict, connections by rule.

use ebpf::abi;

use crate::counters::{RuleCount, labelled};

labelled!(
    /// The verdict on a packet; each packet has one. Verdicts that pass a packet up are about what a
    /// client has sent; a backend's packets are dropped in the same cases.
    EdgeVerdict {
        /// No rule of the edge speaks of it.
        Other = EDGE_OTHER => "other",
        /// Passed, as its rule says.
        Allowed = EDGE_ALLOWED => "allowed",
        /// Dropped by its rule.
        Denied = EDGE_DENIED => "denied",
        /// A SYN that came too fast after others of its source; dropped.
        Limited = EDGE_LIMITED => "limited",
        /// Forwarded to the backend of its connection.
        ToBackend = EDGE_TO_BACKEND => "to_backend",
        /// Forwarded to the client of its connection.
        ToClient = EDGE_TO_CLIENT => "to_client",
        /// An ICMP error about a forwarded connection, sent on.
        IcmpError = EDGE_ICMP_ERROR => "icmp_error",
        /// The next hop's MAC is not known yet; dropped.
        NoNeighbour = EDGE_NO_NEIGHBOUR => "no_neighbour",
        /// Passed up: not a segment that TCP would send.
        Malformed = EDGE_MALFORMED => "malformed",
        /// Passed up: a fragment.
        Fragment = EDGE_FRAGMENT => "fragment",
        /// Passed up: options in its IPv4 header.
        IpOptions = EDGE_IP_OPTIONS => "ip_options",
        /// Passed up: extension headers behind its IPv6 header.
        ExtensionHeader = EDGE_EXTENSION_HEADER => "extension_header",
        /// Passed up: VLAN tags.
        Vlan = EDGE_VLAN => "vlan",
        /// Passed up: its time to live ends here.
        Ttl = EDGE_TTL => "ttl",
        /// Larger than the next hop takes: its sender is told by ICMP.
        TooBig = EDGE_TOO_BIG => "too_big",
        /// Passed up: the host has no route for it, or does not forward.
        NoRoute = EDGE_NO_ROUTE => "no_route",
        /// Passed up: no backend takes new connections.
        NoBackend = EDGE_NO_BACKEND => "no_backend",
        /// Passed up: no port of the gateway is free towards its backend.
        NoPort = EDGE_NO_PORT => "no_port",
        /// Passed up: the table of connections did not take it.
        TableFull = EDGE_TABLE_FULL => "table_full",
        /// A client's, of a forwarded connection whose backend was given up: answered with a reset.
        Reset = EDGE_RESET => "reset",
    }
);

labelled!(
    /// The outcome of a connection that a rule of the edge holds for. Packets that a rule denies are
    /// counted one by one.
    EdgeOutcome {
        /// Given to the stack.
        Allowed = EDGE_OUTCOME_ALLOWED => "allowed",
        /// Dropped.
        Denied = EDGE_OUTCOME_DENIED => "denied",
        /// Dropped: its source opens them too fast.
        Limited = EDGE_OUTCOME_LIMITED => "limited",
        /// Sent to a backend.
        Forwarded = EDGE_OUTCOME_FORWARDED => "forwarded",
        /// Could not be forwarded, and was given to the stack.
        PassedUp = EDGE_OUTCOME_PASSED_UP => "passed_up",
    }
);

/// Connections of one rule that had one outcome.
pub type EdgeRuleCount = RuleCount<EdgeOutcome>;

/// Everything that is counted.
#[derive(Clone, Debug)]
pub struct EdgeCounters {
    /// Packets since the edge was first attached.
    pub packets: Vec<(EdgeVerdict, u64)>,
    /// Connections since this agent's start.
    pub by_rule: Vec<EdgeRuleCount>,
}

impl EdgeCounters {
    /// Packets of one verdict.
    pub fn packets_of(&self, verdict: EdgeVerdict) -> u64 {
        let found = self.packets.iter().find(|(f, _)| *f == verdict);
        found.map_or(0, |(_, n)| *n)
    }
}
