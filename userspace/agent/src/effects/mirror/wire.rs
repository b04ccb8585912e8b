//! Frames of version 4, which every Cassandra since 2.2 speaks, and ScyllaDB does (`native_protocol_v4.spec`).

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Login, stream::Stream};

pub(super) const HEADER_BYTES: usize = 9;

/// Of its frames; those of the mirror have the first bit set.
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

/// What is said before a connection is in use is short.
const MAX_WORD_BYTES: usize = 64 << 10;

/// Of an error, in the log.
const MAX_TOLD_BYTES: usize = 256;

/// A response's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) stream: i16,
    pub(super) opcode: u8,
    pub(super) length: usize,
}

impl Header {
    /// None: it is no response of version 4 without compression, or impossibly long.
    pub(super) fn read(raw: &[u8; HEADER_BYTES]) -> Option<Self> {
        const COMPRESSED: u8 = 0x01;
        let [first, flags, s0, s1, opcode, l0, l1, l2, l3] = *raw;
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        let is_one = first == RESPONSE && flags & COMPRESSED == 0 && length <= cql::MAX_BODY_BYTES;
        is_one.then_some(Self {
            stream: i16::from_be_bytes([s0, s1]),
            opcode,
            length: length as usize,
        })
    }
}

/// Puts a request.
pub(super) fn put(to: &mut Vec<u8>, stream: i16, opcode: u8, body: &[u8]) {
    to.extend([VERSION, 0]);
    to.extend(stream.to_be_bytes());
    to.push(opcode);
    to.extend((body.len() as u32).to_be_bytes());
    to.extend_from_slice(body);
}

/// A PREPARE's body, or the beginning of a QUERY's.
pub(super) fn long_string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text].concat()
}

/// Has a connection begin, in a keyspace.
pub(super) async fn begin(
    stream: &mut Stream,
    login: Option<&Login>,
    keyspace: Option<&str>,
) -> io::Result<()> {
    let startup = b"\0\x01\0\x0BCQL_VERSION\0\x053.0.0";
    let (mut opcode, mut body) = ask(stream, STARTUP, startup).await?;
    if opcode == AUTHENTICATE {
        let login = login.ok_or_else(|| told("it wants a log-in: `username`, `password_file`"))?;
        let token = login.token();
        let answer = [&(token.len() as u32).to_be_bytes()[..], &token].concat();
        (opcode, body) = ask(stream, AUTH_RESPONSE, &answer).await?;
        opcode = match opcode {
            AUTH_SUCCESS => READY,
            other => other,
        };
    }
    expect(opcode, READY, &body)?;
    if let Some(keyspace) = keyspace {
        let text = format!("USE \"{}\"", keyspace.replace('"', "\"\""));
        // At ONE, without flags.
        let query = [&long_string(text.as_bytes())[..], &[0, 1, 0]].concat();
        let (opcode, body) = ask(stream, QUERY, &query).await?;
        expect(opcode, RESULT, &body)?;
    }
    Ok(())
}

fn expect(opcode: u8, expected: u8, body: &[u8]) -> io::Result<()> {
    match opcode {
        _ if opcode == expected => Ok(()),
        // Code and length of the message before it. It is the mirror's own word on its log-in or keyspace.
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

async fn ask(stream: &mut Stream, opcode: u8, body: &[u8]) -> io::Result<(u8, Vec<u8>)> {
    let mut request = Vec::new();
    put(&mut request, 0, opcode, body);
    stream.write_all(&request).await?;
    stream.flush().await?;
    let mut raw = [0; HEADER_BYTES];
    stream.read_exact(&mut raw).await?;
    let header = Header::read(&raw).filter(|header| header.length <= MAX_WORD_BYTES);
    let header = header.ok_or_else(|| told("it does not speak version 4 of CQL's protocol"))?;
    let mut body = vec![0; header.length];
    stream.read_exact(&mut body).await?;
    Ok((header.opcode, body))
}
