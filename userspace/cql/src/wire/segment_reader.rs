//! [`SegmentReader`] cuts bytes that arrive in arbitrary pieces into v5 segments.
//!
//! A payload is handed on only once its CRC32 was right: in place when the whole segment is in the
//! piece at hand, otherwise from a buffer of at most 128 KiB. What it becomes takes another one, of which
//! the header's 17 bits are the bound.

use crate::wire::crc::crc32;
use crate::wire::position::FramePosition;
use crate::wire::segment::{
    Broken, HEADER_BYTES, LZ4_HEADER_BYTES, Segment, SegmentHeader, TRAILER_BYTES, carried_lz4,
    in_place, segment,
};

/// A payload collected from pieces keeps its buffer up to this many bytes from segment to segment;
/// the reason is that of the frame scanner's.
const KEPT_BUFFER_BYTES: usize = 16 << 10;

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

    /// The bytes that are to come at least until it is between two segments: 0 there.
    pub(crate) fn missing(&self) -> usize {
        match self.state {
            State::Header { filled: 0 } => 0,
            State::Header { filled } => self.header_bytes() - filled,
            State::Payload { header } => {
                header.length.saturating_sub(self.payload.len()) + TRAILER_BYTES
            }
            State::Trailer { filled, .. } => TRAILER_BYTES - filled,
        }
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

    /// The length of a segment's header.
    pub(crate) fn header_bytes(&self) -> usize {
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
    use crate::wire::compress::shrink_to_block;
    use crate::wire::compression::Compression;
    use crate::wire::crc::crc24;
    use crate::wire::segment::{MAX_PAYLOAD_BYTES, encode};
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
