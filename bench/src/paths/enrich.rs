//! Through the agent, which decodes CQL.

use super::{
    Topology,
    ours::{Ours, cql, never},
};

/// The path `enrich`, with what every enriched flow gets: statistics by statement.
pub const ENRICH: Ours = Ours {
    name: "enrich",
    at: Topology::Host,
    about: "the agent carries the flow, decodes CQL and counts statements",
    agent: "",
    rule: Ok("action = \"enrich\""),
    introduces: false,
    carries: cql,
    outcome: "intercepted",
    slipped: never,
    is_copied: Some(true),
};
