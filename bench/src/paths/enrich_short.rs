//! Through the agent, with the client's connection to it past TCP.

use load::workload::Job;
use sandbox::Metric;

use super::{
    enrich::ENRICH,
    ours::{Ours, sessions, sum},
};

/// The path `enrich-short`: as `enrich`, of a rule that lets the clients' sockets into a sockmap.
pub const ENRICH_SHORT: Ours = Ours {
    name: "enrich-short",
    about: "as enrich; what client and agent send each other skips TCP",
    agent: "# short legs",
    rule: Ok("action = \"enrich\"\nshortcut = \"client\""),
    carries: |job: &Job| match sessions(job) {
        // `underpass_long_legs_total{reason="blocks"}` would count them.
        Ok(()) if job.blocks() => Err("connections of sockets that block are not short"),
        carries => carries,
    },
    slipped,
    ..ENRICH
};

/// The path `enrich-short-both`: as `enrich-short`, and the databases' sockets are let in, too.
pub const ENRICH_SHORT_BOTH: Ours = Ours {
    name: "enrich-short-both",
    about: "as enrich; what the agent exchanges with client and database skips TCP",
    agent: "# short legs on both sides",
    rule: Ok("action = \"enrich\"\nshortcut = true"),
    ..ENRICH_SHORT
};

/// A connection's first messages may be sent before the agent's end is there.
const MOST_PAST_TCP: f64 = 0.95;

fn slipped(_: f64, metrics: &Metric) -> Option<String> {
    let messages = |labels: &[&str]| sum(metrics, "underpass_shortcut_messages_total", labels);
    let (all, short) = (messages(&[]), messages(&["way=\"shortcut\""]));
    (short == 0.0 || short < MOST_PAST_TCP * all)
        .then(|| format!("{short} of {all} messages skipped TCP"))
}
