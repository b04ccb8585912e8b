//! The metrics of `trace`.

use export::Full;
use prometheus::{IntCounter, IntCounterVec, Registry};
use telemetry::counters_by;

use super::client::Failure;

/// The metrics of spans and their export.
#[derive(Clone, Debug)]
pub struct TraceMetrics {
    pub(super) exported: IntCounter,
    pub(super) rejected: IntCounter,
    full: IntCounter,
    too_long: IntCounter,
    pub(super) lost: IntCounter,
    failures: IntCounterVec,
    pub(super) malformed: IntCounter,
    pub(super) malformed_states: IntCounter,
}

impl TraceMetrics {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let malformed = IntCounter::new(
            "underpass_trace_contexts_malformed_total",
            "Requests with a malformed `traceparent`, sampled as if they had none.",
        )?;
        registry.register(Box::new(malformed.clone()))?;
        let malformed_states = IntCounter::new(
            "underpass_trace_states_malformed_total",
            "Requests with a span whose `tracestate` is malformed or longer than 512 bytes. The span has none.",
        )?;
        registry.register(Box::new(malformed_states.clone()))?;
        let spans = counters_by(
            registry,
            "underpass_trace_spans_total",
            "Spans, by outcome: `exported`, `rejected` (by the collector), `full` (too many waited \
             for the collector), `too_long`, `lost` (the collector could not be reached, hung or refused them, \
             until the agent gave up).",
            &["result"],
        )?;
        let failures = counters_by(
            registry,
            "underpass_trace_exports_failed_total",
            "Batches of spans that a collector did not accept at once, by reason: `unreachable`, `tls`, `late`, \
             `cut`, `refused`, `garbage`. Most are sent again.",
            &["why"],
        )?;
        for why in Failure::LABELS {
            failures.with_label_values(&[why]);
        }
        // Each counter is looked up once: a span that is dropped costs an addition.
        let result = |result| spans.with_label_values(&[result]);
        Ok(Self {
            exported: result("exported"),
            rejected: result("rejected"),
            full: result("full"),
            too_long: result("too_long"),
            lost: result("lost"),
            failures,
            malformed,
            malformed_states,
        })
    }

    pub(super) fn dropped(&self, why: Full) {
        match why {
            Full::Now => self.full.inc(),
            Full::TooLong => self.too_long.inc(),
        }
    }

    pub(super) fn failed(&self, failure: &Failure) {
        self.failures.with_label_values(&[failure.label()]).inc();
    }
}
