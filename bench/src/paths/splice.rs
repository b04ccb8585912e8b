//! In the agent until the handshake has decided the flow; from then on in the kernel, or copied by the agent where nothing is
//! spliced.

use load::workload::Job;
use sandbox::Metric;

use super::{
    Topology,
    ours::{Ours, sessions, sum},
};

/// The path `splice`, of a session rule that bypasses: here the database is on the client's host.
pub const SPLICE: Ours = Ours {
    name: "splice",
    at: Topology::Host,
    about: "starts in the agent, is handed to the kernel after the handshake",
    agent: "splice = \"auto\"",
    rule: "protocol = [\"v3\", \"v4\", \"v5\"]\naction = \"bypass\"\npath = \"inline\"\nshortcut = true",
    introduces: false,
    carries: |job: &Job| match sessions(job) {
        // `underpass_splice_refusals_total{reason="client_blocks"}` would count them.
        Ok(()) if job.blocks() => Err("sockets that block are not spliced"),
        carries => carries,
    },
    outcome: "intercepted",
    slipped,
    // The handshake, and what a side did not take in time.
    is_copied: None,
};

/// The path `splice` by the engine that carries flows whose database is on another host.
pub const SPLICE_EGRESS: Ours = Ours {
    name: "splice-egress",
    about: "as splice, by the engine of databases on other hosts, though this one is here",
    agent: "splice = \"egress\"",
    ..SPLICE
};

/// The path `relay`, of a session rule that bypasses where nothing is spliced: what splice falls back to.
pub const RELAY: Ours = Ours {
    name: "relay",
    about: "the agent carries the flow and decodes nothing after the handshake",
    agent: "splice = \"off\"",
    rule: "protocol = [\"v3\", \"v4\", \"v5\"]\naction = \"bypass\"\npath = \"inline\"",
    carries: sessions,
    slipped: was_not_relayed,
    is_copied: Some(true),
    ..SPLICE
};

/// Checks that all flows were decided by their session, every one of them, and none handed over.
fn was_not_relayed(connections: f64, metrics: &Metric) -> Option<String> {
    let labels = ["rule=\"relay\"", "action=\"bypass\""];
    let decided = sum(metrics, "underpass_sessions_decided_total", &labels);
    let handovers = sum(metrics, "underpass_handovers_total", &[]);
    (decided < connections || handovers > 0.0)
        .then(|| format!("{decided} of {connections} flows were bypassed, {handovers} handed over"))
}

/// The most bytes that the generator and a database exchange before a flow is handed over: an
/// OPTIONS, a STARTUP, and their answers.
const HANDSHAKE_BYTES: f64 = 128.0;

/// Checks that each flow was handed over at least once, and that most bytes behind the handshakes
/// went past the agent. Only this path's flows are in its agent.
fn slipped(connections: f64, metrics: &Metric) -> Option<String> {
    let of = |name| sum(metrics, name, &[]);
    let (handovers, refusals) = (
        of("underpass_handovers_total"),
        of("underpass_splice_refusals_total"),
    );
    if handovers < connections || refusals > 0.0 {
        return Some(format!(
            "{handovers} hand-overs and {refusals} refusals for {connections} connections"
        ));
    }
    for direction in ["to_database", "to_client"] {
        let label = format!("direction={direction:?}");
        let bytes = |name| sum(metrics, name, &[&label]);
        let (all, spliced) = (
            bytes("underpass_bytes_total"),
            bytes("underpass_spliced_bytes_total"),
        );
        if spliced * 2.0 < all - connections * HANDSHAKE_BYTES || spliced == 0.0 {
            return Some(format!(
                "the kernel carried only {spliced} of {all} bytes {direction}"
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(handovers: f64, refusals: f64, to_client: f64) -> Metric {
        let sample = |name: &str, count| (name.to_owned(), count);
        let bytes = |name: &str, direction: &str| {
            format!("underpass_{name}_total{{direction=\"{direction}\"}}")
        };
        Metric::from([
            sample("underpass_handovers_total", handovers),
            sample(
                "underpass_splice_refusals_total{reason=\"client_blocks\"}",
                refusals,
            ),
            sample(&bytes("bytes", "to_database"), 1e6),
            sample(&bytes("spliced_bytes", "to_database"), 0.9e6),
            sample(&bytes("bytes", "to_client"), 1e6),
            sample(&bytes("spliced_bytes", "to_client"), to_client),
        ])
    }

    #[test]
    fn flows_that_stayed_in_the_agent_are_noticed() {
        assert_eq!(slipped(8.0, &metrics(8.0, 0.0, 0.9e6)), None);
        for (wrong, said) in [
            (metrics(7.0, 0.0, 0.9e6), "7 hand-overs"),
            (metrics(8.0, 1.0, 0.9e6), "1 refusals"),
            (metrics(8.0, 0.0, 0.4e6), "bytes to_client"),
            (metrics(8.0, 0.0, 0.0), "bytes to_client"),
        ] {
            let why = slipped(8.0, &wrong).unwrap();
            assert!(why.contains(said), "{why}");
        }
        // Many connections that do little are mostly handshakes.
        assert_eq!(slipped(4e3, &metrics(4e3, 0.0, 0.4e6)), None);
    }

    #[test]
    fn flows_that_were_decoded_or_handed_over_are_noticed() {
        let metrics = |decided, handovers| {
            let rule = "underpass_sessions_decided_total{action=\"bypass\",rule=\"relay\"}";
            let handed = "underpass_handovers_total";
            Metric::from([(rule.to_owned(), decided), (handed.to_owned(), handovers)])
        };
        assert_eq!(was_not_relayed(3.0, &metrics(3.0, 0.0)), None);
        assert!(was_not_relayed(3.0, &metrics(2.0, 0.0)).is_some());
        assert!(was_not_relayed(3.0, &metrics(3.0, 1.0)).is_some());
    }
}
