//! [`FlowDecoder`]: one flow's bytes in both directions, cut into segments and frames.
//!
//! What frames mean is in `request` and `response`; here is only how bytes get there, and how a
//! verdict comes back.

use crate::event::{Anomaly, CloseReason, Sink, Undecodable, Verdict};
use crate::frame::{FrameScanner, Header, ProtocolVersion, RESPONSE_BIT, Step};
use crate::pending::{InFlight, Pending};
use crate::place::{NoPlace, Place, Unread};
use crate::prepared::{PreparedCache, PreparedStatements};
use crate::request::{self, Requests};
use crate::response::{self, Responses};
use crate::segment::SegmentReader;
use crate::statement::Statements;
use std::sync::Arc;

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
    /// `prepared`: shared by the flows to one cluster.
    pub fn new(prepared: Arc<PreparedStatements>) -> Self {
        Self {
            flow: Flow::new(prepared),
            requests: Lane::new(request::wanted_bytes),
            responses: Lane::new(response::wanted_bytes),
            stopped: None,
        }
    }

    /// One of a flow that was left as `unread` and has been walked since. In each direction it begins
    /// with the next frame. What is answered without having been asked here was asked before, so it
    /// is no anomaly; which keyspace the flow is in by now is not known.
    ///
    /// If what comes is no frame, the flow is [`Undecodable::Lost`].
    pub fn join(prepared: Arc<PreparedStatements>, unread: Unread) -> Self {
        let mut decoder = Self::new(prepared);
        let flow = &mut decoder.flow;
        flow.version = Some(unread.version);
        flow.accepted = true;
        flow.segmented = unread.is_segmented();
        flow.joined = true;
        decoder.requests.join(unread.requests, &unread);
        decoder.responses.join(unread.responses, &unread);
        decoder
    }

    /// The place that [`join`](Self::join) was told was not the latest: for a direction of which no
    /// byte was fed since.
    pub fn requests_begin_at(&mut self, place: Place) {
        self.requests.begins_at(place);
    }

    /// The same for responses.
    pub fn responses_begin_at(&mut self, place: Place) {
        self.responses.begins_at(place);
    }

    /// Where the flow is, for one who goes on without decoding it.
    pub fn unread(&self) -> Result<Unread, NoPlace> {
        match self.stopped {
            Some(Stop::Undecodable(why)) => return Err(NoPlace::Undecodable(why)),
            Some(Stop::Close(_)) => return Err(NoPlace::Framing),
            None => {}
        }
        let version = match (self.flow.accepted, self.flow.version) {
            (true, Some(version)) => version,
            _ => return Err(NoPlace::Handshake),
        };
        let place = |lane: &Lane, bit| lane.place(&self.flow, version | bit);
        Ok(Unread {
            version,
            requests: place(&self.requests, Requests::DIRECTION_BIT)?,
            responses: place(&self.responses, Responses::DIRECTION_BIT)?,
        })
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
            requests.pass::<Requests>(flow, now_ns, bytes, sink)
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
            responses.pass::<Responses>(flow, now_ns, bytes, sink)
        })
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

    /// Requests that wait for a response, or for the end of one.
    pub fn in_flight(&self) -> usize {
        self.flow.pending.len() + usize::from(self.flow.answering.is_some())
    }

    /// The keyspace that the flow is in, where that is known.
    pub fn keyspace(&self) -> Option<&str> {
        self.flow.keyspace.as_deref()
    }

    /// The version that the client spoke last; settled once the server accepted a STARTUP.
    pub fn version(&self) -> Option<ProtocolVersion> {
        self.flow.version.and_then(ProtocolVersion::from_byte)
    }
}

/// What both directions know of the flow.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Of the client's latest frame.
    pub(crate) version: Option<u8>,
    /// READY or AUTHENTICATE answered a STARTUP: the version is settled.
    pub(crate) accepted: bool,
    /// Both directions travel in segments, from their next frame on.
    pub(crate) segmented: bool,
    /// STARTUP asks for compression, or could not be read.
    pub(crate) compression: bool,
    pub(crate) keyspace: Option<Box<str>>,
    pub(crate) pending: Pending,
    /// The request whose response is passing.
    pub(crate) answering: Option<Answering>,
    pub(crate) statements: Statements,
    pub(crate) prepared: PreparedCache,
    /// Not decoded from its beginning on: of some responses the request was not seen.
    pub(crate) joined: bool,
}

/// A response that is passing, and its request.
#[derive(Debug)]
pub(crate) struct Answering {
    pub(crate) request: InFlight,
    pub(crate) error: Option<crate::event::ErrorCode>,
}

impl Flow {
    pub(crate) fn new(prepared: Arc<PreparedStatements>) -> Self {
        Self {
            version: None,
            accepted: false,
            segmented: false,
            compression: false,
            keyspace: None,
            pending: Pending::default(),
            answering: None,
            statements: Statements::default(),
            prepared: PreparedCache::new(prepared),
            joined: false,
        }
    }
}

