//! Frames (v3, v4), envelopes in segments (v5): the framing of both directions, with no I/O.
//!
//! A v5 connection is unsegmented up to and including the READY or AUTHENTICATE that answers
//! STARTUP; after it every byte of both directions lies in a segment
//! (`native_protocol_v5.spec`, section 2).

use super::failure::{Failure, Result};

/// Bytes of a frame's (v5: an envelope's) header.
pub(super) const HEADER_LEN: usize = 9;
/// The protocol's own limit for a body, 256 MiB.
pub(super) const PROTOCOL_MAX_BODY: usize = 256 << 20;
/// Bytes of an uncompressed segment's header: 17 bits length, 1 bit self-contained, CRC24.
const SEGMENT_HEADER_LEN: usize = 6;
const SEGMENT_TRAILER_LEN: usize = 4;
/// Longest payload of a segment: its length has 17 bits.
pub(super) const SEGMENT_MAX_PAYLOAD: usize = (1 << 17) - 1;
const SELF_CONTAINED: u64 = 1 << 17;

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Without the direction bit.
    pub(super) version: u8,
    pub(super) flags: u8,
    pub(super) stream: i16,
    pub(super) opcode: u8,
    pub(super) body_len: usize,
}

/// A buffer that is filled at its end and consumed from its front.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    data: Vec<u8>,
    start: usize,
}

impl Buffer {
    pub(super) fn unread(&self) -> &[u8] {
        self.data.get(self.start..).unwrap_or_default()
    }

    fn consume(&mut self, n: usize) {
        self.start = (self.start + n).min(self.data.len());
    }

    /// The space to read into: compacted, at least `room` bytes free, and no more than
    /// `IDLE_CAPACITY` kept once a large frame is through.
    pub(super) fn spare(&mut self, room: usize) -> &mut Vec<u8> {
        const IDLE_CAPACITY: usize = 256 << 10;
        self.data.drain(..self.start);
        self.start = 0;
        if self.data.is_empty() && self.data.capacity() > IDLE_CAPACITY {
            self.data = Vec::new();
        }
        self.data.reserve(room);
        &mut self.data
    }
}

/// Cuts what a client sends into frames.
#[derive(Debug)]
pub(super) struct Decoder {
    /// Bytes as they came from the socket.
    pub(super) raw: Buffer,
    /// v5: what was inside the segments.
    envelopes: Buffer,
    segmented: bool,
    limits: Limits,
}

/// Limits that a frame's header is held to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) max_version: u8,
    /// Bytes; see [`PROTOCOL_MAX_BODY`].
    pub(super) max_body: usize,
}

impl Decoder {
    pub(super) fn new(limits: Limits) -> Self {
        let limits = Limits {
            max_body: limits.max_body.min(PROTOCOL_MAX_BODY),
            ..limits
        };
        Self {
            raw: Buffer::default(),
            envelopes: Buffer::default(),
            segmented: false,
            limits,
        }
    }

    /// The stream of the frame that could not be read, as far as it can be told.
    pub(super) fn failed_stream(&self) -> i16 {
        let source = if self.segmented {
            &self.envelopes
        } else {
            &self.raw
        };
        match source.unread().first_chunk() {
            // Versions 1 and 2 have a stream of one byte.
            Some(&[version, _, s0, s1]) if version >= super::versions::MIN_VERSION => {
                i16::from_be_bytes([s0, s1])
            }
            _ => 0,
        }
    }

    /// From here on the peer sends segments.
    pub(super) fn start_segments(&mut self) {
        self.segmented = true;
    }

    /// The next whole frame, or `None` when more bytes are needed.
    pub(super) fn next(&mut self) -> Result<Option<(Header, &[u8])>> {
        let source = if self.segmented {
            while needs_more(self.envelopes.unread(), self.limits)? {
                if !take_segment(&mut self.raw, &mut self.envelopes)? {
                    return Ok(None);
                }
            }
            &mut self.envelopes
        } else {
            &mut self.raw
        };
        let Some(header) = parse_header(source.unread(), self.limits)? else {
            return Ok(None);
        };
        let frame_len = HEADER_LEN + header.body_len;
        let begin = source.start;
        if source.unread().len() < frame_len {
            return Ok(None);
        }
        source.consume(frame_len);
        let body = source
            .data
            .get(begin + HEADER_LEN..begin + frame_len)
            .unwrap_or_default();
        Ok(Some((header, body)))
    }
}

fn needs_more(bytes: &[u8], limits: Limits) -> Result<bool> {
    Ok(parse_header(bytes, limits)?.is_none_or(|h| bytes.len() < HEADER_LEN + h.body_len))
}

