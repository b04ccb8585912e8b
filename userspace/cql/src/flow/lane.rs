//! [`Lane`]: one direction's bytes, cut into segments and frames.

use crate::fact::Fact;
use crate::flow::event::{Frame, MAX_FRAME_BODY_BYTES, Sink};
use crate::flow::state::{Flow, Stop};
use crate::verdict::{CloseReason, Undecodable};
use crate::wire::compress::beginning;
use crate::wire::compression::Compression;
use crate::wire::header::{Flags, Header, RESPONSE_BIT, TLS_HANDSHAKE};
use crate::wire::position::{FramePosition, Framing, NoPosition, Unread};
use crate::wire::scanner::{FrameScanner, Step};
use crate::wire::segment::Broken;
use crate::wire::segment_reader::SegmentReader;

/// The buffer for expanded bodies is kept from frame to frame up to this many bytes. The frame scanner's
/// constant of this name gives the reason.
const KEPT_BUFFER_BYTES: usize = 16 << 10;

/// The meaning of one direction's frames to the flow. Its functions are called in this order for each
/// frame.
pub(crate) trait Meaning {
    /// [`RESPONSE_BIT`] or 0.
    const DIRECTION_BIT: u8;

    /// How much of a body is worth seeing.
    fn wanted(header: &Header) -> usize;
    /// How much of a body is worth seeing to a sink that asks for details.
    fn wanted_in_detail(header: &Header) -> usize;
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
    /// The wanted prefix of the body passed. Of a body that was compressed and could be read, `header` is
    /// what it would be if it was not; of one that could not, there is no prefix.
    fn body(flow: &mut Flow, header: &Header, prefix: &[u8], sink: &mut impl Sink);
    /// The whole frame passed.
    fn end(flow: &mut Flow, header: &Header, now_ns: u64, sink: &mut impl Sink)
    -> Result<(), Stop>;
}

/// A stop, and where in the chunk the frame or the segment at fault begins.
pub(crate) struct StopAt {
    pub(crate) keep: usize,
    pub(crate) stop: Stop,
}

/// The stop for a flow in which no frame begins where one was expected.
const LOST: StopAt = StopAt {
    keep: 0,
    stop: Stop::Undecodable(Undecodable::Lost),
};

/// A direction's bytes on their way through segments and frames.
#[derive(Debug)]
pub(crate) struct Lane {
    scanner: FrameScanner,
    segments: SegmentReader,
    /// The direction is past its last bare frame.
    segmented: bool,
    /// The position from which the lane goes on to the first frame that is decoded.
    joins: Option<FramePosition>,
    joined: bool,
}

impl Lane {
    pub(crate) fn new(wanted: fn(&Header) -> usize) -> Self {
        Self {
            scanner: FrameScanner::new(wanted),
            segments: SegmentReader::new(),
            segmented: false,
            joins: None,
            joined: false,
        }
    }

    pub(crate) fn join(&mut self, position: FramePosition, unread: &Unread) {
        self.segmented = unread.is_segmented();
        if self.segmented && unread.compression() == Some(Compression::Lz4) {
            self.segments.become_lz4();
        }
        self.joins = Some(position);
        self.joined = true;
    }

    /// The position is that of a frame, without doubt.
    pub(crate) fn be_sure(&mut self) {
        self.scanner.begin_behind_first();
    }

    pub(crate) fn begins_at(&mut self, position: FramePosition) {
        if let Some(joins) = &mut self.joins {
            *joins = position;
        }
    }

    /// Goes to the first frame that is decoded; false when it is not in `bytes`.
    fn joins(&mut self, bytes: &[u8], at: &mut usize) -> Result<bool, StopAt> {
        let Some(position) = &mut self.joins else {
            return Ok(true);
        };
        *at = position.skip(bytes);
        match (position.is_known(), position.is_boundary()) {
            (false, _) => Err(LOST),
            (true, false) => Ok(false),
            (true, true) => {
                self.joins = None;
                Ok(true)
            }
        }
    }

    /// Returns where in a frame the direction is. `first`: the byte that its frames begin with.
    pub(crate) fn position(&self, flow: &Flow, first: u8) -> Result<FramePosition, NoPosition> {
        if let Some(position) = self.joins {
            return match position.is_known() {
                true => Ok(position),
                false => Err(NoPosition::Framing),
            };
        }
        if self.segmented {
            let frame_left = self.scanner.left().ok_or(NoPosition::Framing)?;
            let mut position = FramePosition::at_segment(first, frame_left);
            self.segments.replay(&mut position);
            return Ok(position);
        }
        match (flow.segmented, self.scanner.is_idle()) {
            (true, true) => Ok(FramePosition::at_segment(first, 0)),
            // Where segments begin is not seen by who goes on.
            (true, false) => Err(NoPosition::Handshake),
            (false, _) => Ok(self.scanner.position(first)),
        }
    }

