//! Left alone, and decoded from copies of its packets.

use sandbox::Metric;

use super::{
    ours::{Ours, cql, sum},
    untouched::OBSERVE,
};

/// The path `tap`: what enrichment costs with the step `stats` when nothing has to be changed.
pub const TAP: Ours = Ours {
    name: "tap",
    about: "the socket is left alone; the agent decodes copies of its packets, with the step `stats`",
    rule: "action = \"enrich\"\nfail = \"open\"\npath = \"tap\"\npipeline = [{ transform = \"stats\" }]",
    carries: cql,
    slipped,
    ..OBSERVE
};

/// The share of frames that may still be on their way to the agent when it is asked.
const UNDER_WAY: f64 = 0.01;

/// Checks that nearly all requests that the kernel has counted were read from copies.
fn slipped(_: f64, metrics: &Metric) -> Option<String> {
    let rule = "rule=\"tap\"";
    let of = |opcode| {
        let opcode = format!("opcode=\"{opcode}\"");
        sum(
            metrics,
            "underpass_observed_requests_total",
            &[rule, &opcode],
        )
    };
    let passed = of("query") + of("execute") + of("batch");
    let read = sum(metrics, "underpass_stats_requests_total", &[rule]);
    let gaps = sum(metrics, "underpass_tap_gaps_total", &[rule]);
    let is_read = read >= passed * (1.0 - UNDER_WAY);
    (!is_read || gaps > 0.0)
        .then(|| format!("{read} of {passed} requests were read, with {gaps} gaps"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_were_not_read_are_noticed() {
        let metrics = |read: f64, gaps: f64| {
            let of = |name: &str, count| (name.to_owned(), count);
            Metric::from([
                of(
                    "underpass_observed_requests_total{opcode=\"execute\",rule=\"tap\"}",
                    1e4,
                ),
                of(
                    "underpass_observed_requests_total{opcode=\"startup\",rule=\"tap\"}",
                    1e4,
                ),
                of(
                    "underpass_stats_requests_total{kind=\"select\",rule=\"tap\"}",
                    read,
                ),
                of(
                    "underpass_stats_requests_total{kind=\"select\",rule=\"stats\"}",
                    1e4,
                ),
                of("underpass_tap_gaps_total{rule=\"tap\"}", gaps),
            ])
        };
        assert_eq!(slipped(8.0, &metrics(9_999.0, 0.0)), None);
        assert!(slipped(8.0, &metrics(9_000.0, 0.0)).is_some());
        assert!(slipped(8.0, &metrics(1e4, 1.0)).is_some());
    }
}
