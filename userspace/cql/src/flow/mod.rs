//! [`FlowDecoder`]: one flow's bytes in both directions.
//!
//! How they are cut into frames is in `lane`, what frames mean in `request` and `response`; here is
//! what the directions share, and how a verdict comes back.

pub(crate) mod answered;
mod by_stream;
pub(crate) mod details;
pub(crate) mod event;
pub(crate) mod fingerprints;
pub(crate) mod lane;
pub(crate) mod parameters;
pub(crate) mod pending;
pub(crate) mod prepared;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod state;
pub(crate) mod values;

use crate::fact::Fact;
use crate::flow::event::{Anomaly, Sink, asks_for_details};
use crate::flow::lane::{Lane, Meaning, StopAt};
use crate::flow::prepared::PreparedAt;
use crate::flow::request::Requests;
use crate::flow::response::Responses;
use crate::flow::state::{Flow, Stop};
use crate::verdict::Verdict;
use crate::wire::compress::{MAX_SEEN_BYTES, enough_for};
use crate::wire::compression::Compression;
use crate::wire::header::{ProtocolVersion, StreamId};
use crate::wire::position::{FramePosition, NoPosition, Unread};

/// How much of a body a decoder reads at most, whatever its sink asks for. What is behind it can be
/// [skipped](FlowDecoder::skip_requests).
pub const MAX_READ_BODY_BYTES: usize = details::DETAIL_PREFIX_BYTES;

/// How much of an EXECUTE or a RESULT a decoder reads for a sink that asks for no details, unless a custom payload,
/// warnings or a tracing id may stand in front.
pub const MAX_READ_ID_BYTES: usize = response::PREFIX_BYTES;
const _: () = assert!(request::ID_PREFIX_BYTES <= MAX_READ_ID_BYTES);

/// How much of such a RESULT it reads for one that does.
pub const MAX_READ_ROWS_BYTES: usize = response::ROWS_PREFIX_BYTES;

/// How much of a compressed body a decoder reads at most.
pub const MAX_READ_COMPRESSED_BODY_BYTES: usize = enough_for(MAX_READ_BODY_BYTES, MAX_SEEN_BYTES);

/// Decodes one flow, that is one TCP connection from its very first byte on.
///
/// Feed each chunk in the order in which it was read, and before it is forwarded: the decoder must
/// have seen a response before the client can answer it.
#[derive(Debug)]
pub struct FlowDecoder {
    pub(crate) flow: Flow,
    requests: Lane,
    responses: Lane,
    /// Why decoding is over.
    stopped: Option<Stop>,
}

impl FlowDecoder {
    /// Makes the decoder of a flow. `prepared` is shared by all flows, and says to which database this one is.
    pub fn new(prepared: PreparedAt) -> Self {
        Self {
            flow: Flow::new(prepared),
            requests: Lane::new(request::wanted_bytes),
            responses: Lane::new(response::wanted_bytes),
            stopped: None,
        }
    }

    /// A decoder for a flow that was left as `unread` and has been followed since. In each direction it
    /// begins with the next frame. A response without a request here was asked for before, so it is no
    /// anomaly. The flow's keyspace is not known. Compressed bodies are read if `unread` came from
    /// a decoder, which knew the compression, and otherwise from the first one on that is seen whole, by which it is recognised.
    ///
    /// If what comes is no frame, the flow is [`Undecodable::Lost`].
    pub fn join(prepared: PreparedAt, unread: Unread) -> Self {
        let mut decoder = Self::new(prepared);
        let flow = &mut decoder.flow;
        flow.version = Some(unread.version);
        flow.accepted = true;
        flow.segmented = unread.is_segmented();
        flow.compression = match unread.compression {
            Some(compression) => Fact::Is(compression),
            // A position in segments is known of those alone that are not compressed.
            None if unread.is_segmented() => Fact::Is(Compression::None),
            None => Fact::Open,
        };
        flow.extensions = unread.extensions.unwrap_or_default();
        flow.has_unseen_startup = unread.extensions.is_none();
        flow.joined = true;
        decoder.requests.join(unread.requests, &unread);
        decoder.responses.join(unread.responses, &unread);
        decoder
    }

