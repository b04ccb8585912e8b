//! Not there yet.

use super::{Ours, conversations, never};

/// The path `shortcut`.
pub const SHORTCUT: Ours = Ours {
    name: "shortcut",
    about: "both ends on this host: sk_msg hands data to the peer's socket, past TCP",
    agent: "",
    rule: Err("has not landed"),
    introduces: false,
    carries: conversations,
    outcome: "untouched",
    slipped: never,
    is_copied: Some(false),
};
