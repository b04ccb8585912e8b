//! The CQL native protocol as it passes by.
//!
//! A proxy hands every chunk that it reads from a socket to a [`FlowDecoder`] and then forwards
//! the chunk. The decoder tells a [`Sink`] which requests were answered, how long that took and
//! which statement they carried. It performs no I/O and reads no clock, it never changes bytes and
//! never holds them back; only a [`Verdict`] can ask for a flow to be left alone or closed.
//!
//! Decoded: v3 and v4 (`native_protocol_v3.spec`, `native_protocol_v4.spec`), and v5 without
//! segment compression (`native_protocol_v5.spec`). Not decoded, only recognised: TLS, other
//! versions, v5 with LZ4 segments, and the contents of compressed v3/v4 bodies.
//!
//! The way of a chunk, outermost first:
//!
//! 1. `flow`: [`FlowDecoder`]; takes segments off (v5), then frames, and stops at a verdict.
//! 2. `segment`, `frame`: cut bytes into checked segments and into frames, at any split.
//! 3. `request`, `response`: what a frame means to the flow: versions, statements, pairing.
//! 4. `parse`, `lex`: which statement a text is, and of which table.
//! 5. `statement`, `prepared`, `pending`: what is remembered; each of them bounded.
//!
//! In front of a decoder a [`Handshake`] may stand, until it is known what becomes of the flow: it
//! says what may pass, and what it has learned of the [`Session`].
//!
//! A flow that need not be decoded for a while leaves its decoder as [`Unread`], of which each
//! direction's [`Place`] is kept, and comes back to one at its next frames ([`FlowDecoder::join`]).
//!
//! **Invariants.** No input makes the decoder panic. Its memory is bounded whatever the peers
//! send: one body prefix and one segment for each direction, [`MAX_IN_FLIGHT`] pending requests
//! and two small caches. What it reports depends on the bytes and on the order in which the two
//! directions are fed, never on where the bytes were cut. In the steady state (statements seen
//! before, frames whole within their chunk) a frame allocates nothing.

#![forbid(unsafe_code)]

mod crc;
mod event;
mod flow;
mod frame;
mod handshake;
mod hash;
mod lex;
mod parse;
#[cfg(feature = "parts")]
#[doc(hidden)]
pub mod parts;
mod pending;
mod place;
mod prepared;
mod request;
mod response;
mod segment;
mod session;
mod statement;
mod wire;

pub use event::{Anomaly, CloseReason, Completed, ErrorCode, Sink, Undecodable, Verdict};
pub use flow::FlowDecoder;
pub use frame::{MAX_BODY_BYTES, ProtocolVersion, StreamId};
pub use handshake::{Handshake, Refusal, Step};
pub use pending::MAX_IN_FLIGHT;
pub use place::{Framing, NoPlace, PLACE_HEADER_BYTES, Place, Unread};
pub use prepared::{MAX_PREPARED_STATEMENTS, PreparedStatements};
pub use session::{Compression, Fact, MAX_FACT_BYTES, Session, Unknowable, is_system_keyspace};
pub use statement::{Statement, StatementKind};