    /// A decoder that goes on with a flow in segments of LZ4 after bytes of one direction were missed. As after
    /// [`join`](Self::join) nothing is known of what was asked before. That direction goes on with a segment of whole
    /// frames; the other one is read on where it is, because in the middle of such segments nobody else could.
    pub fn join_lz4_behind_gap(self, prepared: PreparedAt, in_requests: bool) -> Self {
        let begin = |bit| FramePosition::at_segment(5 | bit, 0);
        let unread = Unread {
            version: 5,
            compression: Some(Compression::Lz4),
            extensions: (!self.flow.has_unseen_startup).then_some(self.flow.extensions),
            requests: begin(Requests::DIRECTION_BIT),
            responses: begin(Responses::DIRECTION_BIT),
        };
        let mut decoder = Self::join(prepared, unread);
        match in_requests {
            true => decoder.responses = self.responses,
            false => decoder.requests = self.requests,
        }
        decoder
    }

    /// A decoder that goes on where another one was [at rest](Self::at_rest): unlike after [`join`](Self::join) there is no
    /// doubt about the positions, so that what is no frame is treated as anywhere else in a flow.
    pub fn go_on(prepared: PreparedAt, unread: Unread) -> Self {
        let mut decoder = Self::join(prepared, unread);
        decoder.requests.be_sure();
        decoder.responses.be_sure();
        decoder
    }

    /// The position that [`join`](Self::join) was told was not the latest: for a direction of which no
    /// byte was fed since.
    pub fn requests_begin_at(&mut self, position: FramePosition) {
        self.requests.begins_at(position);
    }

    /// Corrects the position of responses, as [`requests_begin_at`](Self::requests_begin_at) does for
    /// requests.
    pub fn responses_begin_at(&mut self, position: FramePosition) {
        self.responses.begins_at(position);
    }

    /// The positions of both directions, for somebody who goes on without decoding the flow.
    pub fn unread(&self) -> Result<Unread, NoPosition> {
        match self.stopped {
            Some(Stop::Undecodable(why)) => return Err(NoPosition::Undecodable(why)),
            Some(Stop::Close(_)) => return Err(NoPosition::Framing),
            None => {}
        }
        let version = match (self.flow.accepted, self.flow.version) {
            (true, Some(version)) => version,
            _ => return Err(NoPosition::Handshake),
        };
        let position = |lane: &Lane, bit| lane.position(&self.flow, version | bit);
        let compression = match &self.flow.compression {
            Fact::Is(compression) => Some(*compression),
            Fact::Open | Fact::Absent | Fact::Unknowable => None,
        };
        if version >= 5 && compression != Some(Compression::None) {
            return Err(NoPosition::Compressed);
        }
        Ok(Unread {
            version,
            compression,
            extensions: (!self.flow.has_unseen_startup).then_some(self.flow.extensions),
            requests: position(&self.requests, Requests::DIRECTION_BIT)?,
            responses: position(&self.responses, Responses::DIRECTION_BIT)?,
        })
    }

