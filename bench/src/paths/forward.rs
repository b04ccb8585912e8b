//! Decided at the gateway's edge: no socket of it sees the flow.

use super::{
    Topology,
    ours::{Ours, anything, never},
};

/// The path `forward`, of a rule with backends whose action is `bypass`.
pub const FORWARD: Ours = Ours {
    name: "forward",
    at: Topology::Gateway,
    about: "a gateway's XDP program (generic mode) rewrites addresses and sends packets on",
    agent: "",
    rule: Ok("action = \"bypass\""),
    introduces: false,
    carries: anything,
    outcome: "forwarded",
    slipped: never,
    is_copied: Some(false),
};
