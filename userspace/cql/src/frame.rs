//! Frames (v5: "envelopes"): nine bytes of header and a body (`native_protocol_v4.spec` §2,
//! `native_protocol_v5.spec` §2.4.1).
//!
//! [`FrameScanner`] cuts bytes that arrive in arbitrary pieces into frames. It shows the beginning
//! of each body, as much of it as `wanted` says, in place when it is whole in the piece at hand.

use crate::compress::enough_for;
use crate::place::Place;

/// The largest body, in bytes: the specifications name 256 MB as the limit, and Cassandra before
/// 4.0 allows as much by default (`native_transport_max_frame_size_in_mb`).
pub const MAX_BODY_BYTES: u32 = 256 << 20;

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 9;

/// A body prefix that was collected from pieces keeps its buffer up to this many bytes from frame
/// to frame: enough for ordinary requests, little enough for ten thousand idle flows.
const KEPT_BUFFER_BYTES: usize = 16 << 10;

/// The number that pairs a response with its request. Below 0: the server's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub i16);

/// A protocol version that is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProtocolVersion {
    /// Cassandra 2.1
    V3,
    /// Cassandra 2.2
    V4,
    /// Cassandra 4.0; segments after the handshake
    V5,
}

impl ProtocolVersion {
    /// From a frame's first byte without its direction bit.
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            3 => Some(Self::V3),
            4 => Some(Self::V4),
            5 => Some(Self::V5),
            _ => None,
        }
    }

    /// The name as a metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V3 => "v3",
            Self::V4 => "v4",
            Self::V5 => "v5",
        }
    }
}

/// The bit of the first byte that marks a response.
pub const RESPONSE_BIT: u8 = 0x80;

/// A frame's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// The body is compressed as STARTUP has asked for.
    pub const COMPRESSION: Self = Self(0x01);
    /// Requests: the database is to trace this one. Responses: a tracing id stands in front of the body.
    pub const TRACING: Self = Self(0x02);
    /// A bytes map stands in front of the body.
    pub const CUSTOM_PAYLOAD: Self = Self(0x04);
    /// A list of warnings stands in front of the body; only in responses.
    pub const WARNING: Self = Self(0x08);
    pub(crate) const BETA: Self = Self(0x10);
    /// What no version defines.
    pub(crate) const RESERVED: Self = Self(0xE0);
    /// Those that put something in front of the body proper.
    pub const PRELUDE: Self = Self(Self::TRACING.0 | Self::CUSTOM_PAYLOAD.0 | Self::WARNING.0);

    pub(crate) fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// Any flag of `flags` is set.
    pub fn any(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }
}

/// What a frame is (`native_protocol_v5.spec` §2.4.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// What went wrong.
    Error,
    /// A flow's first real request.
    Startup,
    /// STARTUP is accepted.
    Ready,
    /// STARTUP is accepted, and who it is has to be shown.
    Authenticate,
    /// What does the server support?
    Options,
    /// This.
    Supported,
    /// A statement, as text.
    Query,
    /// What came of a statement.
    Result,
    /// A statement to be executed later.
    Prepare,
    /// A statement that was prepared.
    Execute,
    /// Events are wanted.
    Register,
    /// One of them.
    Event,
    /// Several statements at once.
    Batch,
    /// The server asks for more.
    AuthChallenge,
    /// Who it is.
    AuthResponse,
    /// That was shown.
    AuthSuccess,
}

crate::event::labelled!(Opcode {
    Error => "error",
    Startup => "startup",
    Ready => "ready",
    Authenticate => "authenticate",
    Options => "options",
    Supported => "supported",
    Query => "query",
    Result => "result",
    Prepare => "prepare",
    Execute => "execute",
    Register => "register",
    Event => "event",
    Batch => "batch",
    AuthChallenge => "auth_challenge",
    AuthResponse => "auth_response",
    AuthSuccess => "auth_success",
});

impl Opcode {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x00 => Self::Error,
            0x01 => Self::Startup,
            0x02 => Self::Ready,
            0x03 => Self::Authenticate,
            0x05 => Self::Options,
            0x06 => Self::Supported,
            0x07 => Self::Query,
            0x08 => Self::Result,
            0x09 => Self::Prepare,
            0x0A => Self::Execute,
            0x0B => Self::Register,
            0x0C => Self::Event,
            0x0D => Self::Batch,
            0x0E => Self::AuthChallenge,
            0x0F => Self::AuthResponse,
            0x10 => Self::AuthSuccess,
            _ => return None,
        })
    }

    /// Whether such a request has statements in it: their texts, or what they were prepared as.
    pub fn has_statements(self) -> bool {
        matches!(
            self,
            Self::Query | Self::Prepare | Self::Execute | Self::Batch
        )
    }

    fn is_request(self) -> bool {
        matches!(
            self,
            Self::Startup
                | Self::Options
                | Self::Query
                | Self::Prepare
                | Self::Execute
                | Self::Register
                | Self::Batch
                | Self::AuthResponse
        )
    }
}

