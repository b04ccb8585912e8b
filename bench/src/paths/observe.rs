//! Not there yet.

use super::{Ours, conversations};

/// The path `observe`.
pub const OBSERVE: Ours = Ours {
    name: "observe",
    about: "passive cgroup_skb programs read CQL headers in passing",
    rule: Err("has not landed"),
    carries: conversations,
    outcome: "untouched",
    is_copied: false,
};
