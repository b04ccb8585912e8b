//! [`TappedFlow`]: both directions of a flow, and their decoder.

use cql::{
    Compression, FlowDecoder, FramePosition, Framing, NoPosition, PreparedAt, Sink, Undecodable,
    Unread, Verdict,
};

use crate::asking::{AskedSession, Asking};
use crate::follower::{Follower, Piece, Told};
use crate::packet::{Direction, KernelFraming, Packet};

/// The bit of a frame's first byte that marks a response (`native_protocol_v5.spec` §2.4.1.1).
const RESPONSE_BIT: u8 = 0x80;

/// Counts of what a flow has missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times that bytes were missed.
    pub gaps: u64,
    /// Requests that had begun to pass when bytes were missed, and so are paired with no response.
    pub abandoned: u64,
}

/// How a flow is read.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a flow that is not decoded soon is again, or has ended"
)]
enum Reading {
    Decodes(FlowDecoder),
    /// Until a frame begins in either direction: what has passed is not known.
    Waits,
    /// A frame begins with the next bytes that are told.
    Begins(KernelFraming),
    Stopped(Undecodable),
}

/// A reader that is shown the bytes of a flow beside its decoder: each byte once and in order.
pub trait Beside {
    /// The next bytes of a direction.
    fn bytes(&mut self, direction: Direction, at_ns: u64, bytes: &[u8]);
    /// So many bytes of a body of which there is no copy.
    fn skipped(&mut self, direction: Direction, bytes: usize);
    /// Something happened between two bytes.
    fn happened(&mut self, what: Happened);
}

/// An event of reading between two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// Bytes of a direction were missed. The next ones of it begin with a frame, or with a segment of whole frames.
    Missed(Direction),
    /// Reading begins with the next bytes, in both directions with a frame of this version, or with a segment.
    Joined {
        /// 3, 4 or 5.
        version: u8,
        /// The compression of the segments in which frames travel. None: they travel as they are.
        segments: Option<Compression>,
    },
}

/// A flow that is read from copies of its packets.
#[derive(Debug)]
pub struct TappedFlow {
    requests: Follower,
    responses: Follower,
    reader: Reader,
}

/// The decoder, and what another one needs that comes after it.
#[derive(Debug)]
struct Reader {
    reading: Reading,
    prepared: PreparedAt,
    wants_texts: bool,
    wants_contexts: bool,
    wants_values: bool,
    wants_whole: bool,
    counts: Counts,
    /// None: the flow's session is not asked for.
    asking: Option<Box<Asking>>,
    /// Directions of which nothing more can be read before a frame begins.
    loses: [bool; 2],
    /// The events of reading while a piece was read: of one direction, and of both.
    happened: [Option<Happened>; 2],
}

impl TappedFlow {
    /// Makes a flow of which nothing has been seen. `prepared`: shared by the flows to one cluster.
    pub fn new(prepared: PreparedAt) -> Self {
        Self {
            requests: Follower::default(),
            responses: Follower::default(),
            reader: Reader {
                reading: Reading::Waits,
                prepared,
                wants_texts: false,
                wants_contexts: false,
                wants_values: false,
                wants_whole: false,
                counts: Counts::default(),
                asking: None,
                loses: [false; 2],
                happened: [None; 2],
            },
        }
    }

    /// Whether a sink that asks for details is given texts of statements, what custom payloads say of
    /// traces, and bound values: see [`FlowDecoder::wants_texts`].
    pub fn wants(&mut self, texts: bool, contexts: bool, values: bool) {
        let reader = &self.reader;
        let wanted = [
            reader.wants_texts,
            reader.wants_contexts,
            reader.wants_values,
        ];
        // Asked with every packet.
        if wanted == [texts, contexts, values] {
            return;
        }
        self.reader.wants_texts = texts;
        self.reader.wants_contexts = contexts;
        self.reader.wants_values = values;
        if let Reading::Decodes(decoder) = &mut self.reader.reading {
            decoder.wants_texts(texts);
            decoder.wants_contexts(contexts);
            decoder.wants_values(values);
        }
    }

