//! The signals of OTLP that the agent sends.

/// A kind of telemetry. Collectors take each by a method of its own, and may lack some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Signal {
    Spans,
    Logs,
    Metrics,
}

impl Signal {
    pub(super) const ALL: [Self; 3] = [Self::Spans, Self::Logs, Self::Metrics];

    /// Returns the signal's label in metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Spans => "spans",
            Self::Logs => "logs",
            Self::Metrics => "metrics",
        }
    }

    /// Returns the words for what a collector takes.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Logs => "log records",
            Self::Spans | Self::Metrics => self.label(),
        }
    }

    /// Returns the name of the thread that sends to a collector.
    pub(super) fn thread(self) -> &'static str {
        match self {
            Self::Spans => "otlp-spans",
            Self::Logs => "otlp-logs",
            Self::Metrics => "otlp-metrics",
        }
    }

    /// Returns the path of the method that takes it.
    pub(super) fn method(self) -> &'static str {
        match self {
            Self::Spans => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            Self::Logs => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
            Self::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
        }
    }
}
