//! Reports of a decoder: completed requests, frames and anomalies.

use crate::flow::details::Details;
use crate::labelled;
use crate::text::statement::Statement;
use crate::wire::header::{Opcode, StreamId};
use std::sync::Arc;

/// Receives what a [`FlowDecoder`](crate::FlowDecoder) finds, in the order of the bytes.
pub trait Sink {
    /// Whether the sink is told [`Details`]. The decoder then reads more of each body, and tables of
    /// pending requests grow. For a sink that does not ask, nothing of that is even compiled. Requests
    /// that were fed with such a sink have no details.
    const DETAILS: bool = false;
    /// Whether the sink is told of each [`Frame`]. As with details, others do not pay for it.
    const FRAMES: bool = false;

    /// The last byte of a response passed, and the response was paired with its request.
    fn completed(&mut self, completed: &Completed<'_>);
    /// In its place, if it asks for details.
    fn detailed(&mut self, completed: &Completed<'_>, details: &Details) {
        let _ = details;
        self.completed(completed);
    }
    /// A request has no response: none will come, because the flow is not read any more
    /// ([`FlowDecoder::finish`](crate::FlowDecoder::finish)), or which one is its own cannot be told, because several
    /// requests are out on its stream. Told to a sink that asks for details. Its latency is how long it has waited.
    fn unanswered(&mut self, request: &Completed<'_>, details: &Details) {
        let _ = (request, details);
    }
    /// A response passes on a stream on which several requests were out: it is paired with none.
    fn unpaired(&mut self, stream: StreamId) {
        let _ = stream;
    }
    /// Something odd that is counted by its cause; the flow goes on.
    fn anomaly(&mut self, anomaly: Anomaly);
    /// Beside [`Anomaly::UnknownPreparedId`]: the id.
    fn unknown_prepared(&mut self, id: &[u8]) {
        let _ = id;
    }
    /// If it asks for frames: the header of one has passed, and what is read of its body. Frames of a flow
    /// that is not understood are none.
    fn frame(&mut self, frame: &Frame<'_>) {
        let _ = frame;
    }
    /// Whether it looks at the bodies of frames. Otherwise they are read as far as is needed anyway.
    fn wants_bodies(&self) -> bool {
        false
    }
}

/// How much of a frame's body a sink is told at most that [wants bodies](Sink::wants_bodies), in bytes. So
/// much of each direction may have to be kept until it is whole.
pub const MAX_FRAME_BODY_BYTES: usize = 4 << 10;

/// A frame that passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// From the client; otherwise from the database.
    pub is_request: bool,
    /// 3, 4 or 5; another one of an ERROR of a database that does not speak the client's.
    pub version: u8,
    /// The flags as sent (`native_protocol_v5.spec` §2.4.1.2).
    pub flags: u8,
    /// The stream as sent.
    pub stream: StreamId,
    /// The opcode. None: no frame of this direction can have it.
    pub opcode: Option<Opcode>,
    /// Bytes of its body, as sent.
    pub length: u32,
    /// The beginning of its body, without compression: nothing of one that could not be read.
    pub body: &'a [u8],
}

/// Whether the type of `sink` asks for details.
pub(crate) fn asks_for_details<S: Sink>(_: &S) -> bool {
    S::DETAILS
}

/// A request together with its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed<'a> {
    /// The statement of the request. Within one flow, and while it stays among the statements that the
    /// flow used lately, equal statements are one and the same `Arc`: a cache may compare with
    /// [`Arc::ptr_eq`] first, as long as it holds the `Arc`, and fall back to `Eq`.
    pub statement: &'a Arc<Statement>,
    /// From the call that carried the last byte of the request's header to the call that carried
    /// the last byte of the response, in ns; 0 if the clock went backwards.
    pub latency_ns: u64,
    /// The response was an ERROR.
    pub error: Option<ErrorCode>,
    /// The request's frame: 9 bytes of header and the body as sent; v5 segments add nothing.
    pub request_bytes: u64,
    /// The response's frame, counted likewise.
    pub response_bytes: u64,
    /// The stream that both travelled on.
    pub stream: StreamId,
}

