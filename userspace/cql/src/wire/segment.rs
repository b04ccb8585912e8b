//! v5 segments (`native_protocol_v5.spec` §2.1 and §2.2, where they are called frames).
//!
//! Plain: six bytes of header, which are 17 bits of payload length, 1 bit "self-contained" and 6 bits
//! of padding, little endian, then the CRC24 of those three bytes. The payload. Its CRC32, little
//! endian.
//!
//! LZ4: eight bytes of header, with 17 bits of payload length as carried, 17 bits of what it becomes, the
//! bit, and 5 bits of padding, then the CRC24 of those five bytes. The rest is the same; the CRC32 is that
//! of what is carried. If it is to become 0 bytes, it is not compressed.
//!
//! A payload is handed on only once its CRC32 was right: in place when the whole segment is in the
//! piece at hand, otherwise from a buffer of at most 128 KiB. What it becomes takes another one, of which
//! the header's 17 bits are the bound.

use crate::wire::compress::{expand_block, shrink_to_block};
use crate::wire::compression::Compression;
use crate::wire::crc::{crc24, crc32};
use crate::wire::position::FramePosition;

/// A header's length without compression, its CRC24 included.
pub const HEADER_BYTES: usize = 6;
/// A header's length with LZ4, its CRC24 included.
pub const LZ4_HEADER_BYTES: usize = 8;
/// The length of the CRC32 behind a payload.
pub const TRAILER_BYTES: usize = 4;
/// The largest payload that 17 bits can name.
pub const MAX_PAYLOAD_BYTES: usize = (1 << 17) - 1;

/// A payload collected from pieces keeps its buffer up to this many bytes from segment to segment;
/// the reason is that of the frame scanner's.
const KEPT_BUFFER_BYTES: usize = 16 << 10;

/// A segment whose checksums were right.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    /// The segment holds whole frames; otherwise a part of one.
    pub(crate) self_contained: bool,
    pub(crate) payload: &'a [u8],
}

/// A segment is broken: its content, or where the next one begins, cannot be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A checksum was wrong.
    Crc,
    /// A compressed payload does not become what its header says.
    Compression,
}

/// The header of a segment.
#[derive(Clone, Copy, Debug)]
pub struct SegmentHeader {
    /// The payload's length, as carried.
    pub length: usize,
    /// Without compression; 0: it is not compressed.
    pub plain: usize,
    /// The payload holds whole frames; otherwise a part of one.
    pub self_contained: bool,
}

impl SegmentHeader {
    /// Reads a header without compression; its checksum must be right.
    pub fn read(raw: &[u8; HEADER_BYTES]) -> Result<Self, Broken> {
        let [b0, b1, b2, c0, c1, c2] = *raw;
        if crc24(&[b0, b1, b2]) != u32::from_le_bytes([c0, c1, c2, 0]) {
            return Err(Broken::Crc);
        }
        let word = u32::from_le_bytes([b0, b1, b2, 0]);
        Ok(Self {
            length: (word & 0x1_FFFF) as usize,
            plain: 0,
            self_contained: word & (1 << 17) != 0,
        })
    }

    /// Reads a header of a flow with LZ4; its checksum must be right.
    pub fn read_lz4(raw: &[u8; LZ4_HEADER_BYTES]) -> Result<Self, Broken> {
        let [b0, b1, b2, b3, b4, c0, c1, c2] = *raw;
        if crc24(&[b0, b1, b2, b3, b4]) != u32::from_le_bytes([c0, c1, c2, 0]) {
            return Err(Broken::Crc);
        }
        let word = u64::from_le_bytes([b0, b1, b2, b3, b4, 0, 0, 0]);
        Ok(Self {
            length: (word & 0x1_FFFF) as usize,
            plain: (word >> 17 & 0x1_FFFF) as usize,
            self_contained: word & (1 << 34) != 0,
        })
    }

