//! The bytes of native protocol v4 (`native_protocol_v4.spec`).

use anyhow::ensure;

use crate::raw::protocol::MAX_RESPONSE_BYTES;

/// §2.1: a request's version byte.
pub const VERSION: u8 = 4;

/// §2.4.
pub const ERROR: u8 = 0x00;
/// §2.4.
pub const STARTUP: u8 = 0x01;
/// §2.4.
pub const READY: u8 = 0x02;
/// §2.4.
pub const AUTHENTICATE: u8 = 0x03;
/// §2.4.
pub const QUERY: u8 = 0x07;
/// §2.4.
pub const RESULT: u8 = 0x08;
/// §2.4.
pub const PREPARE: u8 = 0x09;
/// §2.4.
pub const EXECUTE: u8 = 0x0A;
/// §2.4.
pub const BATCH: u8 = 0x0D;
/// §2.4.
pub const AUTH_RESPONSE: u8 = 0x0F;
/// §2.4.
pub const AUTH_SUCCESS: u8 = 0x10;

/// Version, flags, stream (2), opcode, length (4).
pub const HEADER_BYTES: usize = 9;
/// Consistency ONE.
pub const ONE: [u8; 2] = [0, 1];
/// Flags of QUERY and EXECUTE: values follow; the result needs no metadata.
pub const VALUES_SKIP_METADATA: u8 = 0x01 | 0x02;
/// A kind of RESULT.
pub const VOID: i32 = 1;
/// A kind of RESULT.
pub const ROWS: i32 = 2;
/// A kind of RESULT.
pub const PREPARED: i32 = 4;

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The request's stream, or -1 for an event.
    pub stream: i16,
    /// The opcode.
    pub opcode: u8,
    /// The length of the body, in bytes.
    pub length: usize,
}

impl Header {
    /// Reads the header at the front of a response. None: there is too little of it.
    ///
    /// # Errors
    /// The bytes are no response: framing is lost.
    pub fn of_response(bytes: &[u8]) -> anyhow::Result<Option<Self>> {
        let Some(&[version, _flags, s1, s0, opcode, l3, l2, l1, l0]) = bytes.first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([l3, l2, l1, l0]) as usize;
        ensure!(
            version == VERSION | 0x80 && length <= MAX_RESPONSE_BYTES,
            "no response of native protocol v4 (version {version:#04x}, {length} bytes): framing \
             is lost"
        );
        Ok(Some(Self {
            stream: i16::from_be_bytes([s1, s0]),
            opcode,
            length,
        }))
    }
}

/// Begins a request; [`end`] writes its length.
pub fn begin(opcode: u8, stream: u16, out: &mut Vec<u8>) -> usize {
    let start = out.len();
    let [s1, s0] = stream.to_be_bytes();
    out.extend_from_slice(&[VERSION, 0, s1, s0, opcode, 0, 0, 0, 0]);
    start
}

/// Ends the request that was begun there.
///
/// # Errors
/// When it is too long for the protocol.
pub fn end(start: usize, out: &mut [u8]) -> anyhow::Result<()> {
    let length = u32::try_from(out.len() - start - HEADER_BYTES)?;
    if let Some(place) = out.get_mut(start + HEADER_BYTES - 4..start + HEADER_BYTES) {
        place.copy_from_slice(&length.to_be_bytes());
    }
    Ok(())
}

/// `[bytes]`; a `[long string]` looks the same.
///
/// # Errors
/// When they are too long for the protocol.
pub fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) -> anyhow::Result<()> {
    out.extend_from_slice(&i32::try_from(bytes.len())?.to_be_bytes());
    out.extend_from_slice(bytes);
    Ok(())
}

/// `[short bytes]`.
///
/// # Errors
/// When they are too long for the protocol.
pub fn put_short_bytes(bytes: &[u8], out: &mut Vec<u8>) -> anyhow::Result<()> {
    out.extend_from_slice(&u16::try_from(bytes.len())?.to_be_bytes());
    out.extend_from_slice(bytes);
    Ok(())
}

/// §9: a code and a message.
pub fn describe_error(body: &[u8]) -> String {
    let mut body = Body(body);
    let code = body.int().unwrap_or_default();
    let message = body.short_bytes().unwrap_or_default();
    format!("error {code:#06x}: {}", String::from_utf8_lossy(message))
}

/// The first value of the first row, of a result with one column of a native type.
pub fn first_text(body: &[u8]) -> Option<String> {
    let mut body = rows_of_one_column(body)?;
    let _rows = body.int()?;
    let length = usize::try_from(body.int()?).ok()?;
    String::from_utf8(body.take(length)?.to_vec()).ok()
}

/// §4.2.5.2: the number of rows, and the rows, of a result with one column of a native type.
pub fn rows_of_one_column(body: &[u8]) -> Option<Body<'_>> {
    const GLOBAL_TABLE: i32 = 0x01;
    let mut body = Body(body);
    let kind = body.int()?;
    let flags = body.int()?;
    let columns = body.int()?;
    // The metadata of one column of one page has nothing but its origin.
    if (kind, columns) != (ROWS, 1) || flags & !GLOBAL_TABLE != 0 {
        return None;
    }
    // Keyspace and table, once for all columns or with each; then the column's name and type.
    for _ in 0..3 {
        body.short_bytes()?;
    }
    body.take(2)?;
    Some(body)
}

/// Reads from the front.
pub struct Body<'a>(pub &'a [u8]);

impl<'a> Body<'a> {
    /// Takes this many bytes.
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// Takes an `[int]`.
    pub fn int(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    /// `[short bytes]`, `[string]`.
    pub fn short_bytes(&mut self) -> Option<&'a [u8]> {
        let length = u16::from_be_bytes(self.take(2)?.try_into().ok()?);
        self.take(length.into())
    }
}