/// Reads a header once its nine bytes are there.
fn parse_header(bytes: &[u8], limits: Limits) -> Result<Option<Header>> {
    let Some(&[version, flags, s0, s1, opcode, l0, l1, l2, l3]) = bytes.first_chunk() else {
        return Ok(None);
    };
    if !(super::versions::MIN_VERSION..=limits.max_version).contains(&version) {
        let supported: Vec<String> = (super::versions::MIN_VERSION..=limits.max_version)
            .map(|v| format!("{v}/v{v}"))
            .collect();
        let supported = supported.join(", ");
        return Err(Failure::protocol(format!(
            "Invalid or unsupported protocol version ({}); supported versions are ({supported})",
            version & 0x7f
        )));
    }
    let length = u32::from_be_bytes([l0, l1, l2, l3]);
    let body_len = usize::try_from(length).unwrap_or(usize::MAX);
    if body_len > limits.max_body {
        return Err(Failure::protocol(format!(
            "a request of {length} bytes is over this node's limit of {}",
            limits.max_body
        )));
    }
    Ok(Some(Header {
        version,
        flags,
        stream: i16::from_be_bytes([s0, s1]),
        opcode,
        body_len,
    }))
}

/// Moves the payload of one whole segment to `envelopes`; false when more bytes are needed.
fn take_segment(raw: &mut Buffer, envelopes: &mut Buffer) -> Result<bool> {
    let bytes = raw.unread();
    let Some(&[h0, h1, h2, c0, c1, c2]) = bytes.first_chunk::<SEGMENT_HEADER_LEN>() else {
        return Ok(false);
    };
    let header = u64::from(u32::from_le_bytes([h0, h1, h2, 0]));
    if crc24(header, 3) != u32::from_le_bytes([c0, c1, c2, 0]) {
        return Err(Failure::protocol("a segment's header has a wrong CRC24"));
    }
    let payload_len = usize::from_le_bytes([h0, h1, h2 & 1, 0, 0, 0, 0, 0]);
    let Some(payload) = bytes.get(SEGMENT_HEADER_LEN..SEGMENT_HEADER_LEN + payload_len) else {
        return Ok(false);
    };
    let end = SEGMENT_HEADER_LEN + payload_len;
    let Some(&trailer) = bytes
        .get(end..)
        .and_then(|b| b.first_chunk::<SEGMENT_TRAILER_LEN>())
    else {
        return Ok(false);
    };
    if crc32(payload) != u32::from_le_bytes(trailer) {
        return Err(Failure::protocol("a segment's payload has a wrong CRC32"));
    }
    if header & SELF_CONTAINED != 0 && !envelopes.unread().is_empty() {
        return Err(Failure::protocol(
            "a self-contained segment came inside a frame that spans segments",
        ));
    }
    envelopes.spare(payload.len()).extend_from_slice(payload);
    raw.consume(end + SEGMENT_TRAILER_LEN);
    Ok(true)
}

/// Starts an answer; [`finish`] with the returned position writes its length.
pub(super) fn begin(out: &mut Vec<u8>, version: u8, stream: i16, opcode: u8) -> usize {
    let at = out.len();
    let [s0, s1] = stream.to_be_bytes();
    out.extend_from_slice(&[0x80 | version, 0, s0, s1, opcode, 0, 0, 0, 0]);
    at
}

/// Says what the answer begun at `at` turned out to be.
pub(super) fn set_opcode(out: &mut [u8], at: usize, opcode: u8) {
    if let Some(field) = out.get_mut(at + 4) {
        *field = opcode;
    }
}

/// Sets the flags of the answer begun at `at`.
pub(super) fn set_flags(out: &mut [u8], at: usize, flags: u8) {
    if let Some(field) = out.get_mut(at + 1) {
        *field = flags;
    }
}

/// Writes the length of the answer begun at `at`.
pub(super) fn finish(out: &mut [u8], at: usize) {
    let body_len = u32::try_from(out.len().saturating_sub(at + HEADER_LEN)).unwrap_or(u32::MAX);
    if let Some(field) = out.get_mut(at + 5..at + HEADER_LEN) {
        field.copy_from_slice(&body_len.to_be_bytes());
    }
}

/// Wraps whole envelopes into segments: as many as fit share one self-contained segment, a
/// larger one is cut into segments of its own.
pub(super) fn seal(mut envelopes: &[u8], out: &mut Vec<u8>) {
    while !envelopes.is_empty() {
        let mut group = 0;
        let mut next = envelope_len(envelopes);
        while group + next <= SEGMENT_MAX_PAYLOAD && next > 0 {
            group += next;
            next = envelope_len(envelopes.get(group..).unwrap_or_default());
        }
        let self_contained = group > 0;
        let n = if self_contained { group } else { next.max(1) };
        let (now, later) = envelopes.split_at_checked(n).unwrap_or((envelopes, &[]));
        for payload in now.chunks(SEGMENT_MAX_PAYLOAD) {
            put_segment(payload, self_contained, out);
        }
        envelopes = later;
    }
}

