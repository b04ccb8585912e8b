//! Through the agent, which decodes CQL.

use load::workload::Protocol;

use super::Ours;

/// The path `enrich`, with what every enriched flow gets: statistics by statement.
pub const ENRICH: Ours = Ours {
    name: "enrich",
    about: "the agent carries the flow, decodes CQL and counts statements",
    rule: Ok("action = \"enrich\""),
    carries: |protocol| match protocol {
        Protocol::Redis => Err("it decodes CQL alone"),
        Protocol::Cql | Protocol::Connect => Ok(()),
    },
    outcome: "intercepted",
    is_copied: true,
};
