//! The CQL native protocol as it passes by.
//!
//! A proxy hands every chunk that it reads from a socket to a [`FlowDecoder`] and then forwards
//! the chunk. The decoder tells a [`Sink`] which requests were answered, how long that took and
//! which statement they carried. It performs no I/O and reads no clock, it never changes bytes and
//! never holds them back; only a [`Verdict`] can ask for a flow to be left alone or closed.
//!
//! Decoded: v3 and v4 (`native_protocol_v3.spec`, `native_protocol_v4.spec`), also with bodies that are
//! compressed with LZ4 or Snappy, and v5 (`native_protocol_v5.spec`), also in LZ4 segments. Not decoded,
//! only recognised: TLS and other versions.
//!
//! The files, in the order in which bytes meet them:
//!
//! 1. `flow/mod.rs`: [`FlowDecoder`]. `flow/lane`: one direction; takes segments off (v5), then frames, and stops
//!    at a verdict. `flow/state`: what both directions share.
//! 2. [`wire`]: `segment` and `scanner` cut bytes into checked segments and into frames, at any split; `header`,
//!    `cursor`, `prelude`, `compress`: what is in them. Public, because `cql-edit` builds on it.
//! 3. `flow/request`, `flow/response`: what a frame means to the flow: versions, statements, pairing.
//!    `flow/pending`, `flow/prepared`: what is remembered, with a bound each. `proof`, `told`: what is believed of a
//!    prepared statement's id, and for whose flows.
//! 4. [`text`]: which statement a text is, and of which table; `text/analysis`: what else it asks for
//!    ([`Analysis`]), made when somebody wants it, and never by a decoder.
//! 5. `flow/details` (`flow/parameters`, `flow/answered`), `flow/fingerprints`, `trace`: what else a request and its response carry, for a sink that
//!    asks. `flow/event`, `verdict`: what a sink and a caller are told.
//!
//! `extensions`: what a STARTUP asks for beyond the specifications ([`Extensions`]).
//!
//! A [`Handshake`] may stand in front of a decoder, until it is known what becomes of the flow. It says how many
//! bytes may pass, and what it has learned of the [`Session`].
//!
//! A flow that need not be decoded for a while leaves its decoder as [`Unread`]. The [`FramePosition`] of each direction
//! is kept (`wire/position`), and a decoder comes back at the next frames ([`FlowDecoder::join`]).
//!
//! **Invariants.** No input makes the decoder panic. Its memory is bounded whatever the peers
//! send: one body prefix and one segment for each direction, what is made of them where they are
//! compressed, [`MAX_IN_FLIGHT`] pending requests and two small caches. What it reports depends on the bytes and on the order in which the two
//! directions are fed, never on where the bytes were cut. In the steady state (statements seen
//! before, frames whole within their chunk) a frame allocates nothing.

#![forbid(unsafe_code)]

mod extensions;
mod fact;
mod flow;
mod handshake;
pub mod hash;
mod labels;
#[cfg(feature = "parts")]
#[doc(hidden)]
pub mod parts;
mod proof;
mod session;
pub mod text;
mod told;
mod trace;
mod verdict;
pub mod wire;

pub use extensions::{Extensions, MAX_SUPPORTED_BYTES, Offered, offered};
pub use fact::Fact;
pub use flow::answered::Answered;
pub use flow::details::{
    Asked, Details, Introduction, MAX_DETAIL_BYTES, MAX_TEXT_BYTES, Says, WholeRequest, Words,
};
pub use flow::event::{Anomaly, Completed, ErrorCode, Frame, MAX_FRAME_BODY_BYTES, Sink};
pub use flow::parameters::{Consistency, Parameters};
pub use flow::pending::MAX_IN_FLIGHT;
pub use flow::prepared::{
    MAX_PREPARED_STATEMENTS, MAX_PREPARED_TEXTS_BYTES, PreparedAt, PreparedStatements, PreparedText,
};
pub use flow::values::{BoundValue, MAX_KEPT_VALUE_BYTES, MAX_KEPT_VALUES};
pub use flow::{
    FlowDecoder, MAX_READ_BODY_BYTES, MAX_READ_COMPRESSED_BODY_BYTES, MAX_READ_ID_BYTES,
    MAX_READ_ROWS_BYTES,
};
pub use handshake::{Handshake, Refusal, Step, refuse_first};
pub use proof::{MAX_PROVEN_TEXT_BYTES, Proof, prepared_in};
pub use session::{
    MAX_FACT_BYTES, Session, Unknowable, is_system_keyspace, plain_user, startup_driver,
};
pub use text::analysis::{
    Analysis, Batch, BatchKind, By, Fingerprint, MAX_ANALYSED_BYTES, MAX_BATCH_PARTS,
    MAX_FINGERPRINT_BYTES, MAX_RESTRICTIONS, Number, Object, Restriction, RowWrite, Shape,
};
pub use text::statement::{Statement, StatementKind};
pub use told::{Database, Holds, Kept, MAX_PREPARED_ID_BYTES, Told};
pub use trace::context::{NoTraceContext, TraceContext};
pub use trace::state::{MAX_TRACE_STATE_BYTES, NoTraceState, trace_state};
pub use verdict::{CloseReason, Undecodable, Verdict};
pub use wire::compression::Compression;
pub use wire::header::{MAX_BODY_BYTES, Opcode, ProtocolVersion, StreamId};
pub use wire::position::{FramePosition, Framing, NoPosition, POSITION_HEADER_BYTES, Unread};