    /// Whether it is given requests themselves: see [`FlowDecoder::wants_whole`].
    pub fn wants_whole(&mut self, whole: bool) {
        if self.reader.wants_whole == whole {
            return;
        }
        self.reader.wants_whole = whole;
        if let Reading::Decodes(decoder) = &mut self.reader.reading {
            decoder.wants_whole(whole);
        }
    }

    /// No sink asks for details any more: see [`FlowDecoder::forget_details`].
    pub fn forget_details(&mut self) {
        self.wants(false, false, false);
        self.wants_whole(false);
        if let Reading::Decodes(decoder) = &mut self.reader.reading {
            decoder.forget_details();
        }
    }

    /// Has the handshake tell of the session, until [`Self::asks_no_more`]. To be called before anything passes.
    pub fn asks(&mut self) {
        let prepared = self.reader.prepared.clone();
        self.reader.asking = Some(Box::new(Asking::new(prepared)));
    }

    /// The session need not be known: only a few more packets are looked at for it.
    pub fn asks_a_while(&mut self) {
        if let Some(asking) = &mut self.reader.asking {
            asking.ends_soon();
        }
    }

    /// The session, as far as it is known. None: it is not asked for, or there is nothing new.
    pub fn session(&mut self) -> Option<AskedSession<'_>> {
        self.reader.asking.as_mut()?.news()
    }

    /// The session need not be known any more.
    pub fn asks_no_more(&mut self) {
        self.reader.asking = None;
    }

    /// The direction's first byte has this sequence number. With the first one of a flow it is decoded from
    /// its beginning on.
    pub fn begin(&mut self, direction: Direction, seq: u32) {
        let is_new = |follower: &Follower| !follower.follows();
        if is_new(&self.requests) && is_new(&self.responses) {
            let decoder = FlowDecoder::new(self.reader.prepared.clone());
            self.reader.decode_by(decoder);
        }
        self.follower(direction).begin(seq);
    }

    /// Takes a packet. `beside` is shown what is read of it, too.
    pub fn packet(
        &mut self,
        direction: Direction,
        packet: &Packet<'_>,
        sink: &mut impl Sink,
        mut beside: Option<&mut dyn Beside>,
    ) {
        let Self {
            requests,
            responses,
            reader,
        } = self;
        if let Reading::Stopped(_) = reader.reading {
            return;
        }
        let follower = match direction {
            Direction::Requests => requests,
            Direction::Responses => responses,
        };
        follower.push(packet, &mut |told| match &mut beside {
            None => reader.take(direction, told, sink),
            Some(beside) => reader.take_beside(direction, told, sink, &mut **beside),
        });
        let [requests, responses] = std::mem::take(&mut self.reader.loses);
        if requests {
            self.requests.lose();
        }
        if responses {
            self.responses.lose();
        }
    }

    /// The flow has ended, or nobody reads it any more. A sink that asks for details is told of requests
    /// that have no response.
    pub fn finish(&mut self, now_ns: u64, sink: &mut impl Sink) {
        if let Reading::Decodes(decoder) = &mut self.reader.reading {
            decoder.requests_end(sink);
            decoder.responses_end(sink);
            decoder.finish(now_ns, sink);
        }
    }

    /// Counts of what was missed so far.
    pub fn counts(&self) -> Counts {
        self.reader.counts
    }

    /// Why the flow is not read any more. None: it is.
    pub fn stopped(&self) -> Option<Undecodable> {
        match self.reader.reading {
            Reading::Stopped(why) => Some(why),
            _ => None,
        }
    }

    fn follower(&mut self, direction: Direction) -> &mut Follower {
        match direction {
            Direction::Requests => &mut self.requests,
            Direction::Responses => &mut self.responses,
        }
    }
}

impl Reader {
    fn decode_by(&mut self, mut decoder: FlowDecoder) {
        decoder.wants_texts(self.wants_texts);
        decoder.wants_contexts(self.wants_contexts);
        decoder.wants_values(self.wants_values);
        decoder.wants_whole(self.wants_whole);
        self.reading = Reading::Decodes(decoder);
    }

