//! Not there yet.

use super::{Ours, conversations, never};

/// The path `forward`.
pub const FORWARD: Ours = Ours {
    name: "forward",
    about: "a gateway's XDP program rewrites addresses and sends packets on",
    agent: "",
    rule: Err("has not landed"),
    introduces: false,
    carries: conversations,
    outcome: "untouched",
    slipped: never,
    is_copied: Some(false),
};
