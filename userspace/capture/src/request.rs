//! [`Request`]: a QUERY, PREPARE, EXECUTE or BATCH read to its end (`native_protocol_v5.spec` §4.1.4 to §4.1.7).

use cql::{
    Consistency, Opcode, WholeRequest,
    wire::{Cursor, Flags},
};

use crate::{Batch, Value};

/// Flags of the parameters.
const VALUES: u32 = 0x01;
const PAGE_SIZE: u32 = 0x04;
const PAGING_STATE: u32 = 0x08;
const SERIAL: u32 = 0x10;
const TIMESTAMP: u32 = 0x20;
const NAMES: u32 = 0x40;
const KEYSPACE: u32 = 0x80;
const NOW_IN_SECONDS: u32 = 0x100;

/// A statement's text, or the id that a PREPARE gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked<'r> {
    /// The text.
    Text(&'r str),
    /// The id.
    Prepared(&'r [u8]),
}

/// A request's parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request<'r> {
    /// Statements: one, or a BATCH's, each with its values.
    pub statements: Vec<(Asked<'r>, Vec<Value>)>,
    /// Names of the values, if they have some.
    pub names: Vec<&'r str>,
    /// The kind of a BATCH.
    pub batch: Option<Batch>,
    /// The level that is asked for; a PREPARE has none.
    pub consistency: Option<Consistency>,
    /// The level of a condition.
    pub serial_consistency: Option<Consistency>,
    /// Rows to a page.
    pub page_size: Option<i32>,
    /// Whether a later page is asked for.
    pub later_page: bool,
    /// The client's time of a write, in µs since 1970.
    pub timestamp_us: Option<i64>,
    /// The keyspace that is given beside the statement.
    pub keyspace: Option<&'r str>,
}

impl<'r> Request<'r> {
    /// Reads a request. `None`: it does not end where its parts end, or a text is not UTF-8.
    pub fn read(whole: &'r WholeRequest) -> Option<Self> {
        let read = |metadata_id| {
            let mut body = Cursor::new(&whole.body);
            let request = Self::read_by(whole, &mut body, metadata_id)?;
            body.rest().is_empty().then_some(request)
        };
        let header = &whole.header;
        // Before version 5 only the STARTUP tells whether that id is there, and it may have passed before anybody read.
        read(header.metadata_id)
            .or_else(|| read(!header.metadata_id).filter(|_| header.version < 5))
    }

    fn read_by(whole: &'r WholeRequest, body: &mut Cursor<'r>, metadata_id: bool) -> Option<Self> {
        let header = &whole.header;
        if header.flags.any(Flags::CUSTOM_PAYLOAD) {
            body.skip_bytes_map()?;
        }
        let mut request = Self::default();
        match header.opcode? {
            Opcode::Query => {
                let asked = text(body)?;
                request.one(asked, header.version, body)?;
            }
            Opcode::Prepare => {
                request.statements.push((text(body)?, Vec::new()));
                if header.version >= 5 && body.int()? & 1 != 0 {
                    request.keyspace = Some(body.string()?);
                }
            }
            Opcode::Execute => {
                let asked = Asked::Prepared(body.short_bytes()?);
                if metadata_id {
                    body.short_bytes()?;
                }
                request.one(asked, header.version, body)?;
            }
            Opcode::Batch => request.several(header.version, body)?,
            _ => return None,
        }
        Some(request)
    }

    /// One statement with its parameters.
    fn one(&mut self, asked: Asked<'r>, version: u8, body: &mut Cursor<'r>) -> Option<()> {
        self.consistency = Some(Consistency(body.short()?));
        let flags = flags(version, body)?;
        let mut values = Vec::new();
        if flags & VALUES != 0 {
            for _ in 0..body.short()? {
                if flags & NAMES != 0 {
                    self.names.push(body.string()?);
                }
                values.push(value(body)?);
            }
        }
        self.statements.push((asked, values));
        if flags & PAGE_SIZE != 0 {
            self.page_size = Some(body.int()?);
        }
        if flags & PAGING_STATE != 0 {
            self.later_page = true;
            body.skip_bytes()?;
        }
        self.common(flags, body)
    }

    fn several(&mut self, version: u8, body: &mut Cursor<'r>) -> Option<()> {
        self.batch = Some(match body.byte()? {
            0 => Batch::Logged,
            1 => Batch::Unlogged,
            2 => Batch::Counter,
            _ => return None,
        });
        for _ in 0..body.short()? {
            let asked = match body.byte()? {
                0 => text(body)?,
                1 => Asked::Prepared(body.short_bytes()?),
                _ => return None,
            };
            let mut values = Vec::new();
            for _ in 0..body.short()? {
                values.push(value(body)?);
            }
            self.statements.push((asked, values));
        }
        self.consistency = Some(Consistency(body.short()?));
        let flags = flags(version, body)?;
        self.common(flags, body)
    }

    /// The parameters that a BATCH has as well.
    fn common(&mut self, flags: u32, body: &mut Cursor<'r>) -> Option<()> {
        if flags & SERIAL != 0 {
            self.serial_consistency = Some(Consistency(body.short()?));
        }
        if flags & TIMESTAMP != 0 {
            let bytes = body.take(8)?.try_into().ok()?;
            self.timestamp_us = Some(i64::from_be_bytes(bytes));
        }
        if flags & KEYSPACE != 0 {
            self.keyspace = Some(body.string()?);
        }
        if flags & NOW_IN_SECONDS != 0 {
            body.int()?;
        }
        Some(())
    }
}

/// A `[long string]`.
fn text<'r>(body: &mut Cursor<'r>) -> Option<Asked<'r>> {
    let length = body.long_string_len()?;
    std::str::from_utf8(body.take(length)?)
        .ok()
        .map(Asked::Text)
}

