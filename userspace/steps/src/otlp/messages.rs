//! The messages of OTLP that are needed here: `opentelemetry/proto/trace/v1/trace.proto`, `logs/v1/logs.proto` and
//! `metrics/v1/metrics.proto`, whose field numbers never change.
//!
//! Encoded messages of one type, one behind the other, are one message with the fields of both. So
//! the part of a flow's spans and log records that stays the same is encoded once.

use prost::Message;

/// The span kind `SPAN_KIND_CLIENT`.
pub(super) const CLIENT: i32 = 3;

/// The status code `STATUS_CODE_ERROR`.
const ERROR: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub(super) trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(super) name: String,
    #[prost(int32, tag = "6")]
    pub(super) kind: i32,
    #[prost(fixed64, tag = "7")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub(super) end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub(super) status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    pub(super) flags: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 3")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Value {
    #[prost(string, tag = "1")]
    String(String),
    #[prost(int64, tag = "3")]
    Int(i64),
}

/// `LogRecord` of `logs.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LogRecord {
    #[prost(fixed64, tag = "1")]
    pub(super) time_unix_nano: u64,
    #[prost(int32, tag = "2")]
    pub(super) severity_number: i32,
    #[prost(string, tag = "3")]
    pub(super) severity_text: String,
    #[prost(message, optional, tag = "5")]
    pub(super) body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed32, tag = "8")]
    pub(super) flags: u32,
    #[prost(bytes = "vec", tag = "9")]
    pub(super) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "10")]
    pub(super) span_id: Vec<u8>,
    #[prost(fixed64, tag = "11")]
    pub(super) observed_time_unix_nano: u64,
    #[prost(string, tag = "12")]
    pub(super) event_name: String,
}

/// The temporality `AGGREGATION_TEMPORALITY_CUMULATIVE`.
pub(super) const CUMULATIVE: i32 = 2;

/// `Metric` of `metrics.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Metric {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) description: String,
    #[prost(string, tag = "3")]
    pub(super) unit: String,
    #[prost(oneof = "Data", tags = "5, 7, 9")]
    pub(super) data: Option<Data>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Data {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
    #[prost(message, tag = "9")]
    Histogram(Histogram),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Gauge {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<NumberDataPoint>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Sum {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<NumberDataPoint>,
    #[prost(int32, tag = "2")]
    pub(super) aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    pub(super) is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Histogram {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<HistogramDataPoint>,
    #[prost(int32, tag = "2")]
    pub(super) aggregation_temporality: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NumberDataPoint {
    #[prost(fixed64, tag = "2")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    pub(super) time_unix_nano: u64,
    /// `as_double`, which is sent even if it is 0: an absent value is no value.
    #[prost(double, optional, tag = "4")]
    pub(super) value: Option<f64>,
    #[prost(message, repeated, tag = "7")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HistogramDataPoint {
    #[prost(fixed64, tag = "2")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    pub(super) time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    pub(super) count: u64,
    #[prost(double, optional, tag = "5")]
    pub(super) sum: Option<f64>,
    /// One more than there are bounds; each has what is between two of them.
    #[prost(fixed64, repeated, tag = "6")]
    pub(super) bucket_counts: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    pub(super) explicit_bounds: Vec<f64>,
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
}

/// A request of any signal: their messages have the same numbers.
#[derive(Clone, PartialEq, Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    of_resources: Vec<OfResource>,
}

/// `ResourceSpans` and its like.
#[derive(Clone, PartialEq, Message)]
struct OfResource {
    /// The encoded resource: on the wire, a message is its bytes.
    #[prost(bytes = "vec", tag = "1")]
    resource: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    of_scopes: Vec<OfScope>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

/// `ScopeSpans` and its like.
#[derive(Clone, PartialEq, Message)]
struct OfScope {
    #[prost(message, optional, tag = "1")]
    scope: Option<InstrumentationScope>,
    /// The encoded spans, log records or metrics.
    #[prost(bytes = "vec", repeated, tag = "2")]
    items: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct InstrumentationScope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

/// The answer of any signal.
#[derive(Clone, PartialEq, Message)]
struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

impl KeyValue {
    pub(super) fn text(key: &str, value: &str) -> Self {
        Self::new(key, Value::String(value.to_owned()))
    }

    pub(super) fn number(key: &str, value: i64) -> Self {
        Self::new(key, Value::Int(value))
    }

    fn new(key: &str, value: Value) -> Self {
        let value = Some(AnyValue { value: Some(value) });
        Self {
            key: key.to_owned(),
            value,
        }
    }
}

impl Status {
    pub(super) fn error(message: &str) -> Self {
        Self {
            message: message.to_owned(),
            code: ERROR,
        }
    }
}

impl AnyValue {
    pub(super) fn text(text: &str) -> Self {
        Self {
            value: Some(Value::String(text.to_owned())),
        }
    }
}

/// Encodes the resource that sends: a service on a host. Nobody's host: its name is left out.
pub(super) fn resource(service: &str, host: &str) -> Vec<u8> {
    let attributes = [
        ("service.name", service),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("host.name", host),
    ];
    let known = attributes.iter().filter(|(_, value)| !value.is_empty());
    Resource {
        attributes: known
            .map(|(key, value)| KeyValue::text(key, value))
            .collect(),
    }
    .encode_to_vec()
}

/// Makes the request in which an encoded resource sends these encoded items to a collector.
pub(super) fn export(resource: &[u8], items: Vec<Vec<u8>>) -> Vec<u8> {
    let scope = InstrumentationScope {
        // The agent is the scope, whatever crate this is in: collectors group what they get by it.
        name: "underpass".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let request = ExportRequest {
        of_resources: vec![OfResource {
            resource: resource.to_vec(),
            of_scopes: vec![OfScope {
                scope: Some(scope),
                items,
            }],
        }],
    };
    request.encode_to_vec()
}

/// Reads from an answer how much of a request was rejected, and the reason. None: that is no answer.
pub(super) fn rejected(answer: &[u8]) -> Option<(u64, String)> {
    let answer = ExportResponse::decode(answer).ok()?;
    let partial = answer.partial_success.unwrap_or_default();
    let rejected = partial.rejected.try_into().unwrap_or(0);
    Some((rejected, partial.error_message))
}
