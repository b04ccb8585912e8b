//! v5 segments (`native_protocol_v5.spec` §2.1 and §2.2, where they are called frames).
//!
//! Plain: six bytes of header, which are 17 bits of payload length, 1 bit "self-contained" and 6 bits
//! of padding, little endian, then the CRC24 of those three bytes. The payload. Its CRC32, little
//! endian.
//!
//! LZ4: eight bytes of header, with 17 bits of payload length as carried, 17 bits of what it becomes, the
//! bit, and 5 bits of padding, then the CRC24 of those five bytes. The rest is the same; the CRC32 is that
//! of what is carried. If it is to become 0 bytes, it is not compressed.

use crate::wire::compress::{expand_block, shrink_to_block};
use crate::wire::compression::Compression;
use crate::wire::crc::{crc24, crc32};

/// A header's length without compression, its CRC24 included.
pub const HEADER_BYTES: usize = 6;
/// A header's length with LZ4, its CRC24 included.
pub const LZ4_HEADER_BYTES: usize = 8;
/// The length of the CRC32 behind a payload.
pub const TRAILER_BYTES: usize = 4;
/// The largest payload that 17 bits can name.
pub const MAX_PAYLOAD_BYTES: usize = (1 << 17) - 1;

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
    #[inline]
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
    #[inline]
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

/// A segment whose checksums were right.
pub(super) fn segment<'a>(
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
pub(super) fn carried_lz4<'a>(
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
#[inline]
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
