//! The values that are bound to a request, for a [`Sink`](crate::Sink) that wants them. Their types are the database's
//! to tell, so they are bytes.

use super::parameters::{Given, flags};
use crate::wire::cursor::Cursor;
use crate::wire::header::{Flags, Header, Opcode};

/// How many values of a request are kept at most.
pub const MAX_KEPT_VALUES: usize = 32;

/// How many bytes of each.
pub const MAX_KEPT_VALUE_BYTES: usize = 64;

/// A value that is bound to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoundValue {
    /// A value: the beginning of it, and its length in bytes.
    Bytes(Box<[u8]>, usize),
    /// NULL.
    Null,
    /// A value that is left as it is (`native_protocol_v5.spec` §3, `[value]`).
    Unset,
}

/// The values of a QUERY, EXECUTE or BATCH, as far as the beginning of its body has them; `None` where they cannot be read.
pub(super) fn values(header: &Header, prefix: &[u8]) -> Option<Box<[BoundValue]>> {
    if header.is_compressed() {
        return None;
    }
    let mut body = Cursor::new(prefix);
    if header.flags.any(Flags::CUSTOM_PAYLOAD) {
        body.skip_bytes_map()?;
    }
    let mut kept = Vec::new();
    match header.opcode? {
        Opcode::Query => body.skip_bytes()?,
        Opcode::Execute => {
            body.short_bytes()?;
            if header.metadata_id {
                body.short_bytes()?;
            }
        }
        Opcode::Batch => {
            let _type = body.byte()?;
            for _ in 0..body.short()? {
                match body.byte()? {
                    0 => body.skip_bytes()?,
                    _ => body.short_bytes().map(drop)?,
                }
                if keep(&mut kept, &mut body, false).is_none() {
                    break;
                }
            }
            return Some(kept.into());
        }
        _ => return None,
    }
    let _consistency = body.short()?;
    let given = Given(flags(header, &mut body)?);
    if given.has(Given::VALUES) {
        // What was read before it ran out holds.
        _ = keep(&mut kept, &mut body, given.has(Given::NAMES));
    }
    Some(kept.into())
}

/// Keeps the values of one statement. `None`: no more can be read, or kept.
fn keep(kept: &mut Vec<BoundValue>, body: &mut Cursor<'_>, have_names: bool) -> Option<()> {
    for _ in 0..body.short()? {
        if kept.len() >= MAX_KEPT_VALUES {
            return None;
        }
        if have_names {
            body.short_bytes()?;
        }
        kept.push(match body.int()? {
            -1 => BoundValue::Null,
            length if length < 0 => BoundValue::Unset,
            length => {
                let length = usize::try_from(length).ok()?;
                let bytes = body.take(length)?;
                let first = bytes.get(..MAX_KEPT_VALUE_BYTES).unwrap_or(bytes);
                BoundValue::Bytes(first.into(), length)
            }
        });
    }
    Some(())
}
