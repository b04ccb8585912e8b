//! The frames of protocol version 4, which every Cassandra since 2.2 and ScyllaDB speak
//! (`native_protocol_v4.spec`).

use cql::Compression;
use cql_edit::shrink;

pub(super) const HEADER_BYTES: usize = 9;

/// The version in the agent's frames; the mirror's have the first bit set, too.
const VERSION: u8 = 4;
const RESPONSE: u8 = 0x80 | VERSION;

pub(super) const ERROR: u8 = 0x00;
pub(super) const QUERY: u8 = 0x07;
pub(super) const PREPARE: u8 = 0x09;
pub(super) const EXECUTE: u8 = 0x0A;
pub(super) const BATCH: u8 = 0x0D;

/// The shortest body that is compressed: for a shorter one, compressing is more work than it saves.
const WORTH_BYTES: usize = 512;

/// The flag in a header that says that the body is compressed.
const COMPRESSED: u8 = 0x01;

/// The header of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) stream: i16,
    pub(super) opcode: u8,
    pub(super) length: usize,
}

impl Header {
    /// Reads a header. None: it is no response of version 4, has a compression that was not agreed
    /// on, or is impossibly long.
    pub(super) fn read(raw: &[u8; HEADER_BYTES], compression: Compression) -> Option<Self> {
        let [first, flags, s0, s1, opcode, l0, l1, l2, l3] = *raw;
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        let is_agreed = flags & COMPRESSED == 0 || compression != Compression::None;
        let is_one = first == RESPONSE && is_agreed && length <= cql::MAX_BODY_BYTES;
        is_one.then_some(Self {
            stream: i16::from_be_bytes([s0, s1]),
            opcode,
            length: length as usize,
        })
    }
}

/// Appends a request, compressed where that makes it smaller.
pub(super) fn put(
    to: &mut Vec<u8>,
    stream: i16,
    opcode: u8,
    body: &[u8],
    compression: Compression,
) {
    let worth = body.len() >= WORTH_BYTES;
    let shrunk = worth.then(|| shrink(compression, body)).flatten();
    let shrunk = shrunk.filter(|shrunk| shrunk.len() < body.len());
    let flags = if shrunk.is_some() { COMPRESSED } else { 0 };
    let body = shrunk.as_deref().unwrap_or(body);
    to.extend([VERSION, flags]);
    to.extend(stream.to_be_bytes());
    to.push(opcode);
    to.extend((body.len() as u32).to_be_bytes());
    to.extend_from_slice(body);
}

/// Makes a PREPARE's body, or the beginning of a QUERY's.
pub(super) fn long_string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text].concat()
}

#[cfg(test)]
mod tests {
    use cql_edit::Response;

    use super::*;

    const RESULT: u8 = 0x08;

    const ALL: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Snappy];

    #[test]
    fn a_body_is_compressed_where_that_makes_it_smaller() {
        let long = vec![b'x'; WORTH_BYTES];
        let mut state = 1_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            // Knuth's generator, whose upper bits are as good as random.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .take(WORTH_BYTES)
        .collect();
        for compression in ALL {
            for (body, is_worth) in [
                (&long[..], true),
                (&noise, false),
                (&long[1..], false),
                (&[], false),
            ] {
                let mut request = Vec::new();
                put(&mut request, 7, QUERY, body, compression);
                let expects = is_worth && compression != Compression::None;
                assert_eq!(request[1] == COMPRESSED, expects, "{compression:?}");
                request[0] = RESPONSE;
                let read = Response::of_frame(&request, compression, WORTH_BYTES).unwrap();
                assert_eq!(read.proper(), Some(body));
                let less = Response::of_frame(&request, compression, WORTH_BYTES - 1);
                assert_eq!(less.is_none(), expects);
            }
        }
    }

    #[test]
    fn what_was_not_agreed_on_is_no_response() {
        let mut raw = [RESPONSE, 0, 0, 7, RESULT, 0, 0, 0, 4];
        for compression in ALL {
            assert!(Header::read(&raw, compression).is_some());
        }
        raw[1] = COMPRESSED;
        assert_eq!(Header::read(&raw, Compression::None), None);
        assert!(Header::read(&raw, Compression::Lz4).is_some());
    }
}