    /// The positions of both directions where nothing of the flow is under way: no frame, no segment, and no request without a
    /// response. None: something is. Another decoder goes on from there ([`join`](Self::join)), also with segments that
    /// are compressed.
    ///
    /// # Errors
    /// Nobody can go on with it, or its handshake is not over.
    pub fn at_rest(&self) -> Result<Option<Unread>, NoPosition> {
        let version = match (self.stopped, self.flow.accepted, self.flow.version) {
            (Some(Stop::Undecodable(why)), ..) => return Err(NoPosition::Undecodable(why)),
            (Some(Stop::Close(_)), ..) => return Err(NoPosition::Framing),
            (None, true, Some(version)) => version,
            _ => return Err(NoPosition::Handshake),
        };
        let missing = [&self.requests, &self.responses].map(Lane::missing);
        let is_asked = self.in_flight() > 0 || self.flow.pending.has_unpaired();
        if missing != [0, 0] || is_asked || self.flow.unpaired.is_some() {
            return Ok(None);
        }
        let at = |first| match version {
            5.. => FramePosition::at_segment(first, 0),
            _ => FramePosition::in_frame(first, 0),
        };
        Ok(Some(Unread {
            version,
            compression: match &self.flow.compression {
                Fact::Is(compression) => Some(*compression),
                Fact::Open | Fact::Absent | Fact::Unknowable => None,
            },
            extensions: (!self.flow.has_unseen_startup).then_some(self.flow.extensions),
            requests: at(version | Requests::DIRECTION_BIT),
            responses: at(version | Responses::DIRECTION_BIT),
        }))
    }

    /// The bytes that are to come at least until no request is under way, once the handshake is over: 0 if none is.
    pub fn requests_missing(&self) -> Option<usize> {
        let is_read = self.stopped.is_none() && self.flow.accepted;
        is_read.then(|| self.requests.missing())
    }

    /// Whether a sink that asks for details is given the texts of statements, from the next request on.
    pub fn wants_texts(&mut self, wants: bool) {
        if wants || self.flow.detailing.is_some() {
            self.flow.detailing().wants_texts = wants;
        }
    }

    /// Whether it is told what custom payloads say of [traces](crate::TraceContext), likewise.
    pub fn wants_contexts(&mut self, wants: bool) {
        if wants || self.flow.detailing.is_some() {
            self.flow.detailing().wants_contexts = wants;
        }
    }

    /// Whether it is given the values that are bound to requests, likewise.
    pub fn wants_values(&mut self, wants: bool) {
        if wants || self.flow.detailing.is_some() {
            self.flow.detailing().wants_values = wants;
        }
    }

    /// Whether it is given requests [themselves](crate::WholeRequest), likewise.
    pub fn wants_whole(&mut self, wants: bool) {
        if wants || self.flow.detailing.is_some() {
            self.flow.detailing().wants_whole = wants;
        }
    }

    /// No sink asks for details any more. What is known of requests that wait would be another one's, once somebody
    /// asks again.
    pub fn forget_details(&mut self) {
        self.flow.detailing = None;
    }

    /// Bytes on their way to the database. `now_ns`: a monotonic clock, in ns.
    ///
    /// After a verdict other than [`Verdict::Continue`] every call, in either direction, gives that
    /// verdict again, with nothing to keep.
    pub fn requests(&mut self, now_ns: u64, bytes: &[u8], sink: &mut impl Sink) -> Verdict {
        let Self {
            flow,
            requests,
            stopped,
            ..
        } = self;
        guarded(stopped, || {
            requests.pass::<Requests, _>(flow, now_ns, bytes, sink)
        })
    }

    /// Bytes on their way to the client; otherwise like [`requests`](Self::requests).
    pub fn responses(&mut self, now_ns: u64, bytes: &[u8], sink: &mut impl Sink) -> Verdict {
        let Self {
            flow,
            responses,
            stopped,
            ..
        } = self;
        guarded(stopped, || {
            responses.pass::<Responses, _>(flow, now_ns, bytes, sink)
        })
    }

    /// Goes past bytes on their way to the database that the caller does not have: the rest of a long
    /// body, behind what is read of it. None: they are no such bytes, so something was missed that
    /// has to be read, and nothing has changed.
    pub fn skip_requests(
        &mut self,
        now_ns: u64,
        bytes: usize,
        sink: &mut impl Sink,
    ) -> Option<Verdict> {
        skip::<Requests>(
            &mut self.requests,
            &mut self.flow,
            &mut self.stopped,
            now_ns,
            bytes,
            sink,
        )
    }

