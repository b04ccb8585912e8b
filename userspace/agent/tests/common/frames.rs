//! CQL as bytes, good and bad: frames and v5 segments (`native_protocol_v5.spec` §2).

pub const STARTUP: u8 = 0x01;
pub const READY: u8 = 0x02;
pub const QUERY: u8 = 0x07;
pub const RESULT: u8 = 0x08;

/// The bit of the first byte that marks a response.
pub const RESPONSE: u8 = 0x80;

/// A frame whose header is right, whatever the body.
pub fn frame(first: u8, stream: i16, opcode: u8, body: &[u8]) -> Vec<u8> {
    [&header(first, stream, opcode, body.len() as i32), body].concat()
}

/// Nine bytes; `length` as it is.
pub fn header(first: u8, stream: i16, opcode: u8, length: i32) -> Vec<u8> {
    let mut header = vec![first, 0];
    header.extend(stream.to_be_bytes());
    header.push(opcode);
    header.extend(length.to_be_bytes());
    header
}

/// A STARTUP with these options.
pub fn startup(version: u8, options: &[(&str, &str)]) -> Vec<u8> {
    let mut body = (options.len() as u16).to_be_bytes().to_vec();
    for text in options.iter().flat_map(|(name, value)| [name, value]) {
        body.extend((text.len() as u16).to_be_bytes());
        body.extend(text.as_bytes());
    }
    frame(version, 0, STARTUP, &body)
}

/// READY, which lets a client in.
pub fn ready(version: u8) -> Vec<u8> {
    frame(RESPONSE | version, 0, READY, &[])
}

/// A QUERY without values.
pub fn query(version: u8, stream: i16, text: &str) -> Vec<u8> {
    let mut body = (text.len() as i32).to_be_bytes().to_vec();
    body.extend(text.as_bytes());
    body.extend([0, 1]); // consistency ONE
    // Flags: an [int] since v5.
    body.extend(if version < 5 { &[0][..] } else { &[0; 4] });
    frame(version, stream, QUERY, &body)
}

/// A RESULT of kind Void.
pub fn void(version: u8, stream: i16) -> Vec<u8> {
    frame(RESPONSE | version, stream, RESULT, &1_i32.to_be_bytes())
}

/// A segment around whole frames.
pub fn segment(payload: &[u8]) -> Vec<u8> {
    let word = payload.len() as u32 | 1 << 17;
    let [b0, b1, b2, _] = word.to_le_bytes();
    let mut segment = vec![b0, b1, b2];
    segment.extend_from_slice(&crc24(&segment).to_le_bytes()[..3]);
    segment.extend(payload);
    segment.extend(crc32(payload).to_le_bytes());
    segment
}

fn crc24(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x87_5060, |crc, byte| {
        (0..8).fold(crc ^ (u32::from(*byte) << 16), |crc, _| {
            let shifted = crc << 1;
            shifted ^ (0x197_4F0B & (shifted >> 24 & 1).wrapping_neg())
        })
    })
}

/// CRC32 of a payload behind the four bytes that Cassandra puts before it.
fn crc32(payload: &[u8]) -> u32 {
    let seed: [u8; 4] = [0xFA, 0x2D, 0x55, 0xCA];
    let bytes = seed.iter().chain(payload);
    !bytes.fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ (0xEDB8_8320 & (crc & 1).wrapping_neg())
        })
    })
}
