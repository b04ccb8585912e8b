//! Decided at layer 4, and past TCP where both ends are on this host.

use sandbox::Metric;

use super::{
    ours::{Ours, conversations, sum},
    untouched::BYPASS,
};

/// The path `shortcut`. Its agent is one of its own, which sees the databases, too.
pub const SHORTCUT: Ours = Ours {
    name: "shortcut",
    about: "both ends on this host: sk_msg hands data to the peer's socket, past TCP",
    // A key of its own: attached where it sees the databases, too.
    agent: "# beside the databases",
    rule: "action = \"bypass\"\nshortcut = true",
    carries: conversations,
    slipped: past_tcp,
    ..BYPASS
};

/// A connection's first message may be sent before its other end is there; what is larger than
/// the shortcut is good for takes TCP.
const MOST_PAST_TCP: f64 = 0.95;

/// Checks that nearly all messages skipped TCP.
pub fn past_tcp(_: f64, metrics: &Metric) -> Option<String> {
    let messages = |labels: &[&str]| sum(metrics, "underpass_shortcut_messages_total", labels);
    let (all, shortcut) = (messages(&[]), messages(&["way=\"shortcut\""]));
    (shortcut == 0.0 || shortcut < MOST_PAST_TCP * all)
        .then(|| format!("{shortcut} of {all} messages skipped TCP"))
}