    /// Goes past bytes on their way to the client; otherwise like [`skip_requests`](Self::skip_requests).
    pub fn skip_responses(
        &mut self,
        now_ns: u64,
        bytes: usize,
        sink: &mut impl Sink,
    ) -> Option<Verdict> {
        skip::<Responses>(
            &mut self.responses,
            &mut self.flow,
            &mut self.stopped,
            now_ns,
            bytes,
            sink,
        )
    }

    /// The client sends no more.
    pub fn requests_end(&mut self, sink: &mut impl Sink) {
        if self.stopped.is_none() && !self.requests.is_idle() {
            sink.anomaly(Anomaly::TruncatedFrame);
        }
    }

    /// The database sends no more.
    pub fn responses_end(&mut self, sink: &mut impl Sink) {
        if self.stopped.is_none() && !self.responses.is_idle() {
            sink.anomaly(Anomaly::TruncatedFrame);
        }
    }

    /// The flow has ended, or nobody reads it any more. A sink that asks for details is told of all requests
    /// that have no response yet, or only the beginning of one.
    pub fn finish<S: Sink>(&mut self, now_ns: u64, sink: &mut S) {
        if !asks_for_details(sink) {
            return;
        }
        let flow = &mut self.flow;
        let beginning = flow.answering.take().map(|answering| {
            let details = flow.detailing().passing.clone();
            (StreamId(-1), answering.request, Some(details))
        });
        let waited = flow.pending.take().into_iter();
        let waited = waited.map(|(stream, request)| (stream, request, None));
        for (stream, request, details) in beginning.into_iter().chain(waited) {
            let details = details.unwrap_or_else(|| flow.detailing().unanswered(stream));
            sink.unanswered(&request.without_response(stream, now_ns), &details);
        }
        // Only its beginning has passed.
        if let Some((stream, request)) = flow.unpaired.take() {
            let details = flow.detailing().unanswered(stream);
            sink.unanswered(&request.without_response(stream, now_ns), &details);
        }
    }

    /// Requests that wait for a response, or for the end of one.
    pub fn in_flight(&self) -> usize {
        self.flow.pending.len() + usize::from(self.flow.answering.is_some())
    }

    /// Requests that have begun to pass, and whose response has not passed whole.
    pub fn unanswered(&self) -> usize {
        self.in_flight() + usize::from(self.requests.is_in_header())
    }

    /// The keyspace that the flow is in, where that is known.
    pub fn keyspace(&self) -> Option<&str> {
        self.flow.keyspace.as_deref()
    }

    /// Notes the keyspace that the flow is in: of one that was [joined](Self::join) it is not known otherwise.
    pub fn set_keyspace(&mut self, keyspace: Option<&str>) {
        self.flow.keyspace = keyspace.map(Into::into);
    }

    /// The version that the client spoke last; settled once the server accepted a STARTUP.
    pub fn version(&self) -> Option<ProtocolVersion> {
        self.flow.version.and_then(ProtocolVersion::from_byte)
    }
}

/// Has a lane go past bytes unless decoding is over. `None`: it cannot, and nothing has changed.
fn skip<M: Meaning>(
    lane: &mut Lane,
    flow: &mut Flow,
    stopped: &mut Option<Stop>,
    now_ns: u64,
    bytes: usize,
    sink: &mut impl Sink,
) -> Option<Verdict> {
    let mut skipped = true;
    let verdict = guarded(stopped, || {
        skipped = lane.skip::<M>(flow, now_ns, bytes, sink)?;
        Ok(())
    });
    skipped.then_some(verdict)
}

/// Runs `pass` unless decoding is over, and notes when it is.
fn guarded(stopped: &mut Option<Stop>, pass: impl FnOnce() -> Result<(), StopAt>) -> Verdict {
    if let Some(stop) = stopped {
        return stop.verdict(0);
    }
    match pass() {
        Ok(()) => Verdict::Continue,
        Err(StopAt { keep, stop }) => {
            *stopped = Some(stop);
            stop.verdict(keep)
        }
    }
}
