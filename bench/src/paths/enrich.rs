//! Through the agent, which decodes CQL.

use load::workload::Protocol;

use super::{Ours, never};

/// The path `enrich`, with what every enriched flow gets: statistics by statement.
pub const ENRICH: Ours = Ours {
    name: "enrich",
    about: "the agent carries the flow, decodes CQL and counts statements",
    agent: "",
    rule: Ok("action = \"enrich\""),
    introduces: false,
    carries: |job| match job.protocol {
        Protocol::Redis => Err("it decodes CQL alone"),
        Protocol::Cql | Protocol::Connect => Ok(()),
    },
    outcome: "intercepted",
    slipped: never,
    is_copied: Some(true),
};