    /// The payload in what stands behind it, if all of that is there and its checksum is right.
    pub fn carried<'a>(&self, behind: &'a [u8]) -> Result<Option<&'a [u8]>, Broken> {
        let Some((carried, rest)) = behind.split_at_checked(self.length) else {
            return Ok(None);
        };
        let Some(trailer) = rest.first_chunk() else {
            return Ok(None);
        };
        match crc32(carried) == u32::from_le_bytes(*trailer) {
            true => Ok(Some(carried)),
            false => Err(Broken::Crc),
        }
    }

    /// Decompresses a payload into the front of `to`, which grows and never shrinks.
    pub fn expand<'t>(&self, carried: &[u8], to: &'t mut Vec<u8>) -> Result<&'t [u8], Broken> {
        if to.len() < self.plain {
            to.resize(self.plain, 0);
        }
        let plain = to.get_mut(..self.plain).ok_or(Broken::Compression)?;
        expand_block(carried, plain).ok_or(Broken::Compression)?;
        Ok(plain)
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    Header {
        filled: usize,
    },
    Payload {
        header: SegmentHeader,
    },
    Trailer {
        header: SegmentHeader,
        filled: usize,
    },
}

/// Cuts one direction's bytes into segments. Holds at most one payload, and what it becomes.
#[derive(Debug)]
pub(crate) struct SegmentReader {
    is_lz4: bool,
    state: State,
    header: [u8; LZ4_HEADER_BYTES],
    payload: Vec<u8>,
    trailer: [u8; TRAILER_BYTES],
    /// The buffer for payloads that were compressed.
    expanded: Vec<u8>,
}

impl SegmentReader {
    pub(crate) fn new() -> Self {
        Self {
            is_lz4: false,
            state: State::Header { filled: 0 },
            header: [0; LZ4_HEADER_BYTES],
            payload: Vec::new(),
            trailer: [0; TRAILER_BYTES],
            expanded: Vec::new(),
        }
    }

    /// Before its first byte: its segments are those of LZ4.
    pub(crate) fn become_lz4(&mut self) {
        self.is_lz4 = true;
    }

    /// Between two segments.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Header { filled: 0 })
    }

    /// Moves a position that is where the segment at hand began past what has come of it. Of segments
    /// that are not LZ4's.
    pub(crate) fn replay(&self, position: &mut FramePosition) {
        let (header, trailer) = match self.state {
            State::Header { filled } => (filled, 0),
            State::Payload { .. } => (HEADER_BYTES, 0),
            State::Trailer { filled, .. } => (HEADER_BYTES, filled),
        };
        position.walk(self.header.get(..header).unwrap_or_default());
        if header == HEADER_BYTES {
            position.walk(&self.payload);
        }
        position.walk(self.trailer.get(..trailer).unwrap_or_default());
    }

    /// The next segment from `input[*at..]`; `None` when all bytes are consumed and it is not
    /// whole yet.
    pub(crate) fn step<'a>(
        &'a mut self,
        input: &'a [u8],
        at: &mut usize,
    ) -> Result<Option<Segment<'a>>, Broken> {
        if self.is_idle() {
            self.payload.clear();
            self.payload.shrink_to(KEPT_BUFFER_BYTES);
            if self.is_lz4 {
                return self.step_lz4(input, at);
            }
            if let Some(segment) = in_place(input, at)? {
                return Ok(Some(segment));
            }
        }
        self.collect(input, at)
    }

    /// The next segment, between two segments of LZ4. A function of its own, because most flows have
    /// none.
    #[cold]
    fn step_lz4<'a>(
        &'a mut self,
        input: &'a [u8],
        at: &mut usize,
    ) -> Result<Option<Segment<'a>>, Broken> {
        self.expanded.truncate(KEPT_BUFFER_BYTES);
        self.expanded.shrink_to(KEPT_BUFFER_BYTES);
        match carried_lz4(input, at)? {
            Some((header, carried)) => segment(header, carried, &mut self.expanded).map(Some),
            None => self.collect(input, at),
        }
    }

    fn header_bytes(&self) -> usize {
        match self.is_lz4 {
            true => LZ4_HEADER_BYTES,
            false => HEADER_BYTES,
        }
    }

    fn read_header(&self) -> Result<SegmentHeader, Broken> {
        match (self.is_lz4, self.header.first_chunk()) {
            (false, Some(raw)) => SegmentHeader::read(raw),
            _ => SegmentHeader::read_lz4(&self.header),
        }
    }

    fn collect<'a>(
        &'a mut self,
        input: &'a [u8],
        at: &mut usize,
    ) -> Result<Option<Segment<'a>>, Broken> {
        loop {
            let rest = input.get(*at..).unwrap_or_default();
            match self.state {
                State::Header { filled } => {
                    let wanted = self.header_bytes();
                    let header = self.header.get_mut(..wanted).unwrap_or_default();
                    let filled = fill(header, filled, rest, at);
                    if filled < wanted {
                        self.state = State::Header { filled };
                        return Ok(None);
                    }
                    let header = self.read_header()?;
                    self.state = State::Payload { header };
                }
                State::Payload { header } => {
                    let missing = header
                        .length
                        .saturating_sub(self.payload.len())
                        .min(rest.len());
                    self.payload
                        .extend_from_slice(rest.get(..missing).unwrap_or_default());
                    *at += missing;
                    if self.payload.len() < header.length {
                        return Ok(None);
                    }
                    self.state = State::Trailer { header, filled: 0 };
                }
                State::Trailer { header, filled } => {
                    let filled = fill(&mut self.trailer, filled, rest, at);
                    if filled < TRAILER_BYTES {
                        self.state = State::Trailer { header, filled };
                        return Ok(None);
                    }
                    if crc32(&self.payload) != u32::from_le_bytes(self.trailer) {
                        return Err(Broken::Crc);
                    }
                    self.state = State::Header { filled: 0 };
                    return segment(header, &self.payload, &mut self.expanded).map(Some);
                }
            }
        }
    }
}

