//! [`FramePosition`]: where in a frame one direction of a flow is, found without reading what it says.
//!
//! A flow that nobody needs to read is walked, header by header, so that it can be read from its
//! next frame on when somebody does. The kernel does the same with what it carries itself
//! (`ebpf/src/frame_position.h`), and hands a position over as it is: the two walk alike, and what one cannot
//! make out, the other cannot either. Checksums are not looked at: a decoder that begins at a
//! position which turns out to be none gives the flow up, and nothing is lost but its statements.

use crate::extensions::Extensions;
use crate::verdict::Undecodable;
use crate::wire::compression::Compression;
use crate::wire::header::{HEADER_BYTES, MAX_BODY_BYTES, ProtocolVersion};
use crate::wire::segment;

/// The longest header: of a segment, and of the frame that begins in it and goes on in others.
pub const POSITION_HEADER_BYTES: usize = segment::HEADER_BYTES + HEADER_BYTES;

/// How a direction is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// Nobody knows where in a frame it is, for good.
    #[default]
    Unknown,
    /// Frames as they are: v3, v4.
    Frames,
    /// v5 segments that are not compressed.
    Segments,
}

/// See the module. Plain, because it goes to the kernel and comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FramePosition {
    /// How the direction is cut.
    pub framing: Framing,
    /// The first byte of every frame of the direction.
    pub first: u8,
    /// Bytes still to come of what is passing: a frame's body, or a segment's payload with its
    /// checksum.
    pub left: u32,
    /// Bytes of a frame that are in segments behind the one that is passing.
    pub frame_left: u32,
    /// So many bytes of a header have passed.
    pub have: u8,
    /// The bytes of that header.
    pub header: [u8; POSITION_HEADER_BYTES],
}

impl FramePosition {
    /// Nobody knows where.
    pub const UNKNOWN: Self = Self {
        framing: Framing::Unknown,
        first: 0,
        left: 0,
        frame_left: 0,
        have: 0,
        header: [0; POSITION_HEADER_BYTES],
    };

    /// In a frame's body of which so many bytes are to come; 0: between two frames.
    pub(crate) fn in_frame(first: u8, left: u32) -> Self {
        Self {
            framing: Framing::Frames,
            first,
            left,
            ..Self::UNKNOWN
        }
    }

    /// Between two segments, within a frame of which so many bytes are to come; 0: between two.
    pub(crate) fn at_segment(first: u8, frame_left: u32) -> Self {
        Self {
            framing: Framing::Segments,
            first,
            frame_left,
            ..Self::UNKNOWN
        }
    }

    /// Whether it is known.
    pub fn is_known(&self) -> bool {
        self.framing != Framing::Unknown
    }

    /// Between two frames, and between two segments.
    pub fn is_boundary(&self) -> bool {
        self.is_known() && self.have == 0 && self.left == 0 && self.frame_left == 0
    }

    /// The bytes that are to come at least until it is at a boundary: 0 there, and more than come where it is not known.
    pub(crate) fn missing(&self) -> usize {
        match self.is_known() {
            false => usize::MAX,
            true if self.is_boundary() => 0,
            true if self.left > 0 => self.left as usize,
            true => self.wanted_bytes().saturating_sub(self.have.into()),
        }
    }

    /// Goes past these bytes.
    pub fn walk(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while self.step(bytes, &mut at) {}
    }

    /// Goes on to the next boundary, if it is in these bytes; gives how many lie before it.
    pub(crate) fn skip(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while !self.is_boundary() && self.step(bytes, &mut at) {}
        at
    }

    /// A header, or what follows one. False: all bytes are used up, or the position is lost.
    fn step(&mut self, bytes: &[u8], at: &mut usize) -> bool {
        let rest = bytes.get(*at..).unwrap_or_default();
        if rest.is_empty() || !self.is_known() {
            return false;
        }
        if self.left > 0 {
            let passing = rest.len().min(self.left as usize);
            self.left -= passing as u32;
            *at += passing;
            return true;
        }
        let wanted = self.wanted_bytes();
        match rest.get(..wanted) {
            Some(header) if self.have == 0 => {
                *at += wanted;
                self.header_passed(header);
            }
            _ => {
                let have = usize::from(self.have);
                let free = self.header.iter_mut().take(wanted).skip(have);
                let copied = free.zip(rest).map(|(to, from)| *to = *from).count();
                *at += copied;
                self.have += copied as u8;
                if usize::from(self.have) < wanted {
                    return false;
                }
                let header = self.header;
                self.have = 0;
                self.header = [0; POSITION_HEADER_BYTES];
                self.header_passed(header.get(..wanted).unwrap_or_default());
            }
        }
        self.is_known()
    }

    /// The length of the header that comes next.
    fn wanted_bytes(&self) -> usize {
        match self.framing {
            Framing::Segments if usize::from(self.have) < segment::HEADER_BYTES => {
                segment::HEADER_BYTES
            }
            // Only a segment in which a long frame begins has so much.
            Framing::Segments => POSITION_HEADER_BYTES,
            Framing::Frames | Framing::Unknown => HEADER_BYTES,
        }
    }

    fn header_passed(&mut self, header: &[u8]) {
        let passed = match (self.framing, header.split_first_chunk()) {
            (Framing::Segments, Some((segment, frame))) => self.segment_passed(segment, frame),
            _ => self.frame_bytes(header).map(|bytes| {
                self.left = bytes - HEADER_BYTES as u32;
            }),
        };
        if passed.is_none() {
            *self = Self::UNKNOWN;
        }
    }

