//! `trace`: a span for each request that is sampled, to a collector of OpenTelemetry's.
//!
//! The flow's thread decides whether a request is traced ([`sampling`]), and does nothing else for
//! requests that are not. For the others it puts a record together from parts that are there
//! already ([`parts`]). The collector's thread makes spans of records, and sends them
//! ([`collectors`]).
//!
//! Values are left out: of a statement the span has the fingerprint, which has none.

mod client;
mod collectors;
mod endpoint;
mod exporting;
mod metrics;
mod otlp;
mod parts;
mod record;
mod sampling;

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use collectors::Collector;
pub use collectors::Collectors;
use cql::{Completed, Details, StatementKind};
use endpoint::Endpoint;
pub use metrics::TraceMetrics;
use record::Record;
use sampling::{Fraction, Sampling};
use serde::Deserialize;
use tls::{Dialling, RawDialling};

use super::{
    Following, Nobody, Refusal, Reporter, Services, Whose, asks_for_data, at_hand::AtHand,
};

/// Sends a span for each sampled request to an OpenTelemetry collector (OTLP over gRPC).
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"endpoint": "http://127.0.0.1:4317", "sample": 0.01, "service": "reports"}]))]
pub struct TraceSettings {
    /// Address of the collector: `http://HOST:PORT` or `https://HOST:PORT`.
    #[schemars(extend("title" = "URL"))]
    pub endpoint: String,
    /// TLS towards the collector, with the keys of `upstream_tls`. Needed with `https`, and only there.
    pub tls: Option<RawDialling>,
    /// Fraction of the requests without a `traceparent` that is traced.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub sample: f64,
    /// `service.name` of the spans.
    #[serde(default = "service")]
    #[schemars(length(min = 1, max = MAX_SERVICE_BYTES))]
    pub service: String,
}

fn service() -> String {
    "underpass".to_owned()
}

/// The longest name of a service.
const MAX_SERVICE_BYTES: usize = 255;

struct Trace {
    endpoint: Endpoint,
    tls: Option<Dialling>,
    service: String,
    fraction: Fraction,
    open: OnceLock<Arc<Collector>>,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("endpoint", &self.endpoint)
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}

impl TraceSettings {
    pub(super) fn build(self) -> Result<Box<dyn Reporter>, String> {
        let endpoint = Endpoint::parse(&self.endpoint)?;
        let tls = self.tls.map(RawDialling::read).transpose();
        let tls = tls.map_err(|e| format!("tls: {e}"))?;
        match (endpoint.is_encrypted(), &tls) {
            (true, None) => {
                return Err(
                    "tls: expected with `https://`: `{ ca = \"/PATH\" }`, who has to have signed the \
                     collector's certificate; found none"
                        .to_owned(),
                );
            }
            (false, Some(_)) => {
                return Err("tls: expected with `https://` only; found `http://`".to_owned());
            }
            _ => {}
        }
        let fraction = Fraction::new(self.sample).ok_or_else(|| {
            let found = self.sample;
            format!("sample: expected a fraction of requests, 0 to 1; found {found}")
        })?;
        if self.service.is_empty() || self.service.len() > MAX_SERVICE_BYTES {
            let found = self.service.len();
            return Err(format!(
                "service: expected a name of 1 to {MAX_SERVICE_BYTES} bytes; found {found} bytes"
            ));
        }
        Ok(Box::new(Trace {
            endpoint,
            tls,
            service: self.service,
            fraction,
            open: OnceLock::new(),
        }))
    }
}

impl Reporter for Trace {
    fn name(&self) -> &'static str {
        "trace"
    }

    fn reads(&self) -> Result<(), String> {
        collectors::encrypted(&self.endpoint, self.tls.as_ref()).map(drop)
    }

    fn open(&self, services: &Services) -> Result<(), String> {
        // A step belongs to one file, which is put into force once, and again if the next file
        // could not be.
        if self.open.get().is_none() {
            let tls = self.tls.as_ref();
            let collector = services
                .collectors
                .open(&self.endpoint, tls, &self.service)?;
            let _ = self.open.set(collector);
        }
        Ok(())
    }

    fn wants_contexts(&self) -> bool {
        true
    }

    fn follow(&self, whose: &Arc<Whose>, _: &Arc<Services>) -> Box<dyn Following> {
        // No rule is in force before its collector is open.
        let Some(collector) = self.open.get() else {
            return Box::new(Nobody);
        };
        Box::new(FlowTrace {
            sampling: Sampling::new(self.fraction),
            collector: collector.clone(),
            whose: whose.clone(),
            who: None,
            at_hand: AtHand::new(),
            record: Vec::new(),
        })
    }
}

/// The tracing of one flow.
struct FlowTrace {
    sampling: Sampling,
    collector: Arc<Collector>,
    whose: Arc<Whose>,
    /// The flow's part of spans, with the number of facts that were known when it was made.
    who: Option<(usize, Vec<u8>)>,
    at_hand: AtHand<Vec<u8>>,
    /// The buffer of a record, kept for reuse.
    record: Vec<u8>,
}

impl FlowTrace {
    fn report(
        &mut self,
        completed: &Completed<'_>,
        details: &Details,
        is_answered: bool,
        by: Option<Refusal>,
    ) {
        let kind = completed.statement.kind;
        if !asks_for_data(kind) && kind != StatementKind::Prepare {
            return;
        }
        let parent = match details.context {
            None => None,
            Some(Ok(context)) => Some(context),
            Some(Err(_)) => {
                self.collector.malformed();
                None
            }
        };
        let Some(identity) = self.sampling.decide(parent) else {
            return;
        };
        if let Some(Err(_)) = details.trace_state {
            self.collector.malformed_state();
        }
        let knows = self.whose.knows();
        let made = self.who.take().filter(|(knew, _)| *knew == knows);
        let who = made.unwrap_or_else(|| (knows, parts::who(&self.whose)));
        let fingerprint = details.asked.fingerprint.as_ref();
        let what = self
            .at_hand
            .of(completed.statement, fingerprint, parts::what);
        self.record.clear();
        Record {
            identity,
            completed,
            details,
            is_answered,
            by,
            who: &who.1,
            what: what.map_or(&[], Vec::as_slice),
        }
        .put(&mut self.record);
        self.collector.push(&self.record);
        self.who = Some(who);
    }
}

impl Following for FlowTrace {
    fn completed(&mut self, completed: &Completed<'_>, details: &Details) {
        self.report(completed, details, true, None);
    }

    fn refused(&mut self, by: Refusal, completed: &Completed<'_>, details: &Details) {
        self.report(completed, details, true, Some(by));
    }

    fn unanswered(&mut self, request: &Completed<'_>, details: &Details) {
        self.report(request, details, false, None);
    }
}
