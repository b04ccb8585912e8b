//! Counters of spans, log records and metrics by what became of them on their way to collectors.

use export::Full;
use prometheus::{IntCounter, IntCounterVec, Registry};
use telemetry::counters_by;

use super::{client::Failure, signal::Signal};

/// The metrics of everything that goes to collectors.
#[derive(Clone, Debug)]
pub struct OtlpMetrics {
    spans: Outcomes,
    logs: Outcomes,
    points: Outcomes,
    dropped_spans: Dropped,
    dropped_logs: Dropped,
    failures: IntCounterVec,
    pub(super) malformed: IntCounter,
    pub(super) malformed_states: IntCounter,
}

/// The outcomes of what was sent. Each counter is looked up once: a span costs an addition.
#[derive(Clone, Debug)]
pub(super) struct Outcomes {
    pub(super) exported: IntCounter,
    pub(super) rejected: IntCounter,
    pub(super) lost: IntCounter,
}

/// The outcomes of records that did not get so far.
#[derive(Clone, Debug)]
struct Dropped {
    full: IntCounter,
    too_long: IntCounter,
}

impl OtlpMetrics {
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
        let by_result = |name, help| counters_by(registry, name, help, &["result"]);
        let spans = by_result(
            "underpass_trace_spans_total",
            "Spans, by outcome: `exported`, `rejected` (by the collector), `full` (too many waited \
             for the collector), `too_long`, `lost` (the collector could not be reached, hung or refused them, \
             until the agent gave up).",
        )?;
        let logs = by_result(
            "underpass_otlp_log_records_total",
            "Log records of `audit` and `slowlog` for a collector, by outcome, as spans have it.",
        )?;
        let points = by_result(
            "underpass_otlp_metric_points_total",
            "Values of metrics that were sent to a collector, by outcome: `exported`, `rejected` (by the collector), `lost` \
             (it did not take them; the next time it gets newer ones).",
        )?;
        let failures = counters_by(
            registry,
            "underpass_otlp_exports_failed_total",
            "Messages that a collector did not accept at once, by signal (`spans`, `logs`, `metrics`) and reason: \
             `unreachable`, `tls`, `late`, `cut`, `refused`, `garbage`. Most spans and log records are sent again.",
            &["signal", "why"],
        )?;
        for signal in Signal::ALL {
            for why in Failure::LABELS {
                failures.with_label_values(&[signal.label(), why]);
            }
        }
        Ok(Self {
            dropped_spans: Dropped::of(&spans),
            dropped_logs: Dropped::of(&logs),
            spans: Outcomes::of(&spans),
            logs: Outcomes::of(&logs),
            points: Outcomes::of(&points),
            failures,
            malformed,
            malformed_states,
        })
    }

    /// Returns the outcomes of a signal.
    pub(super) fn of(&self, signal: Signal) -> &Outcomes {
        match signal {
            Signal::Spans => &self.spans,
            Signal::Logs => &self.logs,
            Signal::Metrics => &self.points,
        }
    }

    /// Counts a record that is not written because there is no room.
    pub(super) fn dropped(&self, signal: Signal, why: Full) {
        let dropped = match signal {
            Signal::Spans => &self.dropped_spans,
            Signal::Logs => &self.dropped_logs,
            // Metrics are in no ring.
            Signal::Metrics => return,
        };
        match why {
            Full::Now => dropped.full.inc(),
            Full::TooLong => dropped.too_long.inc(),
        }
    }

    pub(super) fn failed(&self, signal: Signal, failure: &Failure) {
        let labels = [signal.label(), failure.label()];
        self.failures.with_label_values(&labels).inc();
    }
}

impl Outcomes {
    fn of(counters: &IntCounterVec) -> Self {
        let result = |result| counters.with_label_values(&[result]);
        Self {
            exported: result("exported"),
            rejected: result("rejected"),
            lost: result("lost"),
        }
    }
}

impl Dropped {
    fn of(counters: &IntCounterVec) -> Self {
        let result = |result| counters.with_label_values(&[result]);
        Self {
            full: result("full"),
            too_long: result("too_long"),
        }
    }
}
