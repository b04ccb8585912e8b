//! Through the agent, which decodes CQL and takes statistics.

use super::{enrich::ENRICH, ours::Ours};

/// The path `stats`: what enrichment costs with the step that most flows will have.
pub const STATS: Ours = Ours {
    name: "stats",
    about: "as enrich, with the step `stats`: rows, bytes, errors, levels, the most frequent statements",
    rule: Ok("action = \"enrich\"\npath = \"inline\"\npipeline = [{ transform = \"stats\" }]"),
    ..ENRICH
};