/// Something odd on a flow that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Anomaly {
    /// A response on a stream that has no request. (Streams below 0 are the server's own.)
    UnknownStream,
    /// A request on a stream that still waits for a response: neither is paired with one, nor is any other, until
    /// as many responses have come on the stream as there were requests.
    DuplicateStream,
    /// An opcode that does not exist, or not in this direction.
    UnknownOpcode,
    /// A body is shorter than what it declares, or holds what cannot be.
    MalformedBody,
    /// An EXECUTE, or a child of a BATCH, of an id whose PREPARE was not seen. At most once a
    /// frame.
    UnknownPreparedId,
    /// A v3/v4 body is compressed, and that was not agreed on, or not seen; or it does not become what it
    /// says. All that is known of it is its opcode.
    CompressedBody,
    /// The bytes that were looked for lie beyond the part of the body, or of the statement, that is
    /// read.
    BodyTooLong,
    /// The direction ended within a frame or a segment.
    TruncatedFrame,
    /// The store of prepared statements was full and forgot one.
    PreparedEvicted,
    /// More than [`MAX_IN_FLIGHT`](crate::MAX_IN_FLIGHT) requests wait; this one is not tracked.
    TooManyInFlight,
    /// A body is not read: the connection may have begun with an [extension](crate::Extensions) that is not known.
    UnknownExtension,
}

labelled!(Anomaly {
    UnknownStream => "unknown_stream",
    DuplicateStream => "duplicate_stream",
    UnknownOpcode => "unknown_opcode",
    MalformedBody => "malformed_body",
    UnknownPreparedId => "unknown_prepared_id",
    CompressedBody => "compressed_body",
    BodyTooLong => "body_too_long",
    TruncatedFrame => "truncated_frame",
    PreparedEvicted => "prepared_evicted",
    TooManyInFlight => "too_many_in_flight",
    UnknownExtension => "unknown_extension",
});

/// The code of an ERROR response (`native_protocol_v5.spec` §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The code as sent.
    Code(i32),
    /// An ERROR whose body could not be read: compressed in no known way, or too short.
    Unreadable,
}

impl ErrorCode {
    /// The name as a metric label, in snake case: one of a fixed set, `other` for unlisted codes.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Code(0x0000) => "server_error",
            Self::Code(0x000A) => "protocol_error",
            Self::Code(0x0100) => "bad_credentials",
            Self::Code(0x1000) => "unavailable",
            Self::Code(0x1001) => "overloaded",
            Self::Code(0x1002) => "is_bootstrapping",
            Self::Code(0x1003) => "truncate_error",
            Self::Code(0x1100) => "write_timeout",
            Self::Code(0x1200) => "read_timeout",
            Self::Code(0x1300) => "read_failure",
            Self::Code(0x1400) => "function_failure",
            Self::Code(0x1500) => "write_failure",
            Self::Code(0x1600) => "cdc_write_failure",
            Self::Code(0x1700) => "cas_write_unknown",
            Self::Code(0x2000) => "syntax_error",
            Self::Code(0x2100) => "unauthorized",
            Self::Code(0x2200) => "invalid",
            Self::Code(0x2300) => "config_error",
            Self::Code(0x2400) => "already_exists",
            Self::Code(0x2500) => "unprepared",
            Self::Code(_) => "other",
            Self::Unreadable => "unreadable",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{CloseReason, Undecodable};

    #[test]
    fn labels_are_distinct_and_snake_case() {
        let labels = [
            Anomaly::ALL.iter().map(|a| a.as_str()).collect::<Vec<_>>(),
            CloseReason::ALL.iter().map(|r| r.as_str()).collect(),
            Undecodable::ALL.iter().map(|u| u.as_str()).collect(),
            crate::StatementKind::ALL
                .iter()
                .map(|k| k.as_str())
                .collect(),
        ];
        for mut row in labels {
            assert!(
                row.iter()
                    .all(|l| l.bytes().all(|b| b == b'_' || b.is_ascii_lowercase()))
            );
            let all = row.len();
            row.sort_unstable();
            row.dedup();
            assert_eq!(row.len(), all);
        }
    }

    #[test]
    fn error_codes_have_names() {
        assert_eq!(ErrorCode::Code(0x2500).as_str(), "unprepared");
        assert_eq!(ErrorCode::Code(0x7777).as_str(), "other");
        assert_eq!(ErrorCode::Unreadable.as_str(), "unreadable");
    }
}
