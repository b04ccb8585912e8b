//! The BPF programs' own counters, as `/metrics` shows them.

use std::sync::{Arc, Mutex, PoisonError};

use dataplane::Dataplane;
use prometheus::{
    IntCounterVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// The counts of the BPF programs, read when they are asked for.
pub struct KernelCounters {
    dataplane: Arc<Mutex<Option<Dataplane>>>,
    descriptions: [IntCounterVec; 2],
}

impl KernelCounters {
    /// Makes the counters over the data plane, which may have been detached.
    ///
    /// # Errors
    /// Errors are those of [`Metrics::register`](telemetry::Metrics::register).
    pub fn new(dataplane: Arc<Mutex<Option<Dataplane>>>) -> prometheus::Result<Self> {
        Ok(Self {
            dataplane,
            descriptions: Self::empty()?,
        })
    }

    fn empty() -> prometheus::Result<[IntCounterVec; 2]> {
        let by_rule = Opts::new(
            "underpass_connections_total",
            "connect() calls, by deciding rule and outcome; those with outcome `shadowed` count for a rule that decides, too.",
        );
        let by_cause = Opts::new(
            "underpass_safer_path_total",
            "Flows that took a safer path than their rule asked for, by cause.",
        );
        Ok([
            IntCounterVec::new(by_rule, &["rule", "outcome"])?,
            IntCounterVec::new(by_cause, &["cause"])?,
        ])
    }

    /// Returns what [`Collector::collect`] gives, with one sample each that says zero: for
    /// documentation.
    pub fn declared(&self) -> Vec<MetricFamily> {
        let [by_rule, by_cause] = &self.descriptions;
        by_rule.with_label_values(&["", ""]);
        by_cause.with_label_values(&[""]);
        self.descriptions
            .iter()
            .flat_map(Collector::collect)
            .collect()
    }

    fn read(&self) -> Option<[IntCounterVec; 2]> {
        let dataplane = self
            .dataplane
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let counters = dataplane.as_ref()?.counters();
        let counters = counters
            .inspect_err(|e| tracing::error!("cannot read counters: {e}"))
            .ok()?;
        let [by_rule, by_cause] = Self::empty().ok()?;
        for count in &counters.by_rule {
            by_rule
                .with_label_values(&[count.rule.as_str(), count.outcome.as_str()])
                .inc_by(count.connections);
        }
        for (cause, flows) in &counters.by_cause {
            by_cause.with_label_values(&[cause.as_str()]).inc_by(*flows);
        }
        Some([by_rule, by_cause])
    }
}

impl Collector for KernelCounters {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().flat_map(|d| d.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.read()
            .iter()
            .flatten()
            .flat_map(Collector::collect)
            .collect()
    }
}