/// A segment whose checksums were right.
fn segment<'a>(
    header: SegmentHeader,
    carried: &'a [u8],
    expanded: &'a mut Vec<u8>,
) -> Result<Segment<'a>, Broken> {
    let payload = match header.plain {
        0 => carried,
        _ => header.expand(carried, expanded)?,
    };
    Ok(Segment {
        self_contained: header.self_contained,
        payload,
    })
}

/// The payload of a segment of LZ4 that is whole in `input[*at..]`, as it is carried.
fn carried_lz4<'a>(
    input: &'a [u8],
    at: &mut usize,
) -> Result<Option<(SegmentHeader, &'a [u8])>, Broken> {
    let rest = input.get(*at..).unwrap_or_default();
    let Some((raw, behind)) = rest.split_first_chunk() else {
        return Ok(None);
    };
    let header = SegmentHeader::read_lz4(raw)?;
    let Some(carried) = header.carried(behind)? else {
        return Ok(None);
    };
    *at += LZ4_HEADER_BYTES + header.length + TRAILER_BYTES;
    Ok(Some((header, carried)))
}

/// A segment of LZ4 that is whole in `input[*at..]`; what it becomes is in `expanded`.
pub(crate) fn in_place_lz4<'a>(
    input: &'a [u8],
    at: &mut usize,
    expanded: &'a mut Vec<u8>,
) -> Result<Option<Segment<'a>>, Broken> {
    match carried_lz4(input, at)? {
        Some((header, carried)) => segment(header, carried, expanded).map(Some),
        None => Ok(None),
    }
}

/// A segment that is whole in `input[*at..]`, and not LZ4's.
pub(crate) fn in_place<'a>(input: &'a [u8], at: &mut usize) -> Result<Option<Segment<'a>>, Broken> {
    let rest = input.get(*at..).unwrap_or_default();
    let Some((raw, behind)) = rest.split_first_chunk() else {
        return Ok(None);
    };
    let header = SegmentHeader::read(raw)?;
    let Some(payload) = header.carried(behind)? else {
        return Ok(None);
    };
    *at += HEADER_BYTES + header.length + TRAILER_BYTES;
    Ok(Some(Segment {
        self_contained: header.self_contained,
        payload,
    }))
}

