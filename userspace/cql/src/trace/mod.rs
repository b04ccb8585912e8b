//! Trace contexts in custom payloads: W3C's `traceparent` and `tracestate`.

pub(crate) mod context;
pub(crate) mod state;
