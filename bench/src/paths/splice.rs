//! Not there yet.

use super::{Ours, conversations};

/// The path `splice`.
pub const SPLICE: Ours = Ours {
    name: "splice",
    about: "starts in the agent, is handed to the kernel after the handshake",
    rule: Err("has not landed"),
    carries: conversations,
    outcome: "intercepted",
    is_copied: false,
};