/// The flags: one byte, and since version 5 four.
fn flags(version: u8, body: &mut Cursor<'_>) -> Option<u32> {
    match version {
        5.. => body.int().map(i32::cast_unsigned),
        _ => body.byte().map(u32::from),
    }
}

fn value(body: &mut Cursor<'_>) -> Option<Value> {
    Some(match body.int()? {
        -1 => Value::Null,
        length if length < 0 => Value::Unset,
        length => Value::Bytes(body.take(usize::try_from(length).ok()?)?.into()),
    })
}

#[cfg(test)]
mod tests {
    use cql::wire::{HEADER_BYTES, Header};

    use super::*;

    fn whole(version: u8, opcode: u8, flags: u8, body: &[u8]) -> WholeRequest {
        let mut raw = [0; HEADER_BYTES];
        raw[..5].copy_from_slice(&[version, flags, 0, 1, opcode]);
        raw[5..].copy_from_slice(&(body.len() as u32).to_be_bytes());
        WholeRequest {
            header: Header::read(raw).unwrap(),
            body: body.into(),
        }
    }

    fn long(text: &str) -> Vec<u8> {
        [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
    }

    fn flag_bytes(version: u8, flags: u8) -> Vec<u8> {
        match version {
            5 => vec![0, 0, 0, flags],
            _ => vec![flags],
        }
    }

    /// A request of which something is cut off is none; nor is one with something behind it.
    fn reads_only_whole(mut request: WholeRequest) {
        let body = request.body.clone();
        for end in 0..body.len() {
            request.body = body[..end].into();
            assert_eq!(Request::read(&request), None, "{end} of {}", body.len());
        }
        request.body = [&body[..], &[0]].concat().into();
        assert_eq!(Request::read(&request), None);
    }

    #[test]
    fn a_query_is_read_to_its_end() {
        for version in [3, 4, 5] {
            let all = (VALUES | PAGE_SIZE | PAGING_STATE | SERIAL | TIMESTAMP | NAMES) as u8;
            let body = [
                &long("SELECT 1")[..],
                &[0, 6],
                &flag_bytes(version, all),
                b"\0\x02\0\x01a\0\0\0\x01x\0\x01b\xFF\xFF\xFF\xFE",
                &100_i32.to_be_bytes(),
                &long("state"),
                &[0, 9],
                &(-7_i64).to_be_bytes(),
            ];
            let request = whole(version, 0x07, 0, &body.concat());
            let read = Request::read(&request).unwrap();
            let values = vec![Value::Bytes(b"x".into()), Value::Unset];
            assert_eq!(read.statements, [(Asked::Text("SELECT 1"), values)]);
            assert_eq!(read.names, ["a", "b"]);
            assert_eq!(read.consistency, Some(Consistency(6)));
            assert_eq!(read.serial_consistency, Some(Consistency(9)));
            assert_eq!((read.page_size, read.later_page), (Some(100), true));
            assert_eq!(read.timestamp_us, Some(-7));
            reads_only_whole(request);
        }
    }

    #[test]
    fn an_execute_has_the_id_of_its_metadata_or_not() {
        for (version, has_metadata_id) in [(3, false), (4, false), (4, true), (5, true)] {
            let metadata: &[u8] = if has_metadata_id {
                b"\0\x10the-id-of-rows-1"
            } else {
                b""
            };
            let body = [
                b"\0\x02id",
                metadata,
                &[0, 10],
                &flag_bytes(version, VALUES as u8),
                b"\0\x01\xFF\xFF\xFF\xFF",
            ];
            // In version 4 the header does not say it.
            let request = whole(version, 0x0A, 0, &body.concat());
            let read = Request::read(&request).unwrap();
            assert_eq!(
                read.statements,
                [(Asked::Prepared(b"id"), vec![Value::Null])]
            );
        }
    }

    #[test]
    fn a_batch_has_statements_of_both_kinds() {
        for version in [3, 4, 5] {
            let body = [
                &[1, 0, 2, 0][..],
                &long("DELETE FROM t WHERE k = ?"),
                b"\0\x01\0\0\0\x02ab\x01\0\x02id\0\0\0\x01",
                &flag_bytes(version, 0),
            ];
            let request = whole(version, 0x0D, 0, &body.concat());
            let read = Request::read(&request).unwrap();
            assert_eq!(read.batch, Some(Batch::Unlogged));
            assert_eq!(read.statements.len(), 2);
            assert_eq!(read.statements[0].1, [Value::Bytes(b"ab".into())]);
            assert_eq!(read.statements[1].0, Asked::Prepared(b"id"));
            reads_only_whole(request);
        }
    }

    #[test]
    fn a_prepare_may_name_a_keyspace_and_a_payload_stands_in_front() {
        let body = [&long("SELECT 1")[..], b"\0\0\0\x01\0\x02ks"].concat();
        let request = whole(5, 0x09, 0, &body);
        assert_eq!(Request::read(&request).unwrap().keyspace, Some("ks"));
        reads_only_whole(request);
        let body = [&b"\0\x01\0\x01k\0\0\0\x01v"[..], &long("SELECT 1")].concat();
        let request = whole(4, 0x09, Flags::CUSTOM_PAYLOAD.0, &body);
        let read = Request::read(&request).unwrap();
        assert_eq!(read.statements, [(Asked::Text("SELECT 1"), vec![])]);
        assert_eq!(Request::read(&whole(4, 0x0B, 0, b"")), None);
    }
}
