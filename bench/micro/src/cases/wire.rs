//! Writes CQL: frames, v5 segments, and bodies as cassandra-stress's default table would have
//! them (a key of 10 bytes, five columns of 34).

/// The bytes that the agent reads at once (`proxy/relay.rs`).
pub(super) const CHUNK_BYTES: usize = 64 << 10;

/// The largest payload of a v5 segment (`native_protocol_v5.spec` §2.1).
pub(super) const MAX_SEGMENT_BYTES: usize = (1 << 17) - 1;

/// An id: an MD5 digest.
pub(super) type Id = [u8; 16];

pub(super) const STARTUP: u8 = 0x01;
pub(super) const QUERY: u8 = 0x07;
pub(super) const PREPARE: u8 = 0x09;
pub(super) const EXECUTE: u8 = 0x0A;
pub(super) const BATCH: u8 = 0x0D;
pub(super) const ERROR: u8 = 0x00;
pub(super) const READY: u8 = 0x02;
pub(super) const RESULT: u8 = 0x08;

/// The bit of a frame's first byte that marks a response.
pub(super) const RESPONSE: u8 = 0x80;

const KEY: [u8; 10] = *b"39P4OL8N30";
const COLUMN: [u8; 34] = [0x5A; 34];
const COLUMNS: usize = 5;
/// LOCAL_ONE
const CONSISTENCY: u16 = 0x000A;

pub(super) fn frame(version: u8, stream: i16, opcode: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![version, 0];
    frame.extend(stream.to_be_bytes());
    frame.push(opcode);
    frame.extend((body.len() as u32).to_be_bytes());
    frame.extend(body);
    frame
}

/// `payload` in one v5 segment; at most [`MAX_SEGMENT_BYTES`].
pub(super) fn segment(self_contained: bool, payload: &[u8]) -> Vec<u8> {
    let word = payload.len() as u32 | u32::from(self_contained) << 17;
    let [b0, b1, b2, _] = word.to_le_bytes();
    let mut segment = vec![b0, b1, b2];
    let [c0, c1, c2, _] = crc24(&segment).to_le_bytes();
    segment.extend([c0, c1, c2]);
    segment.extend(payload);
    segment.extend(crc32(payload).to_le_bytes());
    segment
}

pub(super) fn startup(version: u8) -> Vec<u8> {
    let body = [
        &[0, 1][..],
        &short_bytes(b"CQL_VERSION"),
        &short_bytes(b"3.0.0"),
    ];
    frame(version, 0, STARTUP, &body.concat())
}

/// Makes a QUERY's body: its text and one value.
pub(super) fn query(text: &str) -> Vec<u8> {
    let mut body = long_string(text);
    body.extend(CONSISTENCY.to_be_bytes());
    body.push(0x01); // values follow
    body.extend([0, 1]);
    body.extend(bytes(&KEY));
    body
}

pub(super) fn prepare(version: u8, text: &str) -> Vec<u8> {
    let mut body = long_string(text);
    if version >= 5 {
        body.extend([0; 4]); // no flags
    }
    body
}

/// A write of all columns.
pub(super) fn execute(version: u8, id: &Id) -> Vec<u8> {
    let mut body = short_bytes(id);
    if version >= 5 {
        body.extend(short_bytes(id)); // of the result's metadata
    }
    body.extend(CONSISTENCY.to_be_bytes());
    body.extend(match version {
        5.. => &[0, 0, 0, 0x01][..],
        _ => &[0x01],
    });
    body.extend(values());
    body
}

/// A logged batch of prepared statements, v3 and v4.
pub(super) fn batch(id: &Id, children: u16) -> Vec<u8> {
    let mut body = vec![0];
    body.extend(children.to_be_bytes());
    for _ in 0..children {
        body.push(1);
        body.extend(short_bytes(id));
        body.extend(values());
    }
    body.extend(CONSISTENCY.to_be_bytes());
    body.push(0);
    body
}

/// `count` rows, without metadata as drivers ask for after a PREPARE.
pub(super) fn rows(count: usize) -> Vec<u8> {
    let mut body = vec![0, 0, 0, 2];
    body.extend(4_u32.to_be_bytes()); // no metadata
    body.extend((COLUMNS as u32).to_be_bytes());
    body.extend((count as u32).to_be_bytes());
    for _ in 0..count * COLUMNS {
        body.extend(bytes(&COLUMN));
    }
    body
}

pub(super) fn void() -> Vec<u8> {
    vec![0, 0, 0, 1]
}

/// Read_timeout's code and text; what follows them is not looked at.
pub(super) fn error() -> Vec<u8> {
    let text = b"Operation timed out - received only 0 responses.";
    [&0x1200_u32.to_be_bytes()[..], &short_bytes(text)].concat()
}

pub(super) fn prepared(id: &Id) -> Vec<u8> {
    [&[0, 0, 0, 4][..], &short_bytes(id)].concat()
}

fn values() -> Vec<u8> {
    let mut values = (COLUMNS as u16 + 1).to_be_bytes().to_vec();
    values.extend(bytes(&KEY));
    for _ in 0..COLUMNS {
        values.extend(bytes(&COLUMN));
    }
    values
}

fn bytes(value: &[u8]) -> Vec<u8> {
    [&(value.len() as u32).to_be_bytes(), value].concat()
}

fn short_bytes(value: &[u8]) -> Vec<u8> {
    [&(value.len() as u16).to_be_bytes(), value].concat()
}

fn long_string(text: &str) -> Vec<u8> {
    bytes(text.as_bytes())
}

/// `native_protocol_v5.spec` §2.1; bit by bit, for it only writes inputs.
fn crc24(bytes: &[u8]) -> u32 {
    const INITIAL: u32 = 0x0087_5060;
    const POLYNOMIAL: u32 = 0x0197_4F0B;
    bytes.iter().fold(INITIAL, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte) << 16, |crc, _| {
            let shifted = crc << 1;
            match shifted & (1 << 24) {
                0 => shifted,
                _ => shifted ^ POLYNOMIAL,
            }
        })
    })
}

/// CRC32 that has four bytes before the payload (`native_protocol_v5.spec` §2.1).
fn crc32(payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[0xFA, 0x2D, 0x55, 0xCA]);
    hasher.update(payload);
    hasher.finalize()
}
