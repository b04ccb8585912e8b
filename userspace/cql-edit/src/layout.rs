//! [`Layout`]: offsets of the parts of a request's body (`native_protocol_v5.spec` §4.1.4 to §4.1.7, and
//! the same sections of v3 and v4).

use std::ops::{ControlFlow, Range};

use cql::Opcode;
use cql::wire::Cursor;
use cql::wire::{Flags, Header};

/// A statement of a request, by text or by the id that a PREPARE gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Text(Range<usize>),
    Id(Range<usize>),
}

/// Offsets of a request's parameters. An absent parameter has the offset at which it would be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) consistency: usize,
    /// The offset of the flags, which are `flag_bytes` bytes, big endian.
    pub(crate) flags: usize,
    pub(crate) flag_bytes: usize,
    pub(crate) values: u32,
    pub(crate) page_size: Option<usize>,
    pub(crate) page_size_at: usize,
    pub(crate) serial: Option<usize>,
    pub(crate) serial_at: usize,
    /// The client's own time of the write, of eight bytes.
    pub(crate) timestamp: Option<usize>,
    /// The offset and the length of a keyspace that is given with the request.
    pub(crate) keyspace: Option<(usize, usize)>,
}

/// Bits of the parameters' flags.
pub(crate) const VALUES: u32 = 0x01;
pub(crate) const SKIP_METADATA: u32 = 0x02;
pub(crate) const PAGE_SIZE: u32 = 0x04;
pub(crate) const PAGING_STATE: u32 = 0x08;
pub(crate) const SERIAL: u32 = 0x10;
pub(crate) const TIMESTAMP: u32 = 0x20;
pub(crate) const NAMES: u32 = 0x40;
/// Since v5.
const KEYSPACE: u32 = 0x80;
/// The flag of `now_in_seconds` (v5).
pub(crate) const NOW_IN_SECONDS: u32 = 0x100;
/// The flag of a keyspace, in a PREPARE.
const PREPARE_KEYSPACE: u32 = 0x01;

/// A QUERY, PREPARE, EXECUTE or BATCH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The position behind the custom payload.
    pub(crate) proper: usize,
    pub(crate) first: Option<Asked>,
    /// A batch's further ones.
    pub(crate) others: Vec<Asked>,
    /// Not of a PREPARE.
    pub(crate) parameters: Option<Parameters>,
    /// The offset and the length of a keyspace in a PREPARE.
    pub(crate) keyspace: Option<(usize, usize)>,
}

/// A value that is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) name: Option<Range<usize>>,
    /// With its length.
    pub(crate) at: Range<usize>,
    /// The length as it is announced: negative if the value is null, or not set.
    pub(crate) length: i32,
}

/// Reads, and knows where it is.
struct Reader<'a> {
    whole: usize,
    body: Cursor<'a>,
}

impl<'a> Reader<'a> {
    fn at(&self) -> usize {
        self.whole - self.body.rest().len()
    }

    fn taken(&mut self, len: usize) -> Option<Range<usize>> {
        let start = self.at();
        self.body.take(len)?;
        Some(start..start + len)
    }

    fn text(&mut self) -> Option<Asked> {
        let len = self.body.long_string_len()?;
        self.taken(len).map(Asked::Text)
    }

    fn id(&mut self) -> Option<Asked> {
        let len = self.body.short()?;
        self.taken(len.into()).map(Asked::Id)
    }

    /// None, too, if it is no text: nobody is to believe that there is none.
    fn name(&mut self) -> Option<(usize, usize)> {
        let len = usize::from(self.body.short()?);
        let at = self.at();
        std::str::from_utf8(self.body.take(len)?).ok()?;
        Some((at, len))
    }

    /// `[<keyspace>]…` of the flags' parameters. Before v5 none is defined: Cassandra obeys one, ScyllaDB does not.
    fn keyspace(&mut self, version: u8, flags: u32) -> Option<Option<(usize, usize)>> {
        match (flags & KEYSPACE != 0, version) {
            (true, 5..) => self.name().map(Some),
            (true, _) => None,
            (false, _) => Some(None),
        }
    }

    fn values(&mut self, named: bool) -> Option<u32> {
        let count = self.body.short()?;
        for _ in 0..count {
            if named {
                self.body.short_bytes()?;
            }
            self.body.skip_bytes()?;
        }
        Some(count.into())
    }

    /// Reads the values that [`Self::values`] steps over, into `values`.
    fn each_value(&mut self, named: bool, values: &mut Vec<Value>) -> Option<()> {
        values.clear();
        for _ in 0..self.body.short()? {
            let name = match named {
                true => {
                    let len = self.body.short()?;
                    Some(self.taken(len.into())?)
                }
                false => None,
            };
            let from = self.at();
            let length = self.body.int()?;
            if let Ok(bytes) = usize::try_from(length) {
                self.taken(bytes)?;
            }
            let at = from..self.at();
            values.push(Value { name, at, length });
        }
        Some(())
    }

    fn flags(&mut self, version: u8) -> Option<(u32, usize)> {
        match version {
            5.. => Some((u32::from_be_bytes(self.body.int()?.to_be_bytes()), 4)),
            _ => Some((self.body.byte()?.into(), 1)),
        }
    }

