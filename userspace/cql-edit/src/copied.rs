//! [`Copied`]: what a request asks, without what belongs to its own connection, to be asked of another
//! database (`native_protocol_v4.spec` §4.1.4 to §4.1.7).

use cql::Opcode;
use cql::wire::Cursor;
use cql::wire::{Flags, Header};

/// The question of a QUERY, EXECUTE or BATCH. Tracing, a custom payload, a keyspace that is named with it
/// and page states stay behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The kind of a BATCH.
    batch: Option<u8>,
    statements: Vec<Part>,
    /// Names stand before values.
    named: bool,
    consistency: u16,
    page_size: Option<i32>,
    serial: Option<u16>,
    timestamp: Option<i64>,
}

/// A statement and its values.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    what: What,
    /// How many, and each as it was sent. None: none, not even their number.
    values: Option<Box<[u8]>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Text(Box<[u8]>),
    Prepared,
}

/// Why a request cannot be asked of another database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotCopied {
    /// The request is for a further page, and the state that it names is its own database's.
    Page,
    /// The request asks for something that version 4 of the protocol has not, or is of another opcode.
    Version,
}

const VALUES: u32 = 0x01;
const PAGE_SIZE: u32 = 0x04;
const PAGING_STATE: u32 = 0x08;
const SERIAL: u32 = 0x10;
const TIMESTAMP: u32 = 0x20;
const NAMES: u32 = 0x40;
const KEYSPACE: u32 = 0x80;
const NOW_IN_SECONDS: u32 = 0x100;

impl Copied {
    /// Reads a request's body, without compression.
    pub(crate) fn of(header: &Header, body: &[u8]) -> Result<Self, NotCopied> {
        let mut at = Cursor::new(body);
        if header.flags.any(Flags::CUSTOM_PAYLOAD) {
            at.skip_bytes_map().ok_or(NotCopied::Version)?;
        }
        let read = match header.opcode {
            Some(opcode @ (Opcode::Query | Opcode::Execute)) => one(&mut at, opcode, header),
            Some(Opcode::Batch) => batch(&mut at, header),
            _ => None,
        };
        read.ok_or(NotCopied::Version)?
    }

    /// How many bytes of memory it takes, about.
    pub fn bytes(&self) -> usize {
        /// Each of a statement's two pieces is allocated for itself.
        const PIECES_BYTES: usize = 64;
        let parts = self.statements.iter();
        let bytes = parts.map(|part| {
            let text = match &part.what {
                What::Text(text) => text.len(),
                What::Prepared => 0,
            };
            text + part.values.as_ref().map_or(0, |values| values.len())
        });
        let each = size_of::<Part>() + PIECES_BYTES;
        size_of::<Self>() + each * self.statements.len() + bytes.sum::<usize>()
    }

    /// How it is asked in version 4. `ids`: of its prepared statements, in their order; None: there are too few.
    pub fn in_v4<'i>(&self, ids: impl IntoIterator<Item = &'i [u8]>) -> Option<(Opcode, Vec<u8>)> {
        let mut ids = ids.into_iter();
        let mut body = Vec::new();
        let opcode = match (self.batch, self.statements.first()) {
            (Some(kind), _) => {
                body.push(kind);
                body.extend(u16::try_from(self.statements.len()).ok()?.to_be_bytes());
                for part in &self.statements {
                    match &part.what {
                        What::Text(text) => {
                            body.push(0);
                            put_text(&mut body, text)?;
                        }
                        What::Prepared => {
                            body.push(1);
                            put_id(&mut body, ids.next()?)?;
                        }
                    }
                    body.extend_from_slice(part.values.as_deref().unwrap_or(&[0, 0]));
                }
                Opcode::Batch
            }
            (None, Some(part)) => match &part.what {
                What::Text(text) => {
                    put_text(&mut body, text)?;
                    Opcode::Query
                }
                What::Prepared => {
                    put_id(&mut body, ids.next()?)?;
                    Opcode::Execute
                }
            },
            (None, None) => return None,
        };
        body.extend(self.consistency.to_be_bytes());
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        let values = match self.batch {
            Some(_) => None,
            None => self
                .statements
                .first()
                .and_then(|part| part.values.as_deref()),
        };
        let flags = flag(values.is_some(), VALUES)
            | flag(self.named, NAMES)
            | flag(self.page_size.is_some(), PAGE_SIZE)
            | flag(self.serial.is_some(), SERIAL)
            | flag(self.timestamp.is_some(), TIMESTAMP);
        body.push(flags as u8);
        body.extend_from_slice(values.unwrap_or_default());
        if let Some(rows) = self.page_size {
            body.extend(rows.to_be_bytes());
        }
        if let Some(serial) = self.serial {
            body.extend(serial.to_be_bytes());
        }
        if let Some(timestamp) = self.timestamp {
            body.extend(timestamp.to_be_bytes());
        }
        Some((opcode, body))
    }
}