/// Decoding cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Undecodable(Undecodable),
    Close(CloseReason),
}

impl Stop {
    fn verdict(self, keep: usize) -> Verdict {
        match self {
            Self::Undecodable(reason) => Verdict::Undecodable(reason),
            Self::Close(reason) => Verdict::Close { keep, reason },
        }
    }
}

/// A stop, and where in the chunk the frame or the segment at fault begins.
struct StopAt {
    keep: usize,
    stop: Stop,
}

/// Where a frame was to begin, none does.
const LOST: StopAt = StopAt {
    keep: 0,
    stop: Stop::Undecodable(Undecodable::Lost),
};

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

/// What frames of one direction mean to the flow. Called in this order for each frame.
pub(crate) trait Meaning {
    /// [`RESPONSE_BIT`] or 0.
    const DIRECTION_BIT: u8;

    /// The version is that of the frame's first byte, which may be all that is there yet.
    fn version(flow: &mut Flow, version: u8, in_first_frame: bool) -> Result<(), Stop>;
    /// The header passed.
    fn header(
        flow: &mut Flow,
        header: &Header,
        in_first_frame: bool,
        now_ns: u64,
        sink: &mut impl Sink,
    ) -> Result<(), Stop>;
    /// The wanted prefix of the body passed.
    fn body(flow: &mut Flow, header: &Header, prefix: &[u8], sink: &mut impl Sink);
    /// The whole frame passed.
    fn end(flow: &mut Flow, header: &Header, now_ns: u64, sink: &mut impl Sink)
    -> Result<(), Stop>;
}

/// One direction.
#[derive(Debug)]
struct Lane {
    scanner: FrameScanner,
    segments: SegmentReader,
    /// This direction is past its last bare frame.
    segmented: bool,
    /// It goes on from here to the first frame that is decoded.
    joins: Option<Place>,
    joined: bool,
}

impl Lane {
    fn new(wanted: fn(&Header) -> usize) -> Self {
        Self {
            scanner: FrameScanner::new(wanted),
            segments: SegmentReader::new(),
            segmented: false,
            joins: None,
            joined: false,
        }
    }

    fn join(&mut self, place: Place, unread: &Unread) {
        self.segmented = unread.is_segmented();
        self.joins = Some(place);
        self.joined = true;
    }

    fn begins_at(&mut self, place: Place) {
        if let Some(joins) = &mut self.joins {
            *joins = place;
        }
    }

    /// Goes to the first frame that is decoded; false when it is not in `bytes`.
    fn joins(&mut self, bytes: &[u8], at: &mut usize) -> Result<bool, StopAt> {
        let Some(place) = &mut self.joins else {
            return Ok(true);
        };
        *at = place.skip(bytes);
        match (place.is_known(), place.is_boundary()) {
            (false, _) => Err(LOST),
            (true, false) => Ok(false),
            (true, true) => {
                self.joins = None;
                Ok(true)
            }
        }
    }

    /// `first`: what its frames begin with.
    fn place(&self, flow: &Flow, first: u8) -> Result<Place, NoPlace> {
        if let Some(place) = self.joins {
            return match place.is_known() {
                true => Ok(place),
                false => Err(NoPlace::Framing),
            };
        }
        if self.segmented {
            let frame_left = self.scanner.left().ok_or(NoPlace::Framing)?;
            let mut place = Place::at_segment(first, frame_left);
            self.segments.replay(&mut place);
            return Ok(place);
        }
        match (flow.segmented, self.scanner.is_idle()) {
            (true, true) => Ok(Place::at_segment(first, 0)),
            // Where segments begin is not seen by who goes on.
            (true, false) => Err(NoPlace::Handshake),
            (false, _) => Ok(self.scanner.place(first)),
        }
    }

    fn is_idle(&self) -> bool {
        self.scanner.is_idle() && self.segments.is_idle()
    }

    fn pass<M: Meaning>(
        &mut self,
        flow: &mut Flow,
        now_ns: u64,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), StopAt> {
        if self.joined {
            return self.pass_joined::<M>(flow, now_ns, bytes, sink);
        }
        self.pass_from::<M>(flow, now_ns, bytes, 0, sink)
    }

    /// Of one that began in the middle. Apart, for most begin at their beginning.
    #[cold]
    fn pass_joined<M: Meaning>(
        &mut self,
        flow: &mut Flow,
        now_ns: u64,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), StopAt> {
        let mut at = 0;
        if !self.joins(bytes, &mut at)? {
            return Ok(());
        }
        match self.pass_from::<M>(flow, now_ns, bytes, at, sink) {
            // Before a frame has proved the place right, it is the place that is wrong.
            Err(_) if self.scanner.in_first_frame() => Err(LOST),
            passed => passed,
        }
    }

