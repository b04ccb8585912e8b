//! The use of the connections that flows share, from an agent's metrics.

use report::schema::Shared;
use sandbox::Metric;

use crate::paths::ours::sum;

/// Reads what was done on the connections that this rule's flows share. None: nothing.
pub fn of(rule: &str, metrics: &Metric) -> Option<Shared> {
    let rule = format!("rule=\"{rule}\"");
    let count = |name: &str, labels: &[&str]| {
        let labels = [&[&*rule], labels].concat();
        sum(metrics, &format!("underpass_fold_{name}_total"), &labels) as u64
    };
    let shared = Shared {
        requests: count("requests", &["outcome=\"folded\""]),
        writes: count("writes", &[]),
        reads: count("reads", &[]),
    };
    (shared.writes > 0 && shared.reads > 0).then_some(shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_its_own() {
        let sample = |name: &str, labels: &str, count| {
            (format!("underpass_fold_{name}_total{{{labels}}}"), count)
        };
        let metrics = Metric::from([
            sample("requests", "outcome=\"folded\",rule=\"fold\"", 60.0),
            sample("requests", "outcome=\"away\",rule=\"fold\"", 8.0),
            sample("requests", "outcome=\"folded\",rule=\"other\"", 7.0),
            sample("writes", "rule=\"fold\"", 20.0),
            sample("reads", "rule=\"fold\"", 30.0),
            sample("writes", "rule=\"other\"", 0.0),
        ]);
        let expected = Shared {
            requests: 60,
            writes: 20,
            reads: 30,
        };
        assert_eq!(of("fold", &metrics), Some(expected));
        assert_eq!(of("other", &metrics), None);
        assert_eq!(of("stats", &metrics), None);
    }
}