    /// `<consistency><flags>[<n><values>][<page size>][<paging state>][<serial>]…`; of a batch, whose
    /// values have passed, without all that stands before `<serial>`.
    fn parameters(&mut self, version: u8, of_batch: Option<u32>) -> Option<Parameters> {
        let consistency = self.at();
        self.body.short()?;
        let flags_at = self.at();
        let (mut flags, flag_bytes) = self.flags(version)?;
        if of_batch.is_some() {
            // Cassandra reads them there as in a QUERY, which the protocol does not say.
            if flags & (VALUES | PAGE_SIZE | PAGING_STATE) != 0 {
                return None;
            }
            flags &= SERIAL | TIMESTAMP | KEYSPACE;
        }
        let values = match (of_batch, flags & VALUES) {
            (Some(values), _) => values,
            (None, 0) => 0,
            (None, _) => self.values(flags & NAMES != 0)?,
        };
        let page_size_at = self.at();
        let page_size = match flags & PAGE_SIZE {
            0 => None,
            _ => Some(self.taken(4)?.start),
        };
        if flags & PAGING_STATE != 0 {
            self.body.skip_bytes()?;
        }
        let serial_at = self.at();
        let serial = match flags & SERIAL {
            0 => None,
            _ => Some(self.taken(2)?.start),
        };
        let timestamp = match flags & TIMESTAMP {
            0 => None,
            _ => Some(self.taken(8)?.start),
        };
        Some(Parameters {
            consistency,
            flags: flags_at,
            flag_bytes,
            values,
            page_size,
            page_size_at,
            serial,
            serial_at,
            timestamp,
            keyspace: self.keyspace(version, flags)?,
        })
    }
}

impl Layout {
    /// Finds the parts of a request's body. None: the body is not what its header says.
    pub(crate) fn of(header: &Header, body: &[u8]) -> Option<Self> {
        let mut reader = Reader {
            whole: body.len(),
            body: Cursor::new(body),
        };
        if header.flags.any(Flags::CUSTOM_PAYLOAD) {
            reader.body.skip_bytes_map()?;
        }
        let mut layout = Self {
            proper: reader.at(),
            first: None,
            others: Vec::new(),
            parameters: None,
            keyspace: None,
        };
        match header.opcode? {
            Opcode::Query => {
                layout.first = Some(reader.text()?);
                layout.parameters = Some(reader.parameters(header.version, None)?);
            }
            Opcode::Prepare => {
                layout.first = Some(reader.text()?);
                if header.version >= 5 {
                    let (flags, _) = reader.flags(header.version)?;
                    if flags & PREPARE_KEYSPACE != 0 {
                        layout.keyspace = Some(reader.name()?);
                    }
                }
            }
            Opcode::Execute => {
                layout.first = Some(reader.id()?);
                if header.metadata_id {
                    reader.id()?; // Of the result's metadata.
                }
                layout.parameters = Some(reader.parameters(header.version, None)?);
            }
            Opcode::Batch => {
                reader.body.byte()?;
                let mut values = 0;
                for _ in 0..reader.body.short()? {
                    let asked = match reader.body.byte()? {
                        0 => reader.text()?,
                        _ => reader.id()?,
                    };
                    values = u32::saturating_add(values, reader.values(false)?);
                    match layout.first {
                        None => layout.first = Some(asked),
                        Some(_) => layout.others.push(asked),
                    }
                }
                layout.parameters = Some(reader.parameters(header.version, Some(values))?);
            }
            _ => {}
        }
        Some(layout)
    }

    /// Shows where the values are, of each statement of a QUERY, EXECUTE or BATCH, until `each` says that it
    /// is enough. `None`: the body is not what its header says, or that of another.
    pub(crate) fn each_values(
        header: &Header,
        body: &[u8],
        mut each: impl FnMut(&[Value]) -> ControlFlow<()>,
    ) -> Option<()> {
        let mut reader = Reader {
            whole: body.len(),
            body: Cursor::new(body),
        };
        if header.flags.any(Flags::CUSTOM_PAYLOAD) {
            reader.body.skip_bytes_map()?;
        }
        // One for all statements: there may be very many, with very many values.
        let mut values = Vec::new();
        match header.opcode? {
            opcode @ (Opcode::Query | Opcode::Execute) => {
                if opcode == Opcode::Query {
                    reader.text()?;
                } else {
                    reader.id()?;
                    if header.metadata_id {
                        reader.id()?;
                    }
                }
                reader.body.short()?;
                let (flags, _) = reader.flags(header.version)?;
                if flags & VALUES != 0 {
                    reader.each_value(flags & NAMES != 0, &mut values)?;
                }
                let _ = each(&values);
            }
            Opcode::Batch => {
                reader.body.byte()?;
                for _ in 0..reader.body.short()? {
                    match reader.body.byte()? {
                        0 => reader.text()?,
                        _ => reader.id()?,
                    };
                    reader.each_value(false, &mut values)?;
                    if each(&values).is_break() {
                        break;
                    }
                }
            }
            _ => return None,
        }
        Some(())
    }

    pub(crate) fn asked(&self) -> impl Iterator<Item = &Asked> {
        self.first.iter().chain(&self.others)
    }
}
