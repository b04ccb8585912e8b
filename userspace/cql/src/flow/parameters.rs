//! [`Parameters`]: what a request asks for beside its statement, behind the text or the id.

use crate::fact::Fact;
use crate::wire::cursor::Cursor;
use crate::wire::header::{Flags, Header, Opcode};
use std::fmt;

/// A consistency level (`native_protocol_v5.spec` §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Consistency(
    /// The number as sent.
    pub u16,
);

impl Consistency {
    /// By its name in CQL, such as `LOCAL_QUORUM`, in capital letters or not.
    pub fn by_name(name: &str) -> Option<Self> {
        let known = (0x0000..=0x000A).map(Self);
        known
            .into_iter()
            .find(|level| level.as_str().eq_ignore_ascii_case(name))
    }

    /// SERIAL or LOCAL_SERIAL.
    pub const fn is_serial(self) -> bool {
        matches!(self.0, 0x0008 | 0x0009)
    }

    /// The name as a metric label, in snake case: one of a fixed set, `other` for what is unlisted.
    pub const fn as_str(self) -> &'static str {
        match self.0 {
            0x0000 => "any",
            0x0001 => "one",
            0x0002 => "two",
            0x0003 => "three",
            0x0004 => "quorum",
            0x0005 => "all",
            0x0006 => "local_quorum",
            0x0007 => "each_quorum",
            0x0008 => "serial",
            0x0009 => "local_serial",
            0x000A => "local_one",
            _ => "other",
        }
    }
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The parameters of a QUERY, EXECUTE or BATCH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The level asked for.
    pub consistency: Consistency,
    /// Serial consistency of a light-weight transaction; [`Fact::Open`] if it lies beyond what is read.
    pub serial_consistency: Fact<Consistency>,
    /// How many statements: 1 except of a BATCH.
    pub statements: u16,
    /// How many values are bound, to all of them.
    pub values: u32,
    /// Rows to a page; [`Fact::Open`] likewise.
    pub page_size: Fact<i32>,
    /// The request asks for a later page.
    pub paging_state: bool,
}

/// The parameters of a request; `None` if there are none, or none that can be read.
pub(super) fn parameters(header: &Header, prefix: &[u8]) -> Option<Parameters> {
    if header.is_compressed() {
        return None;
    }
    let mut body = Cursor::new(prefix);
    if header.flags.any(Flags::CUSTOM_PAYLOAD) {
        body.skip_bytes_map()?;
    }
    match header.opcode? {
        Opcode::Query => body.skip_bytes()?,
        Opcode::Execute => {
            body.short_bytes()?;
            if header.metadata_id {
                body.short_bytes()?; // the id of the result's metadata
            }
        }
        Opcode::Batch => return batch(header, body),
        _ => return None,
    }
    one(header, body)
}

/// §4.1.4: behind the text or the id.
fn one(header: &Header, mut body: Cursor<'_>) -> Option<Parameters> {
    let consistency = Consistency(body.short()?);
    let given = Given(flags(header, &mut body)?);
    let values = match given.has(Given::VALUES) {
        true => body.short()?,
        false => 0,
    };
    let mut parameters = Parameters {
        consistency,
        serial_consistency: given.unread(Given::SERIAL),
        statements: 1,
        values: values.into(),
        page_size: given.unread(Given::PAGE_SIZE),
        paging_state: given.has(Given::PAGING_STATE),
    };
    _ = behind_values(body, given, values, &mut parameters);
    Some(parameters)
}

/// Reads the parameters that stand behind the values; `None` where the prefix ends.
fn behind_values(
    mut body: Cursor<'_>,
    given: Given,
    values: u16,
    parameters: &mut Parameters,
) -> Option<()> {
    skip_values(&mut body, given, values)?;
    if given.has(Given::PAGE_SIZE) {
        parameters.page_size = Fact::Is(body.int()?);
    }
    if given.has(Given::PAGING_STATE) {
        body.skip_bytes()?;
    }
    if given.has(Given::SERIAL) {
        parameters.serial_consistency = Fact::Is(Consistency(body.short()?));
    }
    Some(())
}

/// §4.1.7: the type, the children with their values, and what is given for all of them.
fn batch(header: &Header, mut body: Cursor<'_>) -> Option<Parameters> {
    let _type = body.byte()?;
    let statements = body.short()?;
    let mut values = 0_u32;
    for _ in 0..statements {
        match body.byte()? {
            0 => body.skip_bytes()?,
            1 => body.short_bytes().map(drop)?,
            _ => return None,
        }
        let bound = body.short()?;
        values = values.saturating_add(bound.into());
        for _ in 0..bound {
            body.skip_bytes()?;
        }
    }
    let consistency = Consistency(body.short()?);
    let given = Given(flags(header, &mut body)?);
    let serial_consistency = match given.has(Given::SERIAL) {
        true => Fact::Is(Consistency(body.short()?)),
        false => Fact::Absent,
    };
    Some(Parameters {
        consistency,
        serial_consistency,
        statements,
        values,
        page_size: Fact::Absent,
        paging_state: false,
    })
}

