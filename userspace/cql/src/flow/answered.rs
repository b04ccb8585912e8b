//! [`Answered`]: what a response carries beside its kind.

use crate::wire::cursor::Cursor;
use crate::wire::header::{Flags, Header, Opcode};

/// How deep the type of a column may be nested in a result. Cassandra has no limit; people use
/// three.
const MAX_TYPE_DEPTH: u32 = 32;

/// Details of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// Bytes of its body, as sent.
    pub body_bytes: u32,
    /// The id of the database's trace, which holds for the request's session there.
    pub tracing_id: Option<[u8; 16]>,
    /// How many warnings; `None` if they could not be read.
    pub warnings: Option<u16>,
    /// Rows of a RESULT that holds some, or none of them; `None` of others, and of one that could
    /// not be read.
    pub rows: Option<u32>,
    /// There are more pages behind these rows.
    pub more_pages: bool,
    /// READY, AUTHENTICATE or AUTH_SUCCESS: what a client says of itself holds.
    pub accepts: bool,
}

/// §4.2: what stands in front (tracing id, warnings, custom payload), and the rows.
pub(super) fn answered(header: &Header, prefix: &[u8], answered: &mut Answered) -> Option<()> {
    let mut body = Cursor::new(prefix);
    if header.flags.any(Flags::TRACING) {
        answered.tracing_id = Some(body.take(16)?.try_into().ok()?);
    }
    if header.flags.any(Flags::WARNING) {
        let warnings = body.short()?;
        answered.warnings = Some(warnings);
        for _ in 0..warnings {
            body.short_bytes()?;
        }
    }
    if header.flags.any(Flags::CUSTOM_PAYLOAD) {
        body.skip_bytes_map()?;
    }
    if header.opcode == Some(Opcode::Result) {
        rows(&mut body, answered)?;
    }
    Some(())
}

/// §4.2.5.2: the description of the columns, and how many rows there are.
fn rows(body: &mut Cursor<'_>, answered: &mut Answered) -> Option<()> {
    const ROWS: i32 = 2;
    const GLOBAL_TABLE: i32 = 0x01;
    const MORE_PAGES: i32 = 0x02;
    const NO_METADATA: i32 = 0x04;
    const METADATA_CHANGED: i32 = 0x08;
    if body.int()? != ROWS {
        return Some(());
    }
    let flags = body.int()?;
    let columns = u32::try_from(body.int()?).ok()?;
    answered.more_pages = flags & MORE_PAGES != 0;
    if answered.more_pages {
        body.skip_bytes()?;
    }
    if flags & METADATA_CHANGED != 0 {
        body.short_bytes()?;
    }
    if flags & NO_METADATA == 0 {
        let global = flags & GLOBAL_TABLE != 0;
        if global {
            body.short_bytes()?;
            body.short_bytes()?;
        }
        for _ in 0..columns {
            if !global {
                body.short_bytes()?;
                body.short_bytes()?;
            }
            body.short_bytes()?;
            skip_type(body, MAX_TYPE_DEPTH)?;
        }
    }
    answered.rows = Some(u32::try_from(body.int()?).ok()?);
    Some(())
}

/// Steps over an `[option]` that names a type.
fn skip_type(body: &mut Cursor<'_>, depth: u32) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    match body.short()? {
        0x0000 => body.short_bytes().map(drop)?,    // a class
        0x0020 | 0x0022 => skip_type(body, depth)?, // list, set
        0x0021 => {
            skip_type(body, depth)?;
            skip_type(body, depth)?;
        }
        0x0030 => {
            body.short_bytes()?;
            body.short_bytes()?;
            for _ in 0..body.short()? {
                body.short_bytes()?;
                skip_type(body, depth)?;
            }
        }
        0x0031 => {
            for _ in 0..body.short()? {
                skip_type(body, depth)?;
            }
        }
        _ => {}
    }
    Some(())
}
