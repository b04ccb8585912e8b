//! Decided at layer 4: the connect hook, or a gateway's edge, leaves the flow to the kernel.

use load::workload::{Protocol, Topology};

use super::ours::{Ours, anything, never, sessions};

/// The path `untouched`, of the action `bypass`.
pub const BYPASS: Ours = Ours {
    name: "bypass",
    at: Topology::Host,
    about: "the connect hook looks the rule up and leaves the socket alone",
    agent: "",
    rule: "action = \"bypass\"",
    introduces: false,
    carries: anything,
    outcome: "untouched",
    slipped: never,
    is_copied: Some(false),
};

/// The path `untouched`, of a session rule that bypasses and remembers: the agent has seen another connection of the process.
pub const REMEMBERED: Ours = Ours {
    name: "remembered",
    about: "the agent has seen one session of the process; the socket is left alone",
    rule: "protocol = [\"v3\", \"v4\", \"v5\"]\naction = \"bypass\"\npath = \"inline\"\nremember = \"24h\"",
    introduces: true,
    carries: sessions,
    outcome: "remembered",
    ..BYPASS
};

/// The line that gives paths an agent of their own. Where a rule observes, programs run for the packets of every socket beneath
/// the agent's cgroup, also of those that are left alone.
const ON_PACKETS: &str = "# its rules have programs run for packets";

/// The path `untouched`, of the action `bypass` where another rule observes.
pub const BESIDE: Ours = Ours {
    name: "beside",
    about: "as bypass, where another rule observes: cgroup_skb programs find that the socket is left alone",
    agent: ON_PACKETS,
    rule: "action = \"bypass\"\n[[rule]]\nname = \"elsewhere\"\nto = [\"192.0.2.1:9042\"]\naction = \"observe\"",
    ..BYPASS
};

/// The path `untouched`, of the action `observe`: passive programs on the client's packets.
pub const OBSERVE: Ours = Ours {
    name: "observe",
    about: "the socket is left alone; cgroup_skb programs read CQL headers in passing",
    agent: ON_PACKETS,
    rule: "action = \"observe\"",
    carries: |job| match job.protocol {
        Protocol::Redis => Err("it reads CQL headers alone"),
        Protocol::Cql | Protocol::Connect => Ok(()),
    },
    ..BYPASS
};

/// The path `forward`, of a rule with backends whose action is `bypass`: no socket of the gateway sees the flow.
pub const FORWARD: Ours = Ours {
    name: "forward",
    at: Topology::Gateway,
    about: "a gateway's XDP program (generic mode) rewrites addresses and sends packets on",
    outcome: "forwarded",
    ..BYPASS
};