/// Appends a segment around `payload`, of which there are at most [`MAX_PAYLOAD_BYTES`]; compressed
/// where that makes it smaller.
pub fn encode(compression: Compression, payload: &[u8], self_contained: bool, to: &mut Vec<u8>) {
    let flag = u64::from(self_contained);
    let length = payload.len() as u64 & 0x1_FFFF;
    if compression == Compression::None {
        let [b0, b1, b2, ..] = (length | flag << 17).to_le_bytes();
        let [c0, c1, c2, _] = crc24(&[b0, b1, b2]).to_le_bytes();
        to.extend([b0, b1, b2, c0, c1, c2]);
        to.extend_from_slice(payload);
        to.extend(crc32(payload).to_le_bytes());
        return;
    }
    let block = shrink_to_block(payload);
    let (carried, plain) = match block.len() < payload.len() {
        true => (&block[..], length),
        // It becomes 0 bytes: it is not compressed.
        false => (payload, 0),
    };
    let word = carried.len() as u64 | plain << 17 | flag << 34;
    let [b0, b1, b2, b3, b4, ..] = word.to_le_bytes();
    let header = [b0, b1, b2, b3, b4];
    let [c0, c1, c2, _] = crc24(&header).to_le_bytes();
    to.extend(header);
    to.extend([c0, c1, c2]);
    to.extend_from_slice(carried);
    to.extend(crc32(carried).to_le_bytes());
}

/// Copies from `rest` to `to[filled..]`; gives how much of `to` is filled then.
fn fill(to: &mut [u8], filled: usize, rest: &[u8], at: &mut usize) -> usize {
    let mut copied = 0;
    for (to, from) in to.iter_mut().skip(filled).zip(rest) {
        *to = *from;
        copied += 1;
    }
    *at += copied;
    filled + copied
}

#[cfg(test)]
mod tests {
    use super::*;
    use cassandra_protocol::frame::frame_encoder::{
        FrameEncoder, Lz4FrameEncoder, UncompressedFrameEncoder,
    };

    /// A segment as `cassandra-protocol` writes it.
    fn written(is_lz4: bool, payload: &[u8], self_contained: bool) -> Vec<u8> {
        let encode = |encoder: &mut dyn FrameEncoder| match self_contained {
            true => {
                encoder.add_envelope(payload.to_vec());
                encoder.finalize_self_contained().to_vec()
            }
            false => encoder.finalize_non_self_contained(payload).1.to_vec(),
        };
        match is_lz4 {
            true => encode(&mut Lz4FrameEncoder::default()),
            false => encode(&mut UncompressedFrameEncoder::default()),
        }
    }

    fn ours(compression: Compression, payload: &[u8], self_contained: bool) -> Vec<u8> {
        let mut segment = Vec::new();
        encode(compression, payload, self_contained, &mut segment);
        segment
    }

    fn read(is_lz4: bool, pieces: &[&[u8]]) -> Result<Vec<(bool, Vec<u8>)>, Broken> {
        let mut reader = SegmentReader::new();
        if is_lz4 {
            reader.become_lz4();
        }
        let mut segments = Vec::new();
        for piece in pieces {
            let mut at = 0;
            while let Some(segment) = reader.step(piece, &mut at)? {
                segments.push((segment.self_contained, segment.payload.to_vec()));
            }
            assert_eq!(at, piece.len());
        }
        assert!(reader.payload.capacity() <= MAX_PAYLOAD_BYTES.next_power_of_two());
        assert!(reader.expanded.capacity() <= MAX_PAYLOAD_BYTES.next_power_of_two());
        Ok(segments)
    }

    #[test]
    fn reads_what_cassandra_protocol_writes_at_every_cut() {
        let repeats = b"what repeats ".repeat(40);
        let payloads = [
            (&b"some frames"[..], true),
            (b"a part of one", false),
            (&repeats, true),
            (&repeats, false),
        ];
        for is_lz4 in [false, true] {
            let written = |(payload, whole): &(&[u8], bool)| written(is_lz4, payload, *whole);
            let bytes: Vec<u8> = payloads.iter().flat_map(written).collect();
            let expected = payloads.map(|(payload, whole)| (whole, payload.to_vec()));
            for cut in 0..=bytes.len() {
                let (a, b) = bytes.split_at(cut);
                assert_eq!(read(is_lz4, &[a, b]).unwrap(), expected, "cut at {cut}");
            }
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(read(is_lz4, &single).unwrap(), expected);
        }
        let empty = written(false, b"", true);
        assert_eq!(read(false, &[&empty]), Ok(vec![(true, Vec::new())]));
    }

