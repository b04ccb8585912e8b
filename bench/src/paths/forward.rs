//! Not there yet.

use super::{Ours, conversations};

/// The path `forward`.
pub const FORWARD: Ours = Ours {
    name: "forward",
    about: "a gateway's XDP program rewrites addresses and sends packets on",
    rule: Err("has not landed"),
    carries: conversations,
    outcome: "untouched",
    is_copied: false,
};