fn put_text(body: &mut Vec<u8>, text: &[u8]) -> Option<()> {
    body.extend(i32::try_from(text.len()).ok()?.to_be_bytes());
    body.extend_from_slice(text);
    Some(())
}

fn put_id(body: &mut Vec<u8>, id: &[u8]) -> Option<()> {
    body.extend(u16::try_from(id.len()).ok()?.to_be_bytes());
    body.extend_from_slice(id);
    Some(())
}

fn text(at: &mut Cursor<'_>) -> Option<What> {
    let length = at.long_string_len()?;
    Some(What::Text(at.take(length)?.into()))
}

fn flags(at: &mut Cursor<'_>, header: &Header) -> Option<u32> {
    match header.version {
        5.. => Some(u32::from_be_bytes(at.int()?.to_be_bytes())),
        _ => Some(at.byte()?.into()),
    }
}

/// With their number.
fn values(at: &mut Cursor<'_>, named: bool) -> Option<Box<[u8]>> {
    let begin = at.rest();
    for _ in 0..at.short()? {
        if named {
            at.short_bytes()?;
        }
        at.skip_bytes()?;
    }
    Some(begin.get(..begin.len() - at.rest().len())?.into())
}

/// Reads one statement of a request. None: it is malformed.
fn one(at: &mut Cursor<'_>, opcode: Opcode, header: &Header) -> Option<Result<Copied, NotCopied>> {
    let what = match opcode {
        Opcode::Query => text(at)?,
        _ => {
            at.short_bytes()?;
            if header.metadata_id {
                at.short_bytes()?; // Of the result's metadata.
            }
            What::Prepared
        }
    };
    let consistency = at.short()?;
    let flags = flags(at, header)?;
    let named = flags & NAMES != 0;
    let values = match flags & VALUES {
        0 => None,
        _ => Some(values(at, named)?),
    };
    let page_size = match flags & PAGE_SIZE {
        0 => None,
        _ => Some(at.int()?),
    };
    if flags & PAGING_STATE != 0 {
        return Some(Err(NotCopied::Page));
    }
    let copied = Copied {
        batch: None,
        statements: vec![Part { what, values }],
        named: named && flags & VALUES != 0,
        consistency,
        page_size,
        serial: None,
        timestamp: None,
    };
    Some(behind(at, flags, header, copied))
}

fn batch(at: &mut Cursor<'_>, header: &Header) -> Option<Result<Copied, NotCopied>> {
    let kind = at.byte()?;
    let mut statements = Vec::new();
    for _ in 0..at.short()? {
        let what = match at.byte()? {
            0 => text(at)?,
            _ => {
                at.short_bytes()?;
                What::Prepared
            }
        };
        let values = Some(values(at, false)?);
        statements.push(Part { what, values });
    }
    let consistency = at.short()?;
    let flags = flags(at, header)?;
    let copied = Copied {
        batch: Some(kind),
        statements,
        named: false,
        consistency,
        page_size: None,
        serial: None,
        timestamp: None,
    };
    Some(behind(at, flags, header, copied))
}

