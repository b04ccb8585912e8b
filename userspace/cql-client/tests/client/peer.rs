//! The frames of a database that the tests play, by `cassandra-protocol`.

use std::time::{Duration, Instant};

use cassandra_protocol::{
    compression::Compression as Codec,
    frame::{Direction, Envelope, Flags, Opcode, Version},
};
use cql::Compression;
use cql_edit::in_segments_of;

pub(crate) const VERSIONS: [Version; 3] = [Version::V3, Version::V4, Version::V5];

pub(crate) const COMPRESSIONS: [Compression; 3] =
    [Compression::None, Compression::Lz4, Compression::Snappy];

pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// A response on stream 0, with a body that is compressed as was agreed on.
pub(crate) fn response(
    version: Version,
    compression: Compression,
    opcode: Opcode,
    body: &[u8],
) -> Vec<u8> {
    let codec = match compression {
        Compression::None => Codec::None,
        Compression::Lz4 => Codec::Lz4,
        Compression::Snappy => Codec::Snappy,
    };
    let (direction, flags) = (Direction::Response, Flags::empty());
    let body = body.to_vec();
    let envelope = Envelope::new(version, direction, flags, opcode, 0, body, None, Vec::new());
    envelope.encode_with(codec).unwrap()
}

/// A response once the STARTUP has been answered: version 5 has segments then.
pub(crate) fn answer(
    version: Version,
    compression: Compression,
    opcode: Opcode,
    body: &[u8],
) -> Vec<u8> {
    let frame = response(version, compression, opcode, body);
    match version {
        Version::V5 => in_segments_of(compression, &frame),
        _ => frame,
    }
}

pub(crate) fn ints(ints: &[i32]) -> Vec<u8> {
    ints.iter().flat_map(|int| int.to_be_bytes()).collect()
}

pub(crate) fn short(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text].concat()
}

/// A RESULT of rows of one column of this type.
pub(crate) fn rows(kind: &[u8], cells: &[&[u8]]) -> Vec<u8> {
    let mut body = ints(&[2, 1, 1]);
    for name in ["ks", "t", "c"] {
        body.extend(short(name.as_bytes()));
    }
    body.extend(kind);
    body.extend(ints(&[cells.len() as i32]));
    for cell in cells {
        body.extend((cell.len() as u32).to_be_bytes());
        body.extend_from_slice(cell);
    }
    body
}
