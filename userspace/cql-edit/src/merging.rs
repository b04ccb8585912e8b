//! EXECUTEs that go on as one UNLOGGED BATCH (`native_protocol_v5.spec` §4.1.7), and its answer, which is that of
//! each.
//!
//! The batch is out on the stream of the one that leads it. Its answer passes the steps behind the one that has
//! merged them as the leader's alone; from there on each has its own.

use std::collections::HashMap;

use crate::awaited::Awaits;
use crate::layout::{Layout, PAGE_SIZE, SERIAL, SKIP_METADATA, TIMESTAMP, VALUES};
use cql::wire::{Cursor, Flags, HEADER_BYTES, Header, RESPONSE_BIT};
use cql::{Consistency, MAX_PREPARED_ID_BYTES, Opcode, StreamId};

/// Why a request cannot be one of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotMerged {
    /// The request has a time of its own beside the statement, and a batch has one for all.
    Timestamp,
    /// The request has other parameters that cannot be given for one statement of a batch, or is no
    /// EXECUTE.
    Parameters,
}

/// By the stream of the one that leads. Bounded as [`Awaited`](crate::awaited::Awaited) is: each has a stream.
pub(crate) type Riders = HashMap<StreamId, Riding>;

/// The requests of a batch that is out.
#[derive(Debug)]
pub(crate) struct Riding {
    pub(crate) leads: Vec<u8>,
    pub(crate) others: Vec<Rider>,
}

/// A request of a batch that does not lead it.
#[derive(Debug)]
pub(crate) struct Rider {
    pub(crate) header: Header,
    pub(crate) id: Vec<u8>,
    pub(crate) consistency: Consistency,
    pub(crate) awaited: Vec<Awaits>,
}

/// The parts of an EXECUTE that a batch takes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mergeable<'b> {
    pub(crate) id: &'b [u8],
    /// With their number; empty: none, not even that.
    values: &'b [u8],
    pub(crate) consistency: Consistency,
}

/// UNPREPARED, and nothing of the batch was done.
pub(crate) const UNPREPARED: i32 = 0x2500;

pub(crate) const BATCH: u8 = 0x0D;

/// A longer answer is not told to others: a write's is four bytes, or an error's message and warnings, and a database
/// that says 32 MiB is not to have hundreds of copies made of them.
pub(crate) const MAX_SHARED_BYTES: usize = 16 << 10;

impl<'b> Mergeable<'b> {
    /// Reads a request's body, without compression.
    pub(crate) fn of(header: &Header, body: &'b [u8]) -> Result<Self, NotMerged> {
        let other_flags = header.flags.0 & !Flags::COMPRESSION.0;
        if header.opcode != Some(Opcode::Execute) || other_flags != 0 {
            return Err(NotMerged::Parameters);
        }
        let flags = flags(header, body).ok_or(NotMerged::Parameters)?;
        // A page's size, and without IF a serial consistency, mean nothing to a write; drivers send them with everything.
        match flags & !(VALUES | SKIP_METADATA | PAGE_SIZE | SERIAL) {
            0 => Self::read(header, body).ok_or(NotMerged::Parameters),
            TIMESTAMP => Err(NotMerged::Timestamp),
            _ => Err(NotMerged::Parameters),
        }
    }

    fn read(header: &Header, body: &'b [u8]) -> Option<Self> {
        let mut at = Cursor::new(body);
        // It is kept until the answer is there, for UNPREPARED.
        let id = at
            .short_bytes()
            .filter(|id| id.len() <= MAX_PREPARED_ID_BYTES)?;
        if header.metadata_id {
            at.short_bytes()?; // Of the result's metadata.
        }
        let consistency = Consistency(at.short()?);
        let flags = flags(header, body)?;
        at.take(if header.version >= 5 { 4 } else { 1 })?;
        let from = at.rest();
        if flags & VALUES != 0 {
            for _ in 0..at.short()? {
                at.skip_bytes()?;
            }
        }
        let values = from.get(..from.len() - at.rest().len())?;
        Some(Self {
            id,
            values,
            consistency,
        })
    }
}