    #[test]
    fn writes_what_cassandra_protocol_writes() {
        for payload in [&b""[..], b"a frame", &[7; 1000]] {
            let ours = ours(Compression::None, payload, true);
            assert_eq!(ours, written(false, payload, true));
        }
        // Of the same header; how a block is compressed is not said.
        for (payload, self_contained) in [(&[7; 1000][..], true), (&[7; 100_000], false)] {
            let ours = ours(Compression::Lz4, payload, self_contained);
            let theirs = written(true, payload, self_contained);
            assert!(ours.len() < payload.len());
            let word = |segment: &[u8]| {
                let header = SegmentHeader::read_lz4(segment.first_chunk().unwrap()).unwrap();
                (header.plain, header.self_contained)
            };
            assert_eq!(word(&ours), word(&theirs));
            let expected = vec![(self_contained, payload.to_vec())];
            assert_eq!(read(true, &[&ours]), Ok(expected));
        }
    }

    #[test]
    fn the_largest_payload() {
        let payload: Vec<u8> = (0..MAX_PAYLOAD_BYTES).map(|n| (n / 3) as u8).collect();
        for is_lz4 in [false, true] {
            let bytes = written(is_lz4, &payload, false);
            let expected = Ok(vec![(false, payload.clone())]);
            let pieces: Vec<&[u8]> = bytes.chunks(4096).collect();
            assert_eq!(read(is_lz4, &pieces), expected);
            assert_eq!(read(is_lz4, &[&bytes]), expected);
        }
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        for is_lz4 in [false, true] {
            let good = written(is_lz4, b"payload, payload, payload, payload", true);
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                let crc = Err(Broken::Crc);
                assert_eq!(read(is_lz4, &[&bad]), crc, "whole, bit {bit}");
                let pieces: Vec<&[u8]> = bad.chunks(3).collect();
                assert_eq!(read(is_lz4, &pieces), crc, "in pieces, bit {bit}");
            }
        }
    }

    /// A segment whose checksums are right: it was written with these lengths.
    fn lying(carried: &[u8], plain: usize) -> Vec<u8> {
        let word = carried.len() as u64 | (plain as u64) << 17 | 1 << 34;
        let mut segment = word.to_le_bytes()[..5].to_vec();
        let crc = crc24(&segment);
        segment.extend(&crc.to_le_bytes()[..3]);
        segment.extend(carried);
        segment.extend(crc32(carried).to_le_bytes());
        segment
    }

    #[test]
    fn what_does_not_become_what_it_says_is_broken() {
        let block = shrink_to_block(&[7; 1000]);
        assert!(read(true, &[&lying(&block, 1000)]).is_ok());
        assert!(read(true, &[&lying(&block, 0)]).is_ok(), "not compressed");
        for (carried, plain) in [
            (&block[..], 999),
            (&block, 1001),
            (&block, MAX_PAYLOAD_BYTES),
            (b"no block", 10),
            (b"", 1),
        ] {
            let bytes = lying(carried, plain);
            let broken = Err(Broken::Compression);
            assert_eq!(read(true, &[&bytes]), broken, "{plain}");
            let pieces: Vec<&[u8]> = bytes.chunks(3).collect();
            assert_eq!(read(true, &pieces), broken, "{plain}");
        }
    }

    #[test]
    fn a_large_payload_does_not_stay_in_memory() {
        let large = ours(Compression::Lz4, &[7; MAX_PAYLOAD_BYTES], false);
        let small = ours(Compression::Lz4, &[7; 100], true);
        let mut reader = SegmentReader::new();
        reader.become_lz4();
        for bytes in [&large, &small] {
            assert!(reader.step(bytes, &mut 0).unwrap().is_some());
        }
        assert!(reader.expanded.capacity() <= KEPT_BUFFER_BYTES);
    }
}