/// A frame's header, its length checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The first byte without the direction bit.
    pub version: u8,
    /// The flags byte.
    pub flags: Flags,
    /// The stream: what pairs a response with its request.
    pub stream: StreamId,
    /// `None`: no such opcode in the direction that the first byte names.
    pub opcode: Option<Opcode>,
    /// Bytes of the body, at most [`MAX_BODY_BYTES`].
    pub length: u32,
}

impl Header {
    /// `None`: the length is negative or too large.
    pub fn read(raw: [u8; HEADER_BYTES]) -> Option<Self> {
        let [version, flags, s0, s1, opcode, l0, l1, l2, l3] = raw;
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        if length > MAX_BODY_BYTES {
            return None; // A negative int is above it, too.
        }
        let response = version & RESPONSE_BIT != 0;
        Some(Self {
            version: version & !RESPONSE_BIT,
            flags: Flags(flags),
            stream: StreamId(i16::from_be_bytes([s0, s1])),
            opcode: Opcode::from_byte(opcode).filter(|o| o.is_request() != response),
            length,
        })
    }

    /// Header and body, in bytes.
    pub fn frame_bytes(&self) -> u32 {
        self.length.saturating_add(HEADER_BYTES as u32)
    }

    /// The body is. Since v5 segments are, and the flag means nothing.
    pub fn is_compressed(&self) -> bool {
        self.flags.any(Flags::COMPRESSION) && self.version < 5
    }
}

/// What [`FrameScanner::step`] came upon. One frame gives `First`, `Header`, `Body`, `End`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// A frame begins with this byte, at the current place. It is not consumed yet.
    First(u8),
    /// The header is consumed.
    Header(Header),
    /// The header's length is impossible: frames cannot be told apart any more.
    BadLength,
    /// The first `min(wanted, length)` bytes of the body; of one that is compressed, what is enough
    /// for so many.
    Body(Header, &'a [u8]),
    /// The frame's last byte is consumed.
    End(Header),
    /// All bytes are consumed.
    Starved,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    Header { filled: usize },
    Body { header: Header, wanted: usize },
    Rest { header: Header, left: usize },
}

/// Cuts one direction's bytes into frames. Holds at most one wanted prefix of a body.
#[derive(Debug)]
pub(crate) struct FrameScanner {
    /// How many bytes of a body are worth seeing, once it is not compressed. It bounds the buffer.
    wanted: fn(&Header) -> usize,
    state: State,
    header: [u8; HEADER_BYTES],
    prefix: Vec<u8>,
    first_frame: bool,
}

impl FrameScanner {
    pub(crate) fn new(wanted: fn(&Header) -> usize) -> Self {
        Self {
            wanted,
            state: State::Idle,
            header: [0; HEADER_BYTES],
            prefix: Vec::new(),
            first_frame: true,
        }
    }

    /// From the next frame on, another part of bodies is worth seeing.
    pub(crate) fn want(&mut self, wanted: fn(&Header) -> usize) {
        self.wanted = wanted;
    }

    /// Between two frames.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Of the frame that is passing, so many bytes are to come: 0 between two. `None`: its header
    /// is not whole.
    pub(crate) fn left(&self) -> Option<u32> {
        match self.state {
            State::Idle => Some(0),
            State::Header { .. } => None,
            State::Body { header, .. } => {
                Some(header.length.saturating_sub(self.prefix.len() as u32))
            }
            State::Rest { left, .. } => Some(left as u32),
        }
    }

    /// Where that is, among frames as they are.
    pub(crate) fn place(&self, first: u8) -> Place {
        let mut place = Place::in_frame(first, self.left().unwrap_or_default());
        if let State::Header { filled } = self.state {
            place.walk(self.header.get(..filled).unwrap_or_default());
        }
        place
    }

    /// The direction's very first frame has not ended yet.
    pub(crate) fn in_first_frame(&self) -> bool {
        self.first_frame
    }

    /// Goes on from `input[*at..]` to the next thing worth telling.
    pub(crate) fn step<'a>(&'a mut self, input: &'a [u8], at: &mut usize) -> Step<'a> {
        let rest = input.get(*at..).unwrap_or_default();
        match self.state {
            State::Idle => match rest.first() {
                None => Step::Starved,
                Some(byte) => {
                    self.state = State::Header { filled: 0 };
                    Step::First(*byte)
                }
            },
            State::Header { filled } => {
                let Some(raw) = self.take_header(filled, rest, at) else {
                    return Step::Starved;
                };
                let Some(header) = Header::read(raw) else {
                    return Step::BadLength;
                };
                let mut wanted = (self.wanted)(&header);
                if header.is_compressed() {
                    wanted = enough_for(wanted, header.length as usize);
                }
                let wanted = wanted.min(header.length as usize);
                self.state = State::Body { header, wanted };
                Step::Header(header)
            }
            State::Body { header, wanted } => {
                let after = State::Rest {
                    header,
                    left: header.length as usize - wanted,
                };
                if self.prefix.is_empty()
                    && let Some(prefix) = rest.get(..wanted)
                {
                    *at += wanted;
                    self.state = after;
                    return Step::Body(header, prefix);
                }
                let missing = wanted.saturating_sub(self.prefix.len()).min(rest.len());
                self.prefix
                    .extend_from_slice(rest.get(..missing).unwrap_or_default());
                *at += missing;
                if self.prefix.len() < wanted {
                    return Step::Starved;
                }
                self.state = after;
                Step::Body(header, &self.prefix)
            }
            State::Rest { header, left } => {
                self.prefix.clear();
                self.prefix.shrink_to(KEPT_BUFFER_BYTES);
                let passing = left.min(rest.len());
                *at += passing;
                if passing < left {
                    self.state = State::Rest {
                        header,
                        left: left - passing,
                    };
                    return Step::Starved;
                }
                self.state = State::Idle;
                self.first_frame = false;
                Step::End(header)
            }
        }
    }