    /// `frame`: the header of the frame that begins in it, once that is known to be wanted.
    fn segment_passed(
        &mut self,
        segment: &[u8; segment::HEADER_BYTES],
        frame: &[u8],
    ) -> Option<()> {
        let [b0, b1, b2, ..] = *segment;
        let word = u32::from_le_bytes([b0, b1, b2, 0]);
        let (payload, self_contained) = (word & 0x1_FFFF, word & (1 << 17) != 0);
        // What is padded is padded with zeros (`native_protocol_v5.spec` §2.1).
        if word >> 18 != 0 {
            return None;
        }
        let trailer = segment::TRAILER_BYTES as u32;
        if self_contained {
            self.left = payload + trailer;
            return (self.frame_left == 0).then_some(());
        }
        if self.frame_left > 0 {
            self.left = payload + trailer;
            self.frame_left = self.frame_left.checked_sub(payload)?;
            return Some(());
        }
        if frame.is_empty() {
            self.have = segment::HEADER_BYTES as u8;
            for (to, from) in self.header.iter_mut().zip(segment) {
                *to = *from;
            }
            return (payload >= HEADER_BYTES as u32).then_some(());
        }
        // It holds this frame and no other.
        self.frame_left = self.frame_bytes(frame)?.checked_sub(payload)?;
        self.left = payload - HEADER_BYTES as u32 + trailer;
        Some(())
    }

    /// The length of a whole frame, by its header.
    fn frame_bytes(&self, header: &[u8]) -> Option<u32> {
        let [first, _, _, _, _, l0, l1, l2, l3] = *header.first_chunk::<HEADER_BYTES>()?;
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        let is_frame = first == self.first && length <= MAX_BODY_BYTES;
        is_frame.then(|| length + HEADER_BYTES as u32)
    }
}

/// Why nobody knows where in its frames a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPosition {
    /// The flow was left before the database had accepted a STARTUP: how it goes on was not seen.
    Handshake,
    /// The flow was never understood.
    Undecodable(Undecodable),
    /// The bytes that passed were not cut as the protocol says.
    Framing,
    /// v5 in compressed segments: where frames begin in them is not seen without decompressing them.
    Compressed,
}

impl NoPosition {
    /// For people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Handshake => {
                "nobody knows where in a frame it is: its handshake was not over when it was last \
                 read"
            }
            Self::Undecodable(Undecodable::Tls) => "it cannot be decoded: it is TLS",
            Self::Undecodable(Undecodable::Version) => {
                "it cannot be decoded: it speaks a version that is not known"
            }
            Self::Undecodable(Undecodable::NotCql) => "it cannot be decoded: it is no CQL",
            Self::Undecodable(Undecodable::SegmentCompression) => {
                "it cannot be decoded: its segments are compressed in a way that is not known"
            }
            Self::Compressed => "nobody knows where in a frame it is: its segments are compressed",
            Self::Undecodable(Undecodable::Lost) | Self::Framing => {
                "nobody knows where in a frame it is: what passed could not be cut into frames"
            }
        }
    }
}

/// The positions of both directions of a flow that was decoded, and is not for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    pub(crate) version: u8,
    /// The compression of bodies. `None`: not known.
    pub(crate) compression: Option<Compression>,
    /// The extensions that the flow has begun with. `None`: not known.
    pub(crate) extensions: Option<Extensions>,
    /// The position in the client's requests.
    pub requests: FramePosition,
    /// The position in the database's responses.
    pub responses: FramePosition,
}

impl Unread {
    /// The positions of a flow that somebody else has followed to here.
    ///
    /// # Errors
    /// A position is not known.
    pub fn at(requests: FramePosition, responses: FramePosition) -> Result<Self, NoPosition> {
        match (requests.is_known(), responses.is_known()) {
            (true, true) => Ok(Self {
                version: requests.first,
                compression: None,
                extensions: None,
                requests,
                responses,
            }),
            (false, false) => Err(NoPosition::Handshake),
            _ => Err(NoPosition::Framing),
        }
    }

    /// The positions of a flow that another process has read to here, and what its session is. `compression`,
    /// `extensions`: `None` where they are not known.
    ///
    /// # Errors
    /// A position is not known, or the two are not of one flow.
    pub fn told(
        requests: FramePosition,
        responses: FramePosition,
        compression: Option<Compression>,
        extensions: Option<Extensions>,
    ) -> Result<Self, NoPosition> {
        let told = Self::at(requests, responses)?;
        let version = ProtocolVersion::from_byte(told.version);
        let framing = match told.is_segmented() {
            true => Framing::Segments,
            false => Framing::Frames,
        };
        let is_of_it = |position: &FramePosition, first: u8| {
            position.framing == framing
                && position.first == first
                && usize::from(position.have) < POSITION_HEADER_BYTES
        };
        let is_whole =
            is_of_it(&requests, told.version) && is_of_it(&responses, told.version | 0x80);
        if version.is_none() || !is_whole {
            return Err(NoPosition::Framing);
        }
        let is_followed =
            !told.is_segmented() || matches!(compression, None | Some(Compression::None));
        let is_between = requests.is_boundary() && responses.is_boundary();
        if !is_followed && !is_between {
            return Err(NoPosition::Compressed);
        }
        Ok(Self {
            compression,
            extensions,
            ..told
        })
    }

    /// The compression of bodies, where it is known.
    pub fn compression(&self) -> Option<Compression> {
        self.compression
    }

    /// The extensions that the flow has begun with, where they are known.
    pub fn extensions(&self) -> Option<Extensions> {
        self.extensions
    }

    /// The version that the flow speaks.
    pub fn version(&self) -> Option<ProtocolVersion> {
        ProtocolVersion::from_byte(self.version)
    }

    /// Returns the byte of that version.
    pub fn version_byte(&self) -> u8 {
        self.version
    }

    /// Whether it travels in segments.
    pub fn is_segmented(&self) -> bool {
        self.version >= 5
    }
}