    /// The bytes that are to come at least until the direction is between two frames, and between two segments: 0 there.
    pub(crate) fn missing(&self) -> usize {
        if let Some(position) = &self.joins {
            return position.missing();
        }
        if !self.segmented {
            return self.scanner.missing();
        }
        match (self.segments.missing(), self.scanner.is_idle()) {
            // The frame goes on in another one.
            (0, false) => self.segments.header_bytes(),
            (missing, _) => missing,
        }
    }

    /// Whether a frame that is decoded has begun, and its header has not passed.
    pub(crate) fn is_in_header(&self) -> bool {
        self.joins.is_none() && self.scanner.left().is_none()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.scanner.is_idle() && self.segments.is_idle()
    }

    pub(crate) fn pass<M: Meaning, S: Sink>(
        &mut self,
        flow: &mut Flow,
        now_ns: u64,
        bytes: &[u8],
        sink: &mut S,
    ) -> Result<(), StopAt> {
        if S::DETAILS || S::FRAMES {
            self.scanner.want(wanted_by::<M, S>(sink));
        }
        if self.joined {
            return self.pass_joined::<M>(flow, now_ns, bytes, sink);
        }
        self.pass_from::<M>(flow, now_ns, bytes, 0, sink)
    }

    /// Passes bytes that nobody has, of a body's part that is not read. False: they are something else,
    /// or in a segment, whose checksum is of all of them.
    pub(crate) fn skip<M: Meaning>(
        &mut self,
        flow: &mut Flow,
        now_ns: u64,
        bytes: usize,
        sink: &mut impl Sink,
    ) -> Result<bool, StopAt> {
        if self.segmented {
            return Ok(false);
        }
        if let Some(place) = &mut self.joins {
            let skips = place.framing == Framing::Frames && bytes <= place.left as usize;
            if skips {
                place.left -= bytes as u32;
            }
            return Ok(skips);
        }
        // The end of the frame comes with the next step, which needs no byte.
        if !self.scanner.skip(bytes) {
            return Ok(false);
        }
        self.bare::<M>(flow, now_ns, &[], &mut 0, sink)?;
        Ok(true)
    }

    /// Passes a chunk of a lane that began in the middle. A function of its own, because most lanes
    /// begin at the beginning.
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
            // Before a frame has proved the position right, it is the position that is wrong.
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

    /// Reads frames without segments, up to the one after which segments begin.
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
                    if flow.compression == Fact::Is(Compression::Lz4) {
                        self.segments.become_lz4();
                    }
                    return Ok(());
                }
                frame_start = *at;
            }
            match next_frame::<M>(&mut self.scanner, flow, now_ns, bytes, at, sink) {
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
            let Some(segment) = segments.step(bytes, at).map_err(|broken| match broken {
                Broken::Crc if flow.may_be_beta => StopAt {
                    keep,
                    stop: Stop::Undecodable(Undecodable::Version),
                },
                Broken::Crc => close(CloseReason::SegmentCrc),
                Broken::Compression => close(CloseReason::SegmentCompression),
            })?
            else {
                return Ok(());
            };
            flow.may_be_beta = false;
            if segment.self_contained && !scanner.is_idle() {
                return Err(close(CloseReason::SegmentLength));
            }
            let mut within = 0;
            while next_frame::<M>(scanner, flow, now_ns, segment.payload, &mut within, sink)
                .map_err(|stop| StopAt { keep, stop })?
            {}
            if segment.self_contained && !scanner.is_idle() {
                return Err(close(CloseReason::SegmentLength));
            }
        }
    }
}

/// Reads the next frame, or as much of it as there is. False when the input is used up.
fn next_frame<M: Meaning>(
    scanner: &mut FrameScanner,
    flow: &mut Flow,
    now_ns: u64,
    input: &[u8],
    at: &mut usize,
    sink: &mut impl Sink,
) -> Result<bool, Stop> {
    let rest = input.get(*at..).unwrap_or_default();
    let Some((header, carried)) = scanner.whole(rest) else {
        return frame_in_pieces::<M>(scanner, flow, now_ns, input, at, sink);
    };
    let in_first_frame = scanner.in_first_frame();
    if let Some(first) = rest.first() {
        first_byte::<M>(flow, *first, in_first_frame)?;
    }
    M::header(flow, &header, in_first_frame, now_ns, sink)?;
    body_passes::<M, _>(flow, &header, carried, sink);
    M::end(flow, &header, now_ns, sink)?;
    *at += header.frame_bytes() as usize;
    scanner.pass_whole();
    Ok(true)
}