/// The flags of an EXECUTE's parameters.
fn flags(header: &Header, body: &[u8]) -> Option<u32> {
    let at = Layout::of(header, body)?.parameters?;
    let flags = body.get(at.flags..at.flags + at.flag_bytes)?;
    Some(flags.iter().fold(0, |n, byte| n << 8 | u32::from(*byte)))
}

/// The body of a BATCH of these.
pub(crate) fn batch(version: u8, those: &[Mergeable<'_>]) -> Option<Vec<u8>> {
    const UNLOGGED: u8 = 1;
    const PREPARED: u8 = 1;
    let mut body = vec![UNLOGGED];
    body.extend(u16::try_from(those.len()).ok()?.to_be_bytes());
    for one in those {
        body.push(PREPARED);
        body.extend(u16::try_from(one.id.len()).ok()?.to_be_bytes());
        body.extend_from_slice(one.id);
        match one.values {
            [] => body.extend([0, 0]),
            values => body.extend_from_slice(values),
        }
    }
    body.extend(those.first()?.consistency.0.to_be_bytes());
    let no_flags: &[u8] = if version >= 5 { &[0; 4] } else { &[0] };
    body.extend(no_flags);
    Some(body)
}

/// A response's, without compression.
pub(crate) fn frame(header: &Header, raw: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER_BYTES + body.len());
    frame.extend([header.version | RESPONSE_BIT, header.flags.0]);
    frame.extend(header.stream.0.to_be_bytes());
    frame.push(raw);
    frame.extend((body.len() as u32).to_be_bytes());
    frame.extend_from_slice(body);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::NAMES;

    fn header(version: u8, flags: u8) -> Header {
        Header {
            version,
            flags: Flags(flags),
            stream: StreamId(1),
            opcode: Some(Opcode::Execute),
            length: 0,
            metadata_id: version >= 5,
        }
    }

    fn execute(version: u8, flags: u32, behind: &[u8]) -> Vec<u8> {
        let metadata: &[u8] = if version >= 5 { b"\0\x01m" } else { b"" };
        let bits = flags.to_be_bytes();
        let bits = if version >= 5 { &bits[..] } else { &bits[3..] };
        [b"\0\x02id", metadata, &[0, 6], bits, behind].concat()
    }

    const VALUE: &[u8] = &[0, 1, 0, 0, 0, 1, b'v'];

    #[test]
    fn what_a_batch_cannot_say_is_not_merged() {
        for version in [3, 4, 5] {
            let plain = header(version, 0);
            let with_page = [VALUE, &[0, 0, 0, 9]].concat();
            for (flags, behind) in [(0, &b""[..]), (1, VALUE), (1 | 2 | 4, &with_page[..])] {
                let body = execute(version, flags, behind);
                assert!(Mergeable::of(&plain, &body).is_ok(), "{version} {flags}");
                for end in 0..body.len() {
                    assert!(Mergeable::of(&plain, &body[..end]).is_err());
                }
            }
            let long = [0; MAX_PREPARED_ID_BYTES + 1];
            let long = [&(long.len() as u16).to_be_bytes()[..], &long].concat();
            let long = [&long[..], &execute(version, 1, VALUE)[4..]].concat();
            let found = Mergeable::of(&plain, &long);
            assert_eq!(found, Err(NotMerged::Parameters));
            let timed = execute(version, 0x21, &[VALUE, &[7; 8]].concat());
            let found = Mergeable::of(&plain, &timed);
            assert_eq!(found, Err(NotMerged::Timestamp));
            let serial = execute(version, 0x11, &[VALUE, &[0, 8]].concat());
            assert!(Mergeable::of(&plain, &serial).is_ok());
            let named = [&[0, 1, 0, 1, b'n'][..], &VALUE[2..]].concat();
            let named = execute(version, 1 | NAMES, &named);
            let found = Mergeable::of(&plain, &named);
            assert_eq!(found, Err(NotMerged::Parameters));
            let body = execute(version, 1, VALUE);
            let found = Mergeable::of(&header(version, Flags::TRACING.0), &body);
            assert_eq!(found, Err(NotMerged::Parameters));
        }
    }
}
