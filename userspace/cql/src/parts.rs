//! The decoder's parts, each by itself: for micro-benchmarks, and nothing else may use them.
//!
//! Behind the feature `parts`, which no other crate turns on. Each part tells how much it saw, so
//! that a benchmark can tell work from an error that ends early.

use crate::flow::FlowDecoder;
use crate::flow::event::Anomaly;
use crate::flow::pending::{Answers, InFlight, NotPending};
use crate::flow::request;
use crate::text::parse::parse;
use crate::text::statement::{Statement, StatementKind, StatementRef, Statements};
use crate::wire::header::{HEADER_BYTES, Header, StreamId};
use crate::wire::scanner::{FrameScanner, Step};
use crate::wire::segment_reader::SegmentReader;
use std::ops::Range;
use std::sync::Arc;

/// How much a part saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Headers, frames or segments.
    pub elements: u64,
    /// Bytes of bodies or payloads.
    pub bytes: u64,
}

/// Reads headers that stand one behind the other, without their bodies. `None`: one of them is
/// impossible.
pub fn headers(bytes: &[u8]) -> Option<Seen> {
    let (headers, rest) = bytes.as_chunks::<HEADER_BYTES>();
    let mut seen = Seen::default();
    for raw in headers {
        let header = Header::read(*raw)?;
        seen.elements += u64::from(header.opcode.is_some());
        seen.bytes += u64::from(header.length);
    }
    rest.is_empty().then_some(seen)
}

/// Cuts requests into frames, and shows of each body what the decoder looks at.
#[derive(Debug)]
pub struct Deframer(FrameScanner);

impl Default for Deframer {
    fn default() -> Self {
        Self(FrameScanner::new(request::wanted_bytes))
    }
}

impl Deframer {
    /// The frames that ended in `bytes`, and how much of bodies was shown. `None`: a length is
    /// impossible.
    pub fn feed(&mut self, bytes: &[u8]) -> Option<Seen> {
        let (mut at, mut seen) = (0, Seen::default());
        loop {
            if let Some((header, prefix)) = self.0.whole(bytes.get(at..)?) {
                seen.bytes += prefix.len() as u64;
                seen.elements += 1;
                at += header.frame_bytes() as usize;
                self.0.pass_whole();
                continue;
            }
            match self.0.step(bytes, &mut at) {
                Step::Starved => return Some(seen),
                Step::BadLength => return None,
                Step::First(_) | Step::Header(_) => {}
                Step::Body(_, prefix) => seen.bytes += prefix.len() as u64,
                Step::End(_) => seen.elements += 1,
            }
        }
    }
}

/// Cuts bytes into v5 segments and checks them.
#[derive(Debug)]
pub struct Desegmenter(SegmentReader);

impl Default for Desegmenter {
    fn default() -> Self {
        Self(SegmentReader::new())
    }
}

impl Desegmenter {
    /// The segments that ended in `bytes`, and their payloads. `None`: a checksum is wrong.
    pub fn feed(&mut self, bytes: &[u8]) -> Option<Seen> {
        let (mut at, mut seen) = (0, Seen::default());
        while let Some(segment) = self.0.step(bytes, &mut at).ok()? {
            seen.elements += 1;
            seen.bytes += segment.payload.len() as u64;
        }
        Some(seen)
    }
}

/// Tells statements from texts, and remembers them as a flow does.
#[derive(Debug, Default)]
pub struct Texts(Statements);

impl Texts {
    /// The statement that `text` is.
    pub fn statement(&mut self, text: &[u8]) -> Arc<Statement> {
        self.0.get(parse(text, text.len()).statement)
    }
}

impl FlowDecoder {
    /// Forgets the requests that wait on `streams`, as if they were answered; gives their number.
    #[doc(hidden)]
    pub fn forget_requests(&mut self, streams: Range<i16>) -> u64 {
        streams
            .filter(|stream| {
                let answers = self.flow.pending.answer(StreamId(*stream));
                matches!(answers, Answers::This(_))
            })
            .count() as u64
    }

    /// Has a request of this kind wait on each of `streams`, as if it was sent at `now_ns`.
    #[doc(hidden)]
    pub fn expect_responses(
        &mut self,
        kind: StatementKind,
        now_ns: u64,
        streams: Range<i16>,
    ) -> Result<(), Anomaly> {
        let statement = self.flow.statements.get(StatementRef::bare(kind));
        for stream in streams {
            let request = InFlight {
                statement: Arc::clone(&statement),
                started_ns: now_ns,
                request_bytes: HEADER_BYTES as u32,
                prepares: None,
            };
            let inserted = self.flow.pending.insert(StreamId(stream), request);
            inserted.map_err(|(why, _)| match why {
                NotPending::Full => Anomaly::TooManyInFlight,
                NotPending::Duplicate(_) => Anomaly::DuplicateStream,
            })?;
        }
        Ok(())
    }
}
