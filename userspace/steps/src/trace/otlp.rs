//! The messages of OTLP that are needed here: `opentelemetry/proto/trace/v1/trace.proto` and its
//! like, whose field numbers never change.
//!
//! Encoded messages of one type, one behind the other, are one message with the fields of both. So
//! the part of a flow's spans that stays the same is encoded once.

use prost::Message;

/// The span kind `SPAN_KIND_CLIENT`.
pub(super) const CLIENT: i32 = 3;

/// The status code `STATUS_CODE_ERROR`.
const ERROR: i32 = 2;

/// The method that takes spans.
pub(super) const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

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
struct AnyValue {
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

#[derive(Clone, PartialEq, Message)]
struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<InstrumentationScope>,
    /// The encoded spans: on the wire, a message is its bytes.
    #[prost(bytes = "vec", repeated, tag = "2")]
    spans: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct InstrumentationScope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct ExportTraceServiceResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<ExportTracePartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct ExportTracePartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
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

/// Makes the request in which a service sends these encoded spans to a collector.
pub(super) fn export(service: &str, spans: Vec<Vec<u8>>) -> Vec<u8> {
    let scope = InstrumentationScope {
        // The agent is the scope, whatever crate this is in: collectors group spans by it.
        name: "underpass".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let resource = Resource {
        attributes: vec![KeyValue::text("service.name", service)],
    };
    let request = ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource),
            scope_spans: vec![ScopeSpans {
                scope: Some(scope),
                spans,
            }],
        }],
    };
    request.encode_to_vec()
}

/// Reads the number of rejected spans from an answer, and the reason. None: that is no answer.
pub(super) fn rejected(answer: &[u8]) -> Option<(u64, String)> {
    let answer = ExportTraceServiceResponse::decode(answer).ok()?;
    let partial = answer.partial_success.unwrap_or_default();
    let spans = partial.rejected_spans.try_into().unwrap_or(0);
    Some((spans, partial.error_message))
}