/// Reads on in a frame that comes in pieces. False when the input is used up before its end.
#[inline(never)]
fn frame_in_pieces<M: Meaning>(
    scanner: &mut FrameScanner,
    flow: &mut Flow,
    now_ns: u64,
    input: &[u8],
    at: &mut usize,
    sink: &mut impl Sink,
) -> Result<bool, Stop> {
    let in_first_frame = scanner.in_first_frame();
    loop {
        match scanner.step(input, at) {
            Step::Starved => return Ok(false),
            Step::First(byte) => first_byte::<M>(flow, byte, in_first_frame)?,
            Step::BadLength if in_first_frame => {
                return Err(Stop::Undecodable(Undecodable::NotCql));
            }
            Step::BadLength => return Err(Stop::Close(CloseReason::Length)),
            Step::Header(header) => M::header(flow, &header, in_first_frame, now_ns, sink)?,
            Step::Body(header, carried) => body_passes::<M, _>(flow, &header, carried, sink),
            Step::End(header) => {
                M::end(flow, &header, now_ns, sink)?;
                return Ok(true);
            }
        }
    }
}

/// Tells the meaning of a body, of which what is worth seeing has passed.
fn body_passes<M: Meaning, S: Sink>(
    flow: &mut Flow,
    header: &Header,
    carried: &[u8],
    sink: &mut S,
) {
    if header.is_compressed() {
        return compressed_body::<M, S>(flow, header, carried, sink);
    }
    frame_passes::<M, S>(header, carried, sink);
    M::body(flow, header, carried, sink);
}

/// How much of a body is worth seeing, to such a sink.
fn wanted_by<M: Meaning, S: Sink>(sink: &S) -> fn(&Header) -> usize {
    match (S::DETAILS, S::FRAMES && sink.wants_bodies()) {
        (false, false) => M::wanted,
        (true, false) => M::wanted_in_detail,
        (false, true) => |header| M::wanted(header).max(MAX_FRAME_BODY_BYTES),
        (true, true) => |header| M::wanted_in_detail(header).max(MAX_FRAME_BODY_BYTES),
    }
}

/// Tells a sink that asks for it; `body` is its beginning, without compression.
fn frame_passes<M: Meaning, S: Sink>(header: &Header, body: &[u8], sink: &mut S) {
    if S::FRAMES {
        sink.frame(&Frame {
            is_request: M::DIRECTION_BIT == 0,
            version: header.version,
            flags: header.flags.0,
            stream: header.stream,
            opcode: header.opcode,
            length: header.length,
            body: body.get(..MAX_FRAME_BODY_BYTES).unwrap_or(body),
        });
    }
}

/// A body of which as much passed as is enough for what is wanted of it.
#[cold]
#[inline(never)]
fn compressed_body<M: Meaning, S: Sink>(
    flow: &mut Flow,
    header: &Header,
    carried: &[u8],
    sink: &mut S,
) {
    let wanted = wanted_by::<M, S>(sink)(header);
    let mut plain = std::mem::take(&mut flow.plain);
    let is_whole = carried.len() == header.length as usize;
    // A decoder that joined has not heard what was agreed on.
    let recognised;
    let how = match &flow.compression {
        Fact::Open => {
            recognised = flow.recognised.by(carried, is_whole);
            &recognised
        }
        known => known,
    };
    let read = beginning(how, carried, is_whole, wanted, &mut plain);
    if read.is_none() {
        flow.recognised.give_up();
    }
    frame_passes::<M, S>(header, if read.is_some() { &plain } else { &[] }, sink);
    match read {
        Some(length) => {
            let header = Header {
                flags: header.flags.without(Flags::COMPRESSION),
                length,
                ..*header
            };
            M::body(flow, &header, &plain, sink);
        }
        None => M::body(flow, header, &[], sink),
    }
    plain.clear();
    plain.shrink_to(KEPT_BUFFER_BYTES);
    flow.plain = plain;
}

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

/// The stop for a version byte that is not decoded, before a version is settled.
pub(crate) fn foreign_version(version: u8, in_first_frame: bool) -> Stop {
    match version {
        // Cassandra's own, past and to come, and DataStax Enterprise's.
        1 | 2 | 6..=0x0F | 0x41 | 0x42 => Stop::Undecodable(Undecodable::Version),
        _ if in_first_frame => Stop::Undecodable(Undecodable::NotCql),
        _ => Stop::Close(CloseReason::VersionChanged),
    }
}
