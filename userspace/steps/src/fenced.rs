//! `underpass_decoder_panics_total`: answers of databases on which the crate behind `cql-client`'s fence panicked.

use prometheus::{
    IntCounter, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// A counter that somebody else counts, read when it is asked for.
struct CountedElsewhere {
    count: fn() -> u64,
    counter: IntCounter,
}

/// Registers the counter of panics behind the fence.
///
/// # Errors
/// Two metrics of one name.
pub(crate) fn register(registry: &Registry) -> prometheus::Result<()> {
    let counter = IntCounter::new(
        "underpass_decoder_panics_total",
        "Answers to the agent's own questions (health checks, log-ins of `mirror` and `fold`) that made the decoder panic. The \
         conversation was given up; no flow is read by that decoder.",
    )?;
    registry.register(Box::new(CountedElsewhere {
        count: cql_client::panics,
        counter,
    }))
}

impl Collector for CountedElsewhere {
    fn desc(&self) -> Vec<&Desc> {
        self.counter.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.counter
            .inc_by((self.count)().saturating_sub(self.counter.get()));
        self.counter.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    static COUNTED: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn what_was_counted_elsewhere_is_shown_and_never_twice() {
        let counter = IntCounter::new("a", "b").unwrap();
        let shown = counter.clone();
        let elsewhere = CountedElsewhere {
            count: || COUNTED.load(Relaxed),
            counter,
        };
        for (counted, expected) in [(0, 0), (3, 3), (3, 3), (5, 5)] {
            COUNTED.store(counted, Relaxed);
            elsewhere.collect();
            assert_eq!(shown.get(), expected);
        }
    }

    #[test]
    fn panics_behind_the_fence_have_a_metric() {
        let registry = Registry::new();
        register(&registry).unwrap();
        let families = registry.gather();
        assert_eq!(families[0].name(), "underpass_decoder_panics_total");
    }
}
