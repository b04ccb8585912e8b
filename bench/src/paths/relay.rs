//! The agent copies and does not decode. It exists as what `enrich` falls back to when a flow
//! cannot be decoded; no rule asks for it yet, so it cannot be compared.

use super::{Ours, conversations};

/// The path `relay`.
pub const RELAY: Ours = Ours {
    name: "relay",
    about: "the agent carries the flow and decodes nothing",
    rule: Err("a fallback so far: no rule can ask for it"),
    carries: conversations,
    outcome: "intercepted",
    is_copied: true,
};
