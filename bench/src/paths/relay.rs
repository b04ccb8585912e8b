//! The agent copies and does not decode: what splice falls back to.

use sandbox::Metric;

use super::{
    Topology,
    ours::{Ours, sessions, sum},
};

/// The path `relay`, of a session rule that bypasses where nothing is spliced.
pub const RELAY: Ours = Ours {
    name: "relay",
    at: Topology::Host,
    about: "the agent carries the flow and decodes nothing after the handshake",
    agent: "splice = \"off\"",
    rule: Ok("protocol = [\"v3\", \"v4\", \"v5\"]\naction = \"bypass\"\npath = \"inline\""),
    introduces: false,
    carries: sessions,
    outcome: "intercepted",
    slipped,
    is_copied: Some(true),
};

/// Decided by its session, every one of them, and none handed over.
fn slipped(connections: f64, metrics: &Metric) -> Option<String> {
    let labels = ["rule=\"relay\"", "action=\"bypass\""];
    let decided = sum(metrics, "underpass_sessions_decided_total", &labels);
    let handovers = sum(metrics, "underpass_handovers_total", &[]);
    (decided < connections || handovers > 0.0)
        .then(|| format!("{decided} of {connections} flows were bypassed, {handovers} handed over"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_that_were_decoded_or_handed_over_are_noticed() {
        let metrics = |decided, handovers| {
            let rule = "underpass_sessions_decided_total{action=\"bypass\",rule=\"relay\"}";
            let handed = "underpass_handovers_total";
            Metric::from([(rule.to_owned(), decided), (handed.to_owned(), handovers)])
        };
        assert_eq!(slipped(3.0, &metrics(3.0, 0.0)), None);
        assert!(slipped(3.0, &metrics(2.0, 0.0)).is_some());
        assert!(slipped(3.0, &metrics(3.0, 1.0)).is_some());
    }
}
