//! `trace`: a span for each request that is sampled, to a collector of OpenTelemetry's.
//!
//! The flow's thread decides whether a request is traced ([`sampling`]), and does nothing else for
//! requests that are not. For the others it puts a record together from parts that are there
//! already, and the collector's thread makes spans of records ([`otlp`](crate::otlp)).
//!
//! Values are left out: of a statement the span has the fingerprint, which has none.

mod sampling;

use std::sync::Arc;

use cql::{Completed, Details, StatementKind};
use sampling::{Fraction, Sampling};
use serde::Deserialize;
use tls::RawDialling;

use super::{
    Following, Nobody, Refusal, Reporter, Services, Whose, asks_for_data,
    otlp::{CollectorSettings, Kind, MAX_SERVICE_BYTES, Sends, Signal, Telling, Told},
};

/// Sends a span for each sampled request to an OpenTelemetry collector (OTLP over gRPC).
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"endpoint": "http://127.0.0.1:4317", "sample": 0.01, "service": "reports"}]))]
pub struct TraceSettings {
    /// Address of the collector: `http://HOST:PORT` or `https://HOST:PORT`. Without this key: that of `[otlp]`, with its `tls`.
    #[schemars(extend("title" = "URL", "examples" = ["http://127.0.0.1:4317"]))]
    pub endpoint: Option<String>,
    /// TLS towards the collector, with the keys of `upstream_tls`. Needed with an `endpoint` of `https`, and only there.
    pub tls: Option<RawDialling>,
    /// Fraction of the requests without a `traceparent` that is traced.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub sample: f64,
    /// `service.name` of the spans. Without this key: that of `[otlp]`, or `underpass`.
    #[schemars(length(min = 1, max = MAX_SERVICE_BYTES), extend("examples" = ["reports"]))]
    pub service: Option<String>,
    /// The collector of `[otlp]`.
    #[serde(skip)]
    pub(super) collector: Option<CollectorSettings>,
}

#[derive(Debug)]
struct Trace {
    sends: Sends,
    fraction: Fraction,
}

impl TraceSettings {
    pub(super) fn build(self) -> Result<Box<dyn Reporter>, String> {
        let to = match (self.endpoint, self.collector) {
            (Some(endpoint), _) => CollectorSettings::read(&endpoint, self.tls, self.service)?,
            (None, _) if self.tls.is_some() => {
                return Err("tls: expected beside an `endpoint`; found none".to_owned());
            }
            (None, Some(collector)) => collector.named(self.service)?,
            (None, None) => {
                return Err(
                    "endpoint: expected the address of a collector, here or in a table `[otlp]`,                      such as `http://127.0.0.1:4317`; found none"
                        .to_owned(),
                );
            }
        };
        let fraction = Fraction::new(self.sample).ok_or_else(|| {
            let found = self.sample;
            format!("sample: expected a fraction of requests, 0 to 1; found {found}")
        })?;
        Ok(Box::new(Trace {
            sends: Sends::new(Signal::Spans, to),
            fraction,
        }))
    }
}

impl Reporter for Trace {
    fn name(&self) -> &'static str {
        "trace"
    }

    fn reads(&self) -> Result<(), String> {
        self.sends.reads()
    }

    fn open(&self, services: &Services) -> Result<(), String> {
        self.sends.open(&services.collectors)
    }

    fn wants_contexts(&self) -> bool {
        true
    }

    fn follow(&self, whose: &Arc<Whose>, _: &Arc<Services>) -> Box<dyn Following> {
        // No rule is in force before its collector is open.
        let Some(collector) = self.sends.get() else {
            return Box::new(Nobody);
        };
        Box::new(FlowTrace {
            sampling: Sampling::new(self.fraction),
            telling: Telling::new(collector, Kind::Span, whose),
        })
    }
}

/// The tracing of one flow.
struct FlowTrace {
    sampling: Sampling,
    telling: Telling,
}

impl FlowTrace {
    fn report(&mut self, told: &Told<'_>) {
        let kind = told.completed.statement.kind;
        if !asks_for_data(kind) && kind != StatementKind::Prepare {
            return;
        }
        let parent = match told.details.context {
            None => None,
            Some(Ok(context)) => Some(context),
            Some(Err(_)) => {
                self.telling.collector().malformed();
                None
            }
        };
        let Some(identity) = self.sampling.decide(parent) else {
            return;
        };
        if let Some(Err(_)) = told.details.trace_state {
            self.telling.collector().malformed_state();
        }
        self.telling.tell(told, identity);
    }
}

impl Following for FlowTrace {
    fn completed(&mut self, completed: &Completed<'_>, details: &Details) {
        self.report(&Told::answered(completed, details));
    }

    fn refused(&mut self, by: Refusal, completed: &Completed<'_>, details: &Details) {
        self.report(&Told::refused(by, completed, details));
    }

    fn unanswered(&mut self, request: &Completed<'_>, details: &Details) {
        self.report(&Told::unanswered(request, details));
    }
}
