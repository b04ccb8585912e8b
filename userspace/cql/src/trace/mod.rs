//! What custom payloads say of traces: W3C's `traceparent` and `tracestate`.

pub(crate) mod context;
pub(crate) mod state;