    fn pass_from<M: Meaning>(
        &mut self,
        flow: &mut Flow,
        now_ns: u64,
        bytes: &[u8],
        mut at: usize,
        sink: &mut impl Sink,
    ) -> Result<(), StopAt> {
        if !self.segmented {
            self.bare::<M>(flow, now_ns, bytes, &mut at, sink)?;
        }
        if self.segmented {
            self.segments::<M>(flow, now_ns, bytes, &mut at, sink)?;
        }
        Ok(())
    }

    /// Frames as they are, up to the one after which segments begin.
    fn bare<M: Meaning>(
        &mut self,
        flow: &mut Flow,
        now_ns: u64,
        bytes: &[u8],
        at: &mut usize,
        sink: &mut impl Sink,
    ) -> Result<(), StopAt> {
        let mut frame_start = *at;
        loop {
            if self.scanner.is_idle() {
                if flow.segmented {
                    self.segmented = true;
                    return Ok(());
                }
                frame_start = *at;
            }
            match frame_step::<M>(&mut self.scanner, flow, now_ns, bytes, at, sink) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(stop) => {
                    return Err(StopAt {
                        keep: frame_start,
                        stop,
                    });
                }
            }
        }
    }

    /// Segments, and the frames within each.
    fn segments<M: Meaning>(
        &mut self,
        flow: &mut Flow,
        now_ns: u64,
        bytes: &[u8],
        at: &mut usize,
        sink: &mut impl Sink,
    ) -> Result<(), StopAt> {
        let Self {
            scanner, segments, ..
        } = self;
        loop {
            // A segment that is not idle here began in an earlier chunk, and this is still 0.
            let keep = *at;
            let close = |reason| StopAt {
                keep,
                stop: Stop::Close(reason),
            };
            let Some(segment) = segments
                .step(bytes, at)
                .map_err(|_| close(CloseReason::SegmentCrc))?
            else {
                return Ok(());
            };
            if segment.self_contained && !scanner.is_idle() {
                return Err(close(CloseReason::SegmentLength));
            }
            let mut within = 0;
            while frame_step::<M>(scanner, flow, now_ns, segment.payload, &mut within, sink)
                .map_err(|stop| StopAt { keep, stop })?
            {}
            if segment.self_contained && !scanner.is_idle() {
                return Err(close(CloseReason::SegmentLength));
            }
        }
    }
}

/// One step of the scanner, and what it means. False when the input is used up.
fn frame_step<M: Meaning>(
    scanner: &mut FrameScanner,
    flow: &mut Flow,
    now_ns: u64,
    input: &[u8],
    at: &mut usize,
    sink: &mut impl Sink,
) -> Result<bool, Stop> {
    let in_first_frame = scanner.in_first_frame();
    match scanner.step(input, at) {
        Step::Starved => return Ok(false),
        Step::First(byte) => first_byte::<M>(flow, byte, in_first_frame)?,
        Step::BadLength if in_first_frame => return Err(Stop::Undecodable(Undecodable::NotCql)),
        Step::BadLength => return Err(Stop::Close(CloseReason::Length)),
        Step::Header(header) => M::header(flow, &header, in_first_frame, now_ns, sink)?,
        Step::Body(header, prefix) => M::body(flow, &header, prefix, sink),
        Step::End(header) => M::end(flow, &header, now_ns, sink)?,
    }
    Ok(true)
}

/// `handshake`, the type of a TLS record (RFC 8446 §5.1).
pub(crate) const TLS_HANDSHAKE: u8 = 0x16;

/// A frame's first byte. The first frame of a direction decides whether this is CQL at all, and
/// what is not CQL is relayed; later on, the same byte means that framing is lost.
fn first_byte<M: Meaning>(flow: &mut Flow, byte: u8, in_first_frame: bool) -> Result<(), Stop> {
    if in_first_frame && byte == TLS_HANDSHAKE {
        return Err(Stop::Undecodable(Undecodable::Tls));
    }
    if byte & RESPONSE_BIT != M::DIRECTION_BIT {
        return Err(match in_first_frame {
            true => Stop::Undecodable(Undecodable::NotCql),
            false => Stop::Close(CloseReason::Direction),
        });
    }
    M::version(flow, byte & !RESPONSE_BIT, in_first_frame)
}

/// What a version byte that is not decoded means before a version is settled.
pub(crate) fn foreign_version(version: u8, in_first_frame: bool) -> Stop {
    match version {
        // Cassandra's own, past and to come, and DataStax Enterprise's.
        1 | 2 | 6..=0x0F | 0x41 | 0x42 => Stop::Undecodable(Undecodable::Version),
        _ if in_first_frame => Stop::Undecodable(Undecodable::NotCql),
        _ => Stop::Close(CloseReason::VersionChanged),
    }
}
