//! The frames of protocol version 4, which every Cassandra since 2.2 and ScyllaDB speak
//! (`native_protocol_v4.spec`).

use std::io;

use cql::Compression;
use cql_edit::{Response, shrink};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Login, stream::Stream};

pub(super) const HEADER_BYTES: usize = 9;

/// The version in the agent's frames; the mirror's have the first bit set, too.
const VERSION: u8 = 4;
const RESPONSE: u8 = 0x80 | VERSION;

pub(super) const ERROR: u8 = 0x00;
const STARTUP: u8 = 0x01;
const READY: u8 = 0x02;
const AUTHENTICATE: u8 = 0x03;
pub(super) const QUERY: u8 = 0x07;
pub(super) const RESULT: u8 = 0x08;
pub(super) const PREPARE: u8 = 0x09;
pub(super) const EXECUTE: u8 = 0x0A;
pub(super) const BATCH: u8 = 0x0D;
const AUTH_RESPONSE: u8 = 0x0F;
const AUTH_SUCCESS: u8 = 0x10;

/// The shortest body that is compressed: for a shorter one, compressing is more work than it saves.
const WORTH_BYTES: usize = 512;

/// The flag in a header that says that the body is compressed.
const COMPRESSED: u8 = 0x01;

/// The longest frame before the connection is in use, decompressed or not; those frames are short.
const MAX_WORD_BYTES: usize = 64 << 10;

/// The most bytes of an error's message in the log.
const MAX_TOLD_BYTES: usize = 256;

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

/// Opens the conversation on a connection, in a keyspace.
pub(super) async fn begin(
    stream: &mut Stream,
    login: Option<&Login>,
    keyspace: Option<&str>,
    compression: Compression,
) -> io::Result<()> {
    let (mut opcode, mut body) = ask(stream, STARTUP, &startup(compression), compression).await?;
    if opcode == AUTHENTICATE {
        let login = login.ok_or_else(|| told("it wants a log-in: `username`, `password_file`"))?;
        let token = login.token();
        let answer = [&(token.len() as u32).to_be_bytes()[..], &token].concat();
        (opcode, body) = ask(stream, AUTH_RESPONSE, &answer, compression).await?;
        opcode = match opcode {
            AUTH_SUCCESS => READY,
            other => other,
        };
    }
    expect(opcode, READY, &body)?;
    if let Some(keyspace) = keyspace {
        let text = format!("USE \"{}\"", keyspace.replace('"', "\"\""));
        // The body says consistency ONE, without flags.
        let query = [&long_string(text.as_bytes())[..], &[0, 1, 0]].concat();
        let (opcode, body) = ask(stream, QUERY, &query, compression).await?;
        expect(opcode, RESULT, &body)?;
    }
    Ok(())
}

/// Makes a STARTUP's body. It is too short to be compressed.
fn startup(compression: Compression) -> Vec<u8> {
    let algorithm = match compression {
        Compression::None => None,
        Compression::Lz4 => Some("lz4"),
        Compression::Snappy => Some("snappy"),
    };
    let algorithm = algorithm.map(|algorithm| ("COMPRESSION", algorithm));
    let options: Vec<_> = [("CQL_VERSION", "3.0.0")]
        .into_iter()
        .chain(algorithm)
        .collect();
    let mut body = (options.len() as u16).to_be_bytes().to_vec();
    for text in options.iter().flat_map(|(name, value)| [name, value]) {
        body.extend((text.len() as u16).to_be_bytes());
        body.extend(text.as_bytes());
    }
    body
}

fn expect(opcode: u8, expected: u8, body: &[u8]) -> io::Result<()> {
    match opcode {
        _ if opcode == expected => Ok(()),
        // The message follows its code and length. It is the mirror's own text on the log-in or the
        // keyspace.
        ERROR => {
            let message = body.get(6..).unwrap_or_default();
            let message = message.get(..MAX_TOLD_BYTES).unwrap_or(message);
            Err(told(
                &String::from_utf8_lossy(message).escape_debug().to_string(),
            ))
        }
        other => Err(told(&format!("unexpected opcode {other:#04x}"))),
    }
}

fn told(message: &str) -> io::Error {
    io::Error::other(message.to_owned())
}

async fn ask(
    stream: &mut Stream,
    opcode: u8,
    body: &[u8],
    compression: Compression,
) -> io::Result<(u8, Vec<u8>)> {
    let mut request = Vec::new();
    put(&mut request, 0, opcode, body, compression);
    stream.write_all(&request).await?;
    stream.flush().await?;
    let mut frame = vec![0; HEADER_BYTES];
    stream.read_exact(&mut frame).await?;
    let raw = frame.first_chunk();
    let header = raw.and_then(|raw| Header::read(raw, compression));
    let header = header.filter(|header| header.length <= MAX_WORD_BYTES);
    let header = header.ok_or_else(|| told("it does not speak version 4 of CQL's protocol"))?;
    frame.resize(HEADER_BYTES + header.length, 0);
    stream
        .read_exact(frame.get_mut(HEADER_BYTES..).unwrap_or_default())
        .await?;
    let response = Response::of_frame(&frame, compression, MAX_WORD_BYTES);
    let body = response.as_ref().and_then(Response::proper);
    let body = body.ok_or_else(|| told("it answers by what cannot be read"))?;
    Ok((header.opcode, body.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Snappy];

    #[test]
    fn a_connection_begins_with_what_is_compressed_how() {
        let plain = b"\0\x01\0\x0BCQL_VERSION\0\x053.0.0";
        assert_eq!(startup(Compression::None), plain);
        let lz4 = b"\0\x02\0\x0BCQL_VERSION\0\x053.0.0\0\x0BCOMPRESSION\0\x03lz4";
        assert_eq!(startup(Compression::Lz4), lz4);
    }

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
