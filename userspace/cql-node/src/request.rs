//! The bodies of requests (`native_protocol_v5.spec`, section 4.1).

use super::body::{Bound, Reader};
use super::failure::{Failure, Result};

pub(super) const STARTUP: u8 = 0x01;
pub(super) const OPTIONS: u8 = 0x05;
pub(super) const QUERY: u8 = 0x07;
pub(super) const PREPARE: u8 = 0x09;
pub(super) const EXECUTE: u8 = 0x0A;
pub(super) const REGISTER: u8 = 0x0B;
pub(super) const BATCH: u8 = 0x0D;
pub(super) const AUTH_RESPONSE: u8 = 0x0F;

const FLAG_VALUES: u32 = 0x01;
const FLAG_SKIP_METADATA: u32 = 0x02;
const FLAG_PAGE_SIZE: u32 = 0x04;
const FLAG_PAGING_STATE: u32 = 0x08;
const FLAG_SERIAL_CONSISTENCY: u32 = 0x10;
const FLAG_TIMESTAMP: u32 = 0x20;
const FLAG_NAMES: u32 = 0x40;
const FLAG_KEYSPACE: u32 = 0x80;
const FLAG_NOW: u32 = 0x100;

/// Values and options that come with a statement. Timestamps and "now" are read and dropped.
#[derive(Debug, Default)]
pub(super) struct Parameters<'a> {
    pub(super) consistency: u16,
    pub(super) values: Vec<Bound<'a>>,
    /// Empty, or a name for each value.
    pub(super) names: Vec<&'a str>,
    pub(super) skip_metadata: bool,
    pub(super) page_size: Option<usize>,
    pub(super) paging_state: Option<&'a [u8]>,
    pub(super) keyspace: Option<&'a str>,
}

impl<'a> Parameters<'a> {
    /// Reads `<consistency><flags>[…]`.
    pub(super) fn read(body: &mut Reader<'a>, version: u8) -> Result<Self> {
        let consistency = body.u16()?;
        let flags = flags(body, version)?;
        let mut parameters = Self {
            consistency,
            skip_metadata: flags & FLAG_SKIP_METADATA != 0,
            ..Self::default()
        };
        if flags & FLAG_VALUES != 0 {
            let n = body.u16()?;
            for _ in 0..n {
                if flags & FLAG_NAMES != 0 {
                    parameters.names.push(body.string()?);
                }
                parameters.values.push(value(body, version)?);
            }
        }
        if flags & FLAG_PAGE_SIZE != 0 {
            // Zero and less mean "no paging".
            parameters.page_size = usize::try_from(body.i32()?).ok().filter(|n| *n > 0);
        }
        if flags & FLAG_PAGING_STATE != 0 {
            parameters.paging_state = body.bytes()?;
        }
        if flags & FLAG_SERIAL_CONSISTENCY != 0 {
            body.u16()?;
        }
        if flags & FLAG_TIMESTAMP != 0 {
            body.i64()?;
        }
        if flags & FLAG_KEYSPACE != 0 && version >= 5 {
            parameters.keyspace = Some(body.string()?);
        }
        if flags & FLAG_NOW != 0 {
            body.i32()?;
        }
        Ok(parameters)
    }
}

fn flags(body: &mut Reader<'_>, version: u8) -> Result<u32> {
    if version >= 5 {
        body.i32().map(i32::cast_unsigned)
    } else {
        body.u8().map(u32::from)
    }
}

fn value<'a>(body: &mut Reader<'a>, version: u8) -> Result<Bound<'a>> {
    match body.value()? {
        Bound::Unset if version < 4 => Ok(Bound::Null),
        value => Ok(value),
    }
}

/// PREPARE: the statement, and in v5 its keyspace.
pub(super) fn read_prepare<'a>(
    body: &mut Reader<'a>,
    version: u8,
) -> Result<(&'a str, Option<&'a str>)> {
    const WITH_KEYSPACE: i32 = 0x01;
    let text = body.long_string()?;
    if version >= 5 && body.i32()? & WITH_KEYSPACE != 0 {
        return Ok((text, Some(body.string()?)));
    }
    Ok((text, None))
}

/// One statement of a BATCH.
#[derive(Debug)]
pub(super) struct BatchItem<'a> {
    pub(super) statement: BatchStatement<'a>,
    pub(super) values: Vec<Bound<'a>>,
}

#[derive(Debug)]
pub(super) enum BatchStatement<'a> {
    Text(&'a str),
    Prepared(&'a [u8]),
}

/// BATCH: its statements, and in v5 their keyspace.
pub(super) fn read_batch<'a>(
    body: &mut Reader<'a>,
    version: u8,
) -> Result<(Vec<BatchItem<'a>>, Option<&'a str>)> {
    body.u8()?;
    let n = body.u16()?;
    let mut items = Vec::new();
    for _ in 0..n {
        let statement = match body.u8()? {
            0 => BatchStatement::Text(body.long_string()?),
            1 => BatchStatement::Prepared(body.short_bytes()?),
            kind => {
                return Err(Failure::protocol(format!(
                    "invalid kind {kind} of a batch's statement"
                )));
            }
        };
        let n = body.u16()?;
        let values = (0..n)
            .map(|_| value(body, version))
            .collect::<Result<_>>()?;
        items.push(BatchItem { statement, values });
    }
    body.u16()?;
    let flags = flags(body, version)?;
    if flags & FLAG_NAMES != 0 {
        return Err(Failure::protocol(
            "named values in a batch are not possible (CASSANDRA-10246)",
        ));
    }
    if flags & FLAG_SERIAL_CONSISTENCY != 0 {
        body.u16()?;
    }
    if flags & FLAG_TIMESTAMP != 0 {
        body.i64()?;
    }
    let keyspace = if flags & FLAG_KEYSPACE != 0 && version >= 5 {
        Some(body.string()?)
    } else {
        None
    };
    Ok((items, keyspace))
}