/// Reads the flags: one byte, and since v5 four.
pub(super) fn flags(header: &Header, body: &mut Cursor<'_>) -> Option<u32> {
    match header.version {
        5.. => body.int().map(i32::cast_unsigned),
        _ => body.byte().map(u32::from),
    }
}

/// The flags, which say which parameters are there.
#[derive(Clone, Copy)]
pub(super) struct Given(pub(super) u32);

impl Given {
    pub(super) const VALUES: u32 = 0x01;
    const PAGE_SIZE: u32 = 0x04;
    const PAGING_STATE: u32 = 0x08;
    const SERIAL: u32 = 0x10;
    const TIMESTAMP: u32 = 0x20;
    pub(super) const NAMES: u32 = 0x40;
    const KEYSPACE: u32 = 0x80;
    /// The flags that a BATCH has not (§4.1.7): Cassandra reads them there as in a QUERY.
    const NOT_OF_BATCH: u32 = Self::VALUES | Self::PAGE_SIZE | Self::PAGING_STATE;

    pub(super) fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    /// A parameter that is there and not read yet, or that is not there.
    fn unread<T>(self, flag: u32) -> Fact<T> {
        match self.has(flag) {
            true => Fact::Open,
            false => Fact::Absent,
        }
    }
}

/// The keyspace in the parameters of a QUERY (§4.1.4). `Some(None)`: there is none. `None`: nobody can say. Before v5 no
/// keyspace is defined there: Cassandra obeys one, ScyllaDB does not.
pub(crate) fn query_keyspace<'b>(header: &Header, mut body: Cursor<'b>) -> Option<Option<&'b str>> {
    let _consistency = body.short()?;
    let given = Given(flags(header, &mut body)?);
    if !given.has(Given::KEYSPACE) {
        return Some(None);
    }
    if header.version < 5 {
        return None;
    }
    if given.has(Given::VALUES) {
        let values = body.short()?;
        skip_values(&mut body, given, values)?;
    }
    if given.has(Given::PAGE_SIZE) {
        body.int()?;
    }
    if given.has(Given::PAGING_STATE) {
        body.skip_bytes()?;
    }
    keyspace_behind_times(body, given)
}

/// The keyspace in a PREPARE (§4.1.5), which has no parameters before v5.
pub(crate) fn prepare_keyspace<'b>(
    header: &Header,
    mut parameters: Cursor<'b>,
) -> Option<Option<&'b str>> {
    if header.version < 5 {
        return Some(None);
    }
    match parameters.int()? & 0x01 {
        0 => Some(None),
        _ => parameters.string().map(Some),
    }
}

/// The keyspace in the parameters of a BATCH (§4.1.7), from behind the text of a child that
/// `left` others follow; as [`query_keyspace`] gives it.
pub(crate) fn batch_keyspace<'b>(
    header: &Header,
    mut body: Cursor<'b>,
    left: u16,
) -> Option<Option<&'b str>> {
    body.skip_values()?;
    for _ in 0..left {
        match body.byte()? {
            0 => body.skip_bytes()?,
            _ => body.short_bytes().map(drop)?,
        }
        body.skip_values()?;
    }
    let _consistency = body.short()?;
    let given = Given(flags(header, &mut body)?);
    if !given.has(Given::KEYSPACE) {
        return Some(None);
    }
    match header.version >= 5 && !given.has(Given::NOT_OF_BATCH) {
        true => keyspace_behind_times(body, given),
        false => None,
    }
}

/// The keyspace behind the parameters that QUERY and BATCH have in common: serial consistency and default
/// timestamp.
fn keyspace_behind_times(mut body: Cursor<'_>, given: Given) -> Option<Option<&str>> {
    if given.has(Given::SERIAL) {
        body.short()?;
    }
    if given.has(Given::TIMESTAMP) {
        body.take(8)?;
    }
    body.string().map(Some)
}

/// Steps over values, and over their names where they have some.
fn skip_values(body: &mut Cursor<'_>, given: Given, values: u16) -> Option<()> {
    for _ in 0..values {
        if given.has(Given::NAMES) {
            body.short_bytes()?;
        }
        body.skip_bytes()?;
    }
    Some(())
}
