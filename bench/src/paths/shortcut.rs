//! Decided at layer 4, and past TCP where both ends are on this host.

use super::{Ours, conversations};

/// The path `shortcut`. Its agent is one of its own, which sees the databases, too.
pub const SHORTCUT: Ours = Ours {
    name: "shortcut",
    about: "both ends on this host: sk_msg hands data to the peer's socket, past TCP",
    rule: Ok("action = \"bypass\"\nshortcut = true"),
    carries: conversations,
    outcome: "untouched",
    is_copied: false,
};
