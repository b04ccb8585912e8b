//! Left alone, because the agent has seen another connection of the process.

use super::{
    Topology,
    ours::{Ours, never, sessions},
};

/// The path `untouched`, of a session rule that bypasses and remembers.
pub const REMEMBERED: Ours = Ours {
    name: "remembered",
    at: Topology::Host,
    about: "the agent has seen one session of the process; the socket is left alone",
    agent: "",
    rule: Ok(
        "protocol = [\"v3\", \"v4\", \"v5\"]\naction = \"bypass\"\npath = \"inline\"\nremember = \"24h\"",
    ),
    introduces: true,
    carries: sessions,
    outcome: "remembered",
    slipped: never,
    is_copied: Some(false),
};