    /// Takes a piece, and shows it to somebody else, too, if it could be read.
    fn take_beside(
        &mut self,
        direction: Direction,
        told: Told<'_>,
        sink: &mut impl Sink,
        beside: &mut dyn Beside,
    ) {
        if self.is_lost(direction) {
            return;
        }
        let (piece, at_ns) = (told.piece, told.at_ns);
        self.happened = [None; 2];
        self.take(direction, told, sink);
        let happened = std::mem::take(&mut self.happened);
        happened
            .into_iter()
            .flatten()
            .for_each(|h| beside.happened(h));
        if !matches!(self.reading, Reading::Decodes(_)) || self.is_lost(direction) {
            return;
        }
        match piece {
            Piece::Bytes(bytes) => beside.bytes(direction, at_ns, bytes),
            Piece::Skipped(bytes) => beside.skipped(direction, bytes as usize),
            Piece::Gap | Piece::Resumed(_) => {}
        }
    }

    fn take(&mut self, direction: Direction, told: Told<'_>, sink: &mut impl Sink) {
        // What follows cannot be read, and is not in a gap of its own.
        if self.is_lost(direction) {
            return;
        }
        if let Some(asking) = &mut self.asking {
            match told.piece {
                Piece::Bytes(bytes) => asking.bytes(direction, bytes),
                Piece::Skipped(bytes) => asking.skipped(direction, bytes),
                Piece::Gap | Piece::Resumed(_) => asking.miss(),
            }
        }
        match told.piece {
            Piece::Bytes(bytes) => self.bytes(direction, told.at_ns, bytes, sink),
            Piece::Skipped(bytes) => self.skipped(direction, told.at_ns, bytes, sink),
            Piece::Gap => self.gap(direction, told.at_ns, sink),
            Piece::Resumed(framing) => match self.reading {
                Reading::Waits => self.reading = Reading::Begins(framing),
                // Requests have passed since the gap began, and some of their responses were in it.
                Reading::Decodes(_) if direction == Direction::Responses => {
                    self.join_behind_gap(direction, told.at_ns, sink);
                }
                _ => {}
            },
        }
    }

    fn bytes(&mut self, direction: Direction, at_ns: u64, bytes: &[u8], sink: &mut impl Sink) {
        if let Reading::Begins(framing) = self.reading {
            self.join(direction, framing, bytes);
        }
        let Reading::Decodes(decoder) = &mut self.reading else {
            return;
        };
        let verdict = match direction {
            Direction::Requests => decoder.requests(at_ns, bytes, sink),
            Direction::Responses => decoder.responses(at_ns, bytes, sink),
        };
        self.obey(verdict, at_ns, sink);
    }

    fn skipped(&mut self, direction: Direction, at_ns: u64, bytes: u32, sink: &mut impl Sink) {
        let Reading::Decodes(decoder) = &mut self.reading else {
            return;
        };
        let bytes = bytes as usize;
        let verdict = match direction {
            Direction::Requests => decoder.skip_requests(at_ns, bytes, sink),
            Direction::Responses => decoder.skip_responses(at_ns, bytes, sink),
        };
        match verdict {
            Some(verdict) => self.obey(verdict, at_ns, sink),
            None => {
                self.gap(direction, at_ns, sink);
                self.set_lost(direction);
            }
        }
    }

    fn obey(&mut self, verdict: Verdict, at_ns: u64, sink: &mut impl Sink) {
        let stopped = match verdict {
            Verdict::Continue => return,
            // No frame began where the kernel took one for it, or copies have what the peers do not read, as a byte of urgent
            // data: a frame is looked for again. (If they have lost each other, they end the flow themselves.)
            Verdict::Undecodable(Undecodable::Lost) | Verdict::Close { .. } => {
                self.counts.gaps += 1;
                return self.start_anew(at_ns, sink);
            }
            Verdict::Undecodable(why) => why,
        };
        self.abandon(at_ns, sink);
        self.reading = Reading::Stopped(stopped);
        // No packet is looked at any more.
        if let Some(asking) = &mut self.asking {
            asking.miss();
        }
    }

    /// Bytes of this direction were missed. Whatever waits for a response is paired with none: which
    /// responses were among those bytes, or belong to requests among them, nobody knows.
    fn gap(&mut self, direction: Direction, at_ns: u64, sink: &mut impl Sink) {
        if let Reading::Decodes(_) = &self.reading {
            self.counts.gaps += 1;
            self.join_behind_gap(direction, at_ns, sink);
        }
    }

