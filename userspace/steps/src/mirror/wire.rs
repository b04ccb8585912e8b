//! The frames of protocol version 4, which every Cassandra since 2.2 and ScyllaDB speak
//! (`native_protocol_v4.spec`).

use cql::Compression;
use cql_edit::shrink;

pub(super) const HEADER_BYTES: usize = 9;

/// The version of the protocol.
pub(super) const VERSION: u8 = 4;

pub(super) const ERROR: u8 = 0x00;
pub(super) const QUERY: u8 = 0x07;
pub(super) const PREPARE: u8 = 0x09;
pub(super) const EXECUTE: u8 = 0x0A;
pub(super) const BATCH: u8 = 0x0D;

/// The shortest body that is compressed: for a shorter one, compressing is more work than it saves.
const WORTH_BYTES: usize = 512;

/// The flag in a header that says that the body is compressed.
const COMPRESSED: u8 = 0x01;

/// Whether a response with these flags has a compression that was agreed on, or none.
pub(super) fn is_agreed(flags: u8, compression: Compression) -> bool {
    flags & COMPRESSED == 0 || compression != Compression::None
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
    use cql_edit::{Incoming, NotOne, Response};

    use super::*;

    const RESPONSE: u8 = 0x80 | VERSION;

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
        let mut raw = [RESPONSE, 0, 0, 7, 0x08, 0, 0, 0, 0];
        let flags = |raw: &[u8]| {
            let mut incoming = Incoming::new(VERSION);
            incoming.comes(raw)?;
            Ok::<_, NotOne>(incoming.next(raw.len())?.map(|came| came.flags))
        };
        assert_eq!(flags(&raw), Ok(Some(0)));
        for compression in ALL {
            assert!(is_agreed(0, compression));
        }
        raw[1] = COMPRESSED;
        assert_eq!(flags(&raw), Ok(Some(COMPRESSED)));
        assert!(!is_agreed(COMPRESSED, Compression::None));
        assert!(is_agreed(COMPRESSED, Compression::Lz4));
        // Another version's, and a request.
        for first in [0x83, 0x85, VERSION] {
            raw[0] = first;
            assert_eq!(flags(&raw), Err(NotOne));
        }
    }
}
