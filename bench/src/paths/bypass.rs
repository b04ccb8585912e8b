//! Decided at layer 4: the connect hook leaves the socket alone.

use super::{
    Topology,
    ours::{Ours, anything, never},
};

/// The path `untouched`, of the action `bypass`.
pub const BYPASS: Ours = Ours {
    name: "bypass",
    at: Topology::Host,
    about: "the connect hook looks the rule up and leaves the socket alone",
    agent: "",
    rule: Ok("action = \"bypass\""),
    introduces: false,
    carries: anything,
    outcome: "untouched",
    slipped: never,
    is_copied: Some(false),
};