/// `[<serial>][<timestamp>][<keyspace>][<now>]`
fn behind(
    at: &mut Cursor<'_>,
    flags: u32,
    header: &Header,
    mut copied: Copied,
) -> Result<Copied, NotCopied> {
    let is_undefined = match copied.batch {
        Some(_) => flags & (VALUES | PAGE_SIZE | PAGING_STATE) != 0,
        None => false,
    };
    if is_undefined || header.version < 5 && flags & KEYSPACE != 0 {
        return Err(NotCopied::Version);
    }
    let mut read = || {
        if flags & SERIAL != 0 {
            copied.serial = Some(at.short()?);
        }
        if flags & TIMESTAMP != 0 {
            let bytes = at.take(8)?.first_chunk()?;
            copied.timestamp = Some(i64::from_be_bytes(*bytes));
        }
        if flags & KEYSPACE != 0 {
            at.short_bytes()?;
        }
        Some(())
    };
    read().ok_or(NotCopied::Version)?;
    match header.version >= 5 && flags & NOW_IN_SECONDS != 0 {
        true => Err(NotCopied::Version),
        false => Ok(copied),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cql::StreamId;

    fn header(version: u8, opcode: Opcode) -> Header {
        Header {
            version,
            flags: Flags(0),
            stream: StreamId(1),
            opcode: Some(opcode),
            length: 0,
            metadata_id: version >= 5,
        }
    }

    const VALUE: [u8; 7] = [0, 1, 0, 0, 0, 1, 9];

    #[test]
    fn a_request_of_any_version_becomes_one_of_version_4() {
        for version in [3, 4, 5] {
            // Values, metadata skipped, a page size, serial and timestamp; in v5 a keyspace.
            let keyspace = version == 5;
            let flags = 0x37_u32 | if keyspace { 0x80 } else { 0 };
            let flags = flags.to_be_bytes();
            let flags = if keyspace { &flags[..] } else { &flags[3..] };
            let behind = [&VALUE[..], &[0, 0, 0, 50, 0, 9], &[7; 8]].concat();
            let own = if keyspace { &b"\0\x02ks"[..] } else { b"" };
            let body = [&[0, 0, 0, 1, b'x', 0, 6][..], flags, &behind, own].concat();
            let copied = Copied::of(&header(version, Opcode::Query), &body).unwrap();
            let expected = [&[0, 0, 0, 1, b'x', 0, 6, 0x35][..], &behind].concat();
            assert_eq!(copied.in_v4([]), Some((Opcode::Query, expected)));

            let metadata = if keyspace { &b"\0\x01m"[..] } else { b"" };
            let body = [&b"\0\x02id"[..], metadata, &[0, 6], flags, &behind, own].concat();
            let copied = Copied::of(&header(version, Opcode::Execute), &body).unwrap();
            let expected = [&b"\0\x05other\0\x06\x35"[..], &behind].concat();
            assert_eq!(copied.in_v4([]), None);
            let theirs = copied.in_v4([&b"other"[..]]);
            assert_eq!(theirs, Some((Opcode::Execute, expected)));

            let children = [
                &[1, 0, 2, 0, 0, 0, 0, 1, b'x'][..],
                &VALUE,
                b"\x01\0\x02id",
                &VALUE,
            ];
            let flags = 0x20_u32.to_be_bytes();
            let flags = if keyspace { &flags[..] } else { &flags[3..] };
            let body = [&children.concat()[..], &[0, 1], flags, &[7; 8]].concat();
            let copied = Copied::of(&header(version, Opcode::Batch), &body).unwrap();
            let children = [
                &[1, 0, 2, 0, 0, 0, 0, 1, b'x'][..],
                &VALUE,
                b"\x01\0\x05other",
                &VALUE,
            ];
            let expected = [&children.concat()[..], &[0, 1, 0x20], &[7; 8]].concat();
            let theirs = copied.in_v4([&b"other"[..]]);
            assert_eq!(theirs, Some((Opcode::Batch, expected)));
            for end in 0..body.len() {
                let _ = Copied::of(&header(version, Opcode::Batch), &body[..end]);
            }
        }
    }

    #[test]
    fn what_is_its_own_databases_is_not_copied() {
        let body = [&[0, 0, 0, 1, b'x', 0, 6, 0x08][..], &[0, 0, 0, 1, 7]].concat();
        let copied = Copied::of(&header(4, Opcode::Query), &body);
        assert_eq!(copied, Err(NotCopied::Page));
        let body = [0, 0, 0, 1, b'x', 0, 6, 0, 0, 1, 0, 0, 0, 0, 9];
        let copied = Copied::of(&header(5, Opcode::Query), &body);
        assert_eq!(copied, Err(NotCopied::Version));
        let copied = Copied::of(&header(4, Opcode::Prepare), &body);
        assert_eq!(copied, Err(NotCopied::Version));
    }
}
