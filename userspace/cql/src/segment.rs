//! v5 segments without compression (`native_protocol_v5.spec` §2.1, where they are called frames).
//!
//! Six bytes of header: 17 bits of payload length, 1 bit "self-contained" and 6 bits of padding,
//! little endian, then the CRC24 of those three bytes. The payload. Its CRC32, little endian.
//!
//! A payload is handed on only once its CRC32 was right: in place when the whole segment is in the
//! piece at hand, otherwise from a buffer of at most 128 KiB.

use crate::crc::{crc24, crc32};
use crate::place::Place;

pub(crate) const HEADER_BYTES: usize = 6;
pub(crate) const TRAILER_BYTES: usize = 4;
/// The largest payload that 17 bits can name.
#[cfg(test)]
const MAX_PAYLOAD_BYTES: usize = (1 << 17) - 1;

/// A payload collected from pieces keeps its buffer up to this many bytes from segment to segment;
/// the reason is that of the frame scanner's.
const KEPT_BUFFER_BYTES: usize = 16 << 10;

/// A segment whose checksums were right.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    /// It holds whole frames; otherwise a part of one.
    pub(crate) self_contained: bool,
    pub(crate) payload: &'a [u8],
}

/// A checksum was wrong: where the next segment begins cannot be known.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadCrc;

#[derive(Clone, Copy, Debug)]
struct SegmentHeader {
    length: usize,
    self_contained: bool,
}

impl SegmentHeader {
    fn read(raw: &[u8; HEADER_BYTES]) -> Result<Self, BadCrc> {
        let [b0, b1, b2, c0, c1, c2] = *raw;
        if crc24(&[b0, b1, b2]) != u32::from_le_bytes([c0, c1, c2, 0]) {
            return Err(BadCrc);
        }
        let word = u32::from_le_bytes([b0, b1, b2, 0]);
        Ok(Self {
            length: (word & 0x1_FFFF) as usize,
            self_contained: word & (1 << 17) != 0,
        })
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

/// Cuts one direction's bytes into segments. Holds at most one payload.
#[derive(Debug)]
pub(crate) struct SegmentReader {
    state: State,
    header: [u8; HEADER_BYTES],
    payload: Vec<u8>,
    trailer: [u8; TRAILER_BYTES],
}

impl SegmentReader {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Header { filled: 0 },
            header: [0; HEADER_BYTES],
            payload: Vec::new(),
            trailer: [0; TRAILER_BYTES],
        }
    }

    /// Between two segments.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Header { filled: 0 })
    }

    /// Moves a place that is where the segment at hand began past what has come of it.
    pub(crate) fn replay(&self, place: &mut Place) {
        let (header, trailer) = match self.state {
            State::Header { filled } => (filled, 0),
            State::Payload { .. } => (HEADER_BYTES, 0),
            State::Trailer { filled, .. } => (HEADER_BYTES, filled),
        };
        place.walk(self.header.get(..header).unwrap_or_default());
        if header == HEADER_BYTES {
            place.walk(&self.payload);
        }
        place.walk(self.trailer.get(..trailer).unwrap_or_default());
    }

    /// The next segment from `input[*at..]`; `None` when all bytes are consumed and it is not
    /// whole yet.
    pub(crate) fn step<'a>(
        &'a mut self,
        input: &'a [u8],
        at: &mut usize,
    ) -> Result<Option<Segment<'a>>, BadCrc> {
        if self.is_idle() {
            self.payload.clear();
            self.payload.shrink_to(KEPT_BUFFER_BYTES);
            if let Some(segment) = in_place(input, at)? {
                return Ok(Some(segment));
            }
        }
        self.collect(input, at)
    }

    fn collect<'a>(
        &'a mut self,
        input: &'a [u8],
        at: &mut usize,
    ) -> Result<Option<Segment<'a>>, BadCrc> {
        loop {
            let rest = input.get(*at..).unwrap_or_default();
            match self.state {
                State::Header { filled } => {
                    let filled = fill(&mut self.header, filled, rest, at);
                    if filled < HEADER_BYTES {
                        self.state = State::Header { filled };
                        return Ok(None);
                    }
                    let header = SegmentHeader::read(&self.header)?;
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
                        return Err(BadCrc);
                    }
                    self.state = State::Header { filled: 0 };
                    let self_contained = header.self_contained;
                    return Ok(Some(Segment {
                        self_contained,
                        payload: &self.payload,
                    }));
                }
            }
        }
    }
}

