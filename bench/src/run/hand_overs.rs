//! The hand-overs of flows to the kernel, from an agent's metrics.

use report::schema::HandOvers;
use sandbox::Metric;

const SECONDS: &str = "underpass_handover_seconds";

/// Reads the hand-overs. None: the agent has handed nothing over. An agent that does carries one
/// path's flows alone.
pub fn of(metrics: &Metric) -> Option<HandOvers> {
    let count = metrics.get(&format!("{SECONDS}_count")).copied()?;
    let bucket = format!("{SECONDS}_bucket{{le=\"");
    let buckets = metrics.iter().filter_map(|(name, count)| {
        let seconds = name.strip_prefix(&bucket)?.strip_suffix("\"}")?;
        let seconds: f64 = seconds.parse().ok()?;
        // The last bucket holds whatever took longer: that is no bound.
        seconds
            .is_finite()
            .then_some((seconds * 1e6, *count as u64))
    });
    let mut at_most_us: Vec<_> = buckets.collect();
    at_most_us.sort_by(|a, b| a.0.total_cmp(&b.0));
    (count > 0.0).then_some(HandOvers {
        count: count as u64,
        at_most_us,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(lines: &[(&str, f64)]) -> Metric {
        let named = |(name, count): &(&str, f64)| (format!("{SECONDS}_{name}"), *count);
        lines.iter().map(named).collect()
    }

    #[test]
    fn buckets_are_in_order_whatever_their_names_order_is() {
        let read = of(&metrics(&[
            ("bucket{le=\"+Inf\"}", 200.0),
            ("bucket{le=\"0.001\"}", 199.0),
            ("bucket{le=\"0.0005\"}", 150.0),
            ("bucket{le=\"0.01\"}", 199.0),
            ("count", 200.0),
            ("sum", 0.1),
        ]))
        .unwrap();
        let expected = [(500.0, 150), (1_000.0, 199), (10_000.0, 199)];
        assert_eq!((read.count, &*read.at_most_us), (200, &expected[..]));
        assert_eq!(read.quantile_us(0.5), Some(500.0));
        assert_eq!(read.quantile_us(0.99), Some(1_000.0));
        assert_eq!(read.quantile_us(0.999), None, "nobody knows how long");
    }

    #[test]
    fn without_a_hand_over_there_is_nothing_to_say() {
        assert_eq!(of(&metrics(&[("count", 0.0)])), None);
        assert_eq!(of(&Metric::new()), None);
        assert_eq!(HandOvers::default().quantile_us(0.99), None);
    }
}
