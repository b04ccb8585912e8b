//! Through the agent, which decodes CQL.

use load::workload::{Job, Topology};

use super::{
    ours::{Ours, cql, never, sessions},
    shortcut::past_tcp,
};

/// A rule whose flows go through the agent because a step may refuse something: nothing that a workload, ours or
/// another generator's, asks for as it begins or later. `$more` are lines of the rule.
macro_rules! guarded {
    ($more:literal) => {
        concat!(
            "action = \"enrich\"\n",
            $more,
            "pipeline = [{ transform = \"guard\", refuse = [\"roles\", \"truncate\"] }]"
        )
    };
}

/// The path `enrich`, with what every enriched flow gets: statistics by statement. It goes through the agent because a step may refuse something.
pub const ENRICH: Ours = Ours {
    name: "enrich",
    at: Topology::Host,
    about: "the agent carries the flow, decodes CQL, counts statements, and `guard` looks whether one is to be refused",
    agent: "",
    rule: guarded!(""),
    introduces: false,
    carries: cql,
    outcome: "intercepted",
    slipped: never,
    is_copied: Some(true),
};

/// The path `enrich-short`: as `enrich`, of a rule that lets the clients' sockets into a sockmap.
pub const ENRICH_SHORT: Ours = Ours {
    name: "enrich-short",
    about: "as enrich; what client and agent send each other skips TCP",
    agent: "# short legs",
    rule: guarded!("shortcut = \"client\"\n"),
    carries: |job: &Job| match sessions(job) {
        // `underpass_long_legs_total{reason="blocks"}` would count them.
        Ok(()) if job.blocks() => Err("connections of sockets that block are not short"),
        carries => carries,
    },
    slipped: past_tcp,
    ..ENRICH
};

/// The path `enrich-short-both`: as `enrich-short`, and the databases' sockets are let in, too.
pub const ENRICH_SHORT_BOTH: Ours = Ours {
    name: "enrich-short-both",
    about: "as enrich; what the agent exchanges with client and database skips TCP",
    agent: "# short legs on both sides",
    rule: guarded!("shortcut = true\n"),
    ..ENRICH_SHORT
};

/// The path `stats`: what enrichment costs with the step that most flows will have.
pub const STATS: Ours = Ours {
    name: "stats",
    about: "as enrich, with the step `stats`: rows, bytes, errors, levels, the most frequent statements",
    rule: "action = \"enrich\"\npath = \"inline\"\npipeline = [{ transform = \"stats\" }]",
    ..ENRICH
};

/// The path `fold`: what the database saves where it has one connection to wake up for.
pub const FOLD: Ours = Ours {
    name: "fold",
    about: "as enrich, with the step `fold`: reads and writes by one connection for all",
    rule: "action = \"enrich\"\npipeline = [{ transform = \"fold\" }]",
    ..ENRICH
};

/// The path `fold-short`: as `fold`, of a rule that lets the clients' sockets into a sockmap.
pub const FOLD_SHORT: Ours = Ours {
    name: "fold-short",
    about: "as fold; what client and agent send each other skips TCP",
    agent: "# shared connections, and short legs",
    rule: "action = \"enrich\"\nshortcut = \"client\"\npipeline = [{ transform = \"fold\" }]",
    ..ENRICH_SHORT
};

/// The path `fold-short-both`: as `fold-short`, and the shared connections skip TCP, too.
pub const FOLD_SHORT_BOTH: Ours = Ours {
    name: "fold-short-both",
    about: "as fold-short; and what agent and database send each other",
    agent: "# shared connections, and short legs on both sides",
    rule: "action = \"enrich\"\nshortcut = true\npipeline = [{ transform = \"fold\" }]",
    ..FOLD_SHORT
};