fn envelope_len(bytes: &[u8]) -> usize {
    let Some(&[_, _, _, _, _, l0, l1, l2, l3]) = bytes.first_chunk::<HEADER_LEN>() else {
        return bytes.len();
    };
    let body_len = usize::try_from(u32::from_be_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
    body_len.saturating_add(HEADER_LEN).min(bytes.len())
}

fn put_segment(payload: &[u8], self_contained: bool, out: &mut Vec<u8>) {
    let length = u64::try_from(payload.len()).unwrap_or(u64::MAX);
    let header = length | if self_contained { SELF_CONTAINED } else { 0 };
    let [h0, h1, h2, ..] = header.to_le_bytes();
    let [c0, c1, c2, _] = crc24(header, 3).to_le_bytes();
    out.extend_from_slice(&[h0, h1, h2, c0, c1, c2]);
    out.extend_from_slice(payload);
    out.extend_from_slice(&crc32(payload).to_le_bytes());
}

/// CRC24 as v5 defines it, over `len` bytes of `bytes`, lowest first.
fn crc24(mut bytes: u64, len: usize) -> u32 {
    const INIT: u32 = 0x0087_5060;
    const POLYNOMIAL: u32 = 0x0197_4F0B;
    let mut crc = INIT;
    for _ in 0..len {
        crc ^= u32::try_from(bytes & 0xff).unwrap_or(0) << 16;
        bytes >>= 8;
        for _ in 0..8 {
            crc <<= 1;
            if crc & 0x0100_0000 != 0 {
                crc ^= POLYNOMIAL;
            }
        }
    }
    crc
}

/// CRC32 as v5 defines it: zlib's, over four fixed bytes and then the payload.
fn crc32(payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[0xFA, 0x2D, 0x55, 0xCA]);
    hasher.update(payload);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        max_version: 5,
        max_body: PROTOCOL_MAX_BODY,
    };

    fn envelope(stream: i16, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let at = begin(&mut out, 5, stream, 0x07);
        out.extend_from_slice(body);
        finish(&mut out, at);
        if let Some(b) = out.first_mut() {
            *b &= 0x7f;
        }
        out
    }

    #[test]
    fn segments_round_trip_whatever_the_cuts() {
        let sizes = [
            0,
            1,
            100,
            SEGMENT_MAX_PAYLOAD - HEADER_LEN,
            SEGMENT_MAX_PAYLOAD,
            400_000,
            3,
            70_000,
            70_000,
        ];
        let envelopes: Vec<u8> = sizes
            .iter()
            .enumerate()
            .flat_map(|(i, &n)| envelope(i as i16, &vec![i as u8; n]))
            .collect();
        let mut wire = Vec::new();
        seal(&envelopes, &mut wire);
        for cut in [1, 7, 4096, wire.len()] {
            let mut decoder = Decoder::new(LIMITS);
            decoder.start_segments();
            let mut seen = Vec::new();
            for piece in wire.chunks(cut) {
                decoder.raw.spare(piece.len()).extend_from_slice(piece);
                while let Some((h, body)) = decoder.next().unwrap() {
                    assert!(body.iter().all(|&b| b == h.stream as u8));
                    seen.push(body.len());
                }
            }
            assert_eq!(seen, sizes);
        }
    }

    #[test]
    fn small_envelopes_share_a_segment() {
        let envelopes = [envelope(1, b"a"), envelope(2, b"b")].concat();
        let mut wire = Vec::new();
        seal(&envelopes, &mut wire);
        assert_eq!(
            wire.len(),
            envelopes.len() + SEGMENT_HEADER_LEN + SEGMENT_TRAILER_LEN
        );
    }

    #[test]
    fn a_flipped_bit_is_found() {
        let mut wire = Vec::new();
        seal(&envelope(1, b"hello"), &mut wire);
        for i in 0..wire.len() {
            let mut broken = wire.clone();
            broken[i] ^= 1;
            let mut decoder = Decoder::new(LIMITS);
            decoder.start_segments();
            decoder.raw.spare(broken.len()).extend_from_slice(&broken);
            assert!(decoder.next().is_err(), "byte {i}");
        }
    }

    #[test]
    fn oversized_and_negative_lengths_are_refused() {
        for length in [u32::MAX, 0x8000_0000, (1 << 20) + 1] {
            let mut bytes = vec![4, 0, 0, 0, 7];
            bytes.extend_from_slice(&length.to_be_bytes());
            assert!(
                parse_header(
                    &bytes,
                    Limits {
                        max_version: 5,
                        max_body: 1 << 20
                    }
                )
                .is_err()
            );
        }
    }
}