/// A segment that is whole in `input[*at..]`.
pub(crate) fn in_place<'a>(input: &'a [u8], at: &mut usize) -> Result<Option<Segment<'a>>, BadCrc> {
    let rest = input.get(*at..).unwrap_or_default();
    let Some((raw, rest)) = rest.split_first_chunk() else {
        return Ok(None);
    };
    let SegmentHeader {
        length,
        self_contained,
    } = SegmentHeader::read(raw)?;
    let Some((payload, rest)) = rest.split_at_checked(length) else {
        return Ok(None);
    };
    let Some(trailer) = rest.first_chunk() else {
        return Ok(None);
    };
    if crc32(payload) != u32::from_le_bytes(*trailer) {
        return Err(BadCrc);
    }
    *at += HEADER_BYTES + length + TRAILER_BYTES;
    Ok(Some(Segment {
        self_contained,
        payload,
    }))
}

/// A self-contained segment around `payload`, of which there are at most 17 bits' worth of bytes.
pub(crate) fn encode(payload: &[u8]) -> Vec<u8> {
    let word = (payload.len() as u32 & 0x1_FFFF) | 1 << 17;
    let [b0, b1, b2, _] = word.to_le_bytes();
    let [c0, c1, c2, _] = crc24(&[b0, b1, b2]).to_le_bytes();
    let mut segment = vec![b0, b1, b2, c0, c1, c2];
    segment.extend_from_slice(payload);
    segment.extend(crc32(payload).to_le_bytes());
    segment
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
    use cassandra_protocol::frame::frame_encoder::{FrameEncoder, UncompressedFrameEncoder};

    fn encode(payload: &[u8], self_contained: bool) -> Vec<u8> {
        let mut encoder = UncompressedFrameEncoder::default();
        if self_contained {
            encoder.add_envelope(payload.to_vec());
            encoder.finalize_self_contained().to_vec()
        } else {
            encoder.finalize_non_self_contained(payload).1.to_vec()
        }
    }

    fn read(pieces: &[&[u8]]) -> Result<Vec<(bool, Vec<u8>)>, BadCrc> {
        let mut reader = SegmentReader::new();
        let mut segments = Vec::new();
        for piece in pieces {
            let mut at = 0;
            while let Some(segment) = reader.step(piece, &mut at)? {
                segments.push((segment.self_contained, segment.payload.to_vec()));
            }
            assert_eq!(at, piece.len());
        }
        assert!(reader.payload.capacity() <= MAX_PAYLOAD_BYTES.next_power_of_two());
        Ok(segments)
    }

    #[test]
    fn reads_what_cassandra_protocol_writes_at_every_cut() {
        let mut bytes = encode(b"some frames", true);
        bytes.extend(encode(b"", true));
        bytes.extend(encode(b"a part of one", false));
        let expected = vec![
            (true, b"some frames".to_vec()),
            (true, Vec::new()),
            (false, b"a part of one".to_vec()),
        ];
        for cut in 0..=bytes.len() {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(read(&[a, b]), Ok(expected.clone()), "cut at {cut}");
        }
        assert_eq!(read(&bytes.chunks(1).collect::<Vec<_>>()), Ok(expected));
    }

    #[test]
    fn writes_what_cassandra_protocol_writes() {
        for payload in [&b""[..], b"a frame", &[7; 1000]] {
            assert_eq!(super::encode(payload), encode(payload, true));
        }
    }

    #[test]
    fn the_largest_payload() {
        let payload = vec![7; MAX_PAYLOAD_BYTES];
        let bytes = encode(&payload, false);
        let pieces: Vec<&[u8]> = bytes.chunks(4096).collect();
        assert_eq!(read(&pieces), Ok(vec![(false, payload)]));
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let good = encode(b"payload", true);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&[&bad]), Err(BadCrc), "whole, bit {bit}");
            let pieces: Vec<&[u8]> = bad.chunks(3).collect();
            assert_eq!(read(&pieces), Err(BadCrc), "in pieces, bit {bit}");
        }
    }
}