    /// Goes on with a decoder that has seen nothing of what is asked and not answered.
    fn join_behind_gap(&mut self, direction: Direction, at_ns: u64, sink: &mut impl Sink) {
        let Reading::Decodes(decoder) = &self.reading else {
            return;
        };
        let unread = match decoder.unread() {
            Ok(unread) => Some(unread),
            // Only the decoder itself can go on with the other direction.
            Err(NoPosition::Compressed) => None,
            Err(_) => return self.start_anew(at_ns, sink),
        };
        self.happened[0] = Some(Happened::Missed(direction));
        self.abandon(at_ns, sink);
        let prepared = self.prepared.clone();
        let before = std::mem::replace(&mut self.reading, Reading::Waits);
        match (unread, before) {
            (Some(unread), _) => {
                self.decode_by(FlowDecoder::join(prepared, behind_gap(unread, direction)));
            }
            (None, Reading::Decodes(decoder)) => {
                let in_requests = direction == Direction::Requests;
                self.decode_by(decoder.join_lz4_behind_gap(prepared, in_requests));
            }
            (None, _) => {}
        }
    }

    /// Begins again with the next frame of either direction.
    fn start_anew(&mut self, at_ns: u64, sink: &mut impl Sink) {
        self.abandon(at_ns, sink);
        self.reading = Reading::Waits;
        self.loses = [true; 2];
    }

    /// Tells of the requests that get no response.
    fn abandon(&mut self, at_ns: u64, sink: &mut impl Sink) {
        if let Reading::Decodes(decoder) = &mut self.reading {
            self.counts.abandoned += decoder.unanswered() as u64;
            decoder.finish(at_ns, sink);
        }
    }

    /// Makes a decoder that begins with the frame that begins with `bytes`. The other direction begins with
    /// a frame, too, when it does.
    fn join(&mut self, direction: Direction, framing: KernelFraming, bytes: &[u8]) {
        let first = bytes.first().copied().unwrap_or_default();
        let (framing, version, segments) = match framing {
            KernelFraming::Frames => (Framing::Frames, first & !RESPONSE_BIT, None),
            KernelFraming::Segments => (Framing::Segments, 5, Some(Compression::None)),
            KernelFraming::SegmentsLz4 => (Framing::Segments, 5, Some(Compression::Lz4)),
            KernelFraming::Unsure => return self.wait_again(direction),
        };
        let positions = (
            beginning(framing, version),
            beginning(framing, version | RESPONSE_BIT),
        );
        match Unread::told(positions.0, positions.1, segments, None) {
            Ok(unread) => {
                self.happened[1] = Some(Happened::Joined { version, segments });
                self.decode_by(FlowDecoder::join(self.prepared.clone(), unread));
            }
            // Before segments begin, v5's handshake is under way: what was agreed on is not known.
            Err(_) => self.wait_again(direction),
        }
    }

    /// Waits for another frame: with the one that begins in this direction nobody can begin to read.
    fn wait_again(&mut self, direction: Direction) {
        self.reading = Reading::Waits;
        self.set_lost(direction);
    }

    fn set_lost(&mut self, direction: Direction) {
        match (&mut self.loses, direction) {
            ([requests, _], Direction::Requests) => *requests = true,
            ([_, responses], Direction::Responses) => *responses = true,
        }
    }

    fn is_lost(&self, direction: Direction) -> bool {
        match (self.loses, direction) {
            ([requests, _], Direction::Requests) => requests,
            ([_, responses], Direction::Responses) => responses,
        }
    }
}

/// The positions of both directions, where bytes of this one were missed, and it goes on with a frame.
fn behind_gap(mut unread: Unread, direction: Direction) -> Unread {
    let place = match direction {
        Direction::Requests => &mut unread.requests,
        Direction::Responses => &mut unread.responses,
    };
    *place = beginning(place.framing, place.first);
    unread
}

/// The position between two frames, or two segments, of a direction whose frames begin with this byte.
fn beginning(framing: Framing, first: u8) -> FramePosition {
    FramePosition {
        framing,
        first,
        ..FramePosition::UNKNOWN
    }
}