    /// The nine bytes, from `rest` at once or collected; `None` while some are missing.
    fn take_header(
        &mut self,
        filled: usize,
        rest: &[u8],
        at: &mut usize,
    ) -> Option<[u8; HEADER_BYTES]> {
        if filled == 0
            && let Some(raw) = rest.first_chunk()
        {
            *at += HEADER_BYTES;
            return Some(*raw);
        }
        let mut filled = filled;
        for (to, from) in self.header.iter_mut().skip(filled).zip(rest) {
            *to = *from;
            filled += 1;
            *at += 1;
        }
        self.state = State::Header { filled };
        (filled == HEADER_BYTES).then_some(self.header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `pieces` through a scanner that wants `wanted` bytes and notes what it tells.
    fn scan(wanted: fn(&Header) -> usize, pieces: &[&[u8]]) -> (Vec<String>, FrameScanner) {
        let mut scanner = FrameScanner::new(wanted);
        let mut told = Vec::new();
        for piece in pieces {
            let mut at = 0;
            loop {
                match scanner.step(piece, &mut at) {
                    Step::Starved => break,
                    Step::BadLength => return (vec!["bad length".into()], scanner),
                    Step::First(byte) => told.push(format!("first {byte:#x}")),
                    Step::Header(h) => told.push(format!("header {} {}", h.stream.0, h.length)),
                    Step::Body(_, prefix) => told.push(format!("body {prefix:?}")),
                    Step::End(h) => told.push(format!("end {}", h.stream.0)),
                }
            }
            assert_eq!(at, piece.len());
        }
        (told, scanner)
    }

    const FRAMES: &[u8] = &[
        4, 0, 0, 7, 7, 0, 0, 0, 3, 1, 2, 3, 4, 0, 0, 8, 5, 0, 0, 0, 0, 4, 0, 0, 9, 7, 0, 0, 0, 1, 5,
    ];

    #[test]
    fn every_cut_tells_the_same() {
        let (whole, _) = scan(|_| 2, &[FRAMES]);
        assert_eq!(
            whole,
            [
                "first 0x4",
                "header 7 3",
                "body [1, 2]",
                "end 7", //
                "first 0x4",
                "header 8 0",
                "body []",
                "end 8", //
                "first 0x4",
                "header 9 1",
                "body [5]",
                "end 9",
            ]
        );
        for cut in 0..=FRAMES.len() {
            let (a, b) = FRAMES.split_at(cut);
            assert_eq!(scan(|_| 2, &[a, b]).0, whole, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = FRAMES.chunks(1).collect();
        assert_eq!(scan(|_| 2, &bytes).0, whole);
    }

    #[test]
    fn lengths_are_checked() {
        for length in [-1, i32::MIN, (256 << 20) + 1] {
            let mut frame = vec![4, 0, 0, 0, 7];
            frame.extend(length.to_be_bytes());
            assert_eq!(scan(|_| 0, &[&frame]).0, ["bad length"]);
        }
        let largest = [4, 0, 0, 0, 7, 0x10, 0, 0, 0];
        assert_eq!(scan(|_| 0, &[&largest]).0.len(), 3, "256 MiB is allowed");
    }

    #[test]
    fn a_large_body_does_not_stay_in_memory() {
        let mut frame = vec![4, 0, 0, 0, 7, 0x10, 0, 0, 0];
        frame.resize(100_000, 0);
        let pieces: Vec<&[u8]> = frame.chunks(1000).collect();
        let (_, scanner) = scan(|_| 64 << 10, &pieces);
        assert!(scanner.prefix.capacity() <= KEPT_BUFFER_BYTES);
        assert!(!scanner.is_idle());
    }

    #[test]
    fn opcodes_belong_to_a_direction() {
        let opcode = |version, opcode| {
            Header::read([version, 0, 0, 0, opcode, 0, 0, 0, 0])
                .unwrap()
                .opcode
        };
        assert_eq!(opcode(4, 0x07), Some(Opcode::Query));
        assert_eq!(opcode(0x84, 0x07), None);
        assert_eq!(opcode(4, 0x08), None);
        assert_eq!(opcode(0x84, 0x08), Some(Opcode::Result));
        assert_eq!(opcode(4, 0x04), None, "CREDENTIALS went with v1");
    }
}
