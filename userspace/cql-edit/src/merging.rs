//! EXECUTEs that go on as one UNLOGGED BATCH (`native_protocol_v5.spec` §4.1.7), and its answer, which is that of
//! each.
//!
//! The batch is out on the stream of the one that leads it. Its answer passes the steps behind the one that has
//! merged them as the leader's alone; from there on each has its own.

use std::collections::HashMap;

use crate::asking::Asking;
use crate::cutter::Fate;
use crate::layout::{Layout, PAGE_SIZE, SERIAL, SKIP_METADATA, TIMESTAMP, VALUES};
use crate::parking::{Kept, Parked};
use crate::response::Response;
use crate::talk::{Awaits, ERROR, Talk};
use crate::transform::{Error, Log};
use cql::Consistency;
use cql::MAX_PREPARED_ID_BYTES;
use cql::wire::Cursor;
use cql::wire::{Flags, HEADER_BYTES, Header, RESPONSE_BIT};
use cql::{Opcode, StreamId};

/// Why a request cannot be one of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotMerged {
    /// It has a time of its own beside the statement, and a batch has one for all.
    Timestamp,
    /// It says something else that cannot be said of one statement of a batch, or is no EXECUTE.
    Parameters,
}

/// In place of a step's: those that ride with a request are told what it is told.
pub(crate) const RIDERS: usize = usize::MAX - 1;

/// Whether it is a batch of which these await the response, which others ride with.
pub(crate) fn leads(awaited: &[Awaits]) -> bool {
    awaited.iter().any(|(place, ..)| *place == RIDERS)
}

/// By the stream of the one that leads. Bounded as [`Awaited`](super::talk::Awaited) is: each has a stream.
pub(crate) type Riders = HashMap<StreamId, Riding>;

/// Those of a batch that is out.
#[derive(Debug)]
pub(crate) struct Riding {
    leads: Vec<u8>,
    others: Vec<Rider>,
}

/// One that does not lead.
#[derive(Debug)]
struct Rider {
    header: Header,
    id: Vec<u8>,
    consistency: Consistency,
    awaited: Vec<Awaits>,
}

/// What a batch takes of an EXECUTE.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mergeable<'b> {
    id: &'b [u8],
    /// With their number; empty: none, not even that.
    values: &'b [u8],
    pub(crate) consistency: Consistency,
}

/// UNPREPARED, and nothing of the batch was done.
const UNPREPARED: i32 = 0x2500;

const BATCH: u8 = 0x0D;

/// A longer answer is not told to others: a write's is four bytes, or an error's message and warnings, and a database
/// that says 32 MiB is not to have hundreds of copies made of them.
const MAX_SHARED_BYTES: usize = 16 << 10;

impl<'b> Mergeable<'b> {
    /// Of a body without compression.
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
        if header.version >= 5 {
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

/// Of its parameters.
fn flags(header: &Header, body: &[u8]) -> Option<u32> {
    let at = Layout::of(header, body)?.parameters?;
    let flags = body.get(at.flags..at.flags + at.flag_bytes)?;
    Some(flags.iter().fold(0, |n, byte| n << 8 | u32::from(*byte)))
}

/// The body of a BATCH of these.
fn batch(version: u8, those: &[Mergeable<'_>]) -> Option<Vec<u8>> {
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

impl Asking<'_> {
    /// The one that leads goes on as a batch with these; what cannot be one of it goes on by itself.
    pub(crate) fn go_together(&mut self, leads: Parked, others: &[u64]) {
        let others = others.iter().filter_map(|n| self.talk.parking.take(*n));
        // Its stream leads one already: its client does not wait for answers before it says the same again.
        let leads_others = self.talk.riders.contains_key(&leads.header.stream);
        let those: Vec<Parked> = std::iter::once(leads).chain(others).collect();
        let merged = match those.len() {
            0 | 1 => None,
            _ if leads_others => None,
            _ => self.merged(&those),
        };
        let Some((body, mut riders)) = merged else {
            for one in those {
                self.goes_on(&one.header, one.kept, one.place, one.awaited);
            }
            return;
        };
        let mut those = those.into_iter();
        let Some(leads) = those.next() else { return };
        for (rider, one) in riders.others.iter_mut().zip(those) {
            rider.awaited = one.awaited;
        }
        let Parked {
            header,
            kept,
            place,
            mut awaited,
            ..
        } = leads;
        let header = Header {
            opcode: Some(Opcode::Batch),
            ..header
        };
        let mut frame = kept
            .bytes()
            .get(..HEADER_BYTES)
            .unwrap_or_default()
            .to_vec();
        if let Some(opcode) = frame.get_mut(4) {
            *opcode = BATCH;
        }
        frame.extend(body);
        awaited.push((RIDERS, 0, None));
        self.talk.riders.insert(header.stream, riders);
        self.goes_on(&header, Kept::Changed(frame), place, awaited);
    }

    fn merged(&self, those: &[Parked]) -> Option<(Vec<u8>, Riding)> {
        let terms = &self.talk.terms;
        let bodies = those.iter().map(|one| {
            let body = one.kept.bytes().get(HEADER_BYTES..)?;
            match one.kept {
                Kept::Sent(_) => terms.plain(&one.header, body),
                Kept::Changed(_) => Some(body.into()),
            }
        });
        let bodies = bodies.collect::<Option<Vec<_>>>()?;
        let parts = those.iter().zip(&bodies);
        let parts = parts.map(|(one, body)| Mergeable::of(&one.header, body).ok());
        let parts = parts.collect::<Option<Vec<_>>>()?;
        let first = parts.first()?;
        if parts
            .iter()
            .any(|part| part.consistency != first.consistency)
        {
            return None;
        }
        let body = batch(those.first()?.header.version, &parts)?;
        let others = those.iter().zip(&parts).skip(1);
        let others = others.map(|(one, part)| Rider {
            header: one.header,
            id: part.id.to_vec(),
            consistency: part.consistency,
            awaited: Vec::new(),
        });
        let leads = first.id.to_vec();
        let others = others.collect();
        Some((body, Riding { leads, others }))
    }
}

impl Talk {
    /// The answer to a batch, which has passed the steps behind the one that has merged it, is that of each. `raw`:
    /// its opcode, as it was sent. Gives what the one that leads is told instead, if that is something else.
    pub(crate) fn is_for_all(
        &mut self,
        response: &Header,
        raw: u8,
        body: &[u8],
        log: &mut dyn Log,
    ) -> Option<Error> {
        let riding = self.riders.remove(&response.stream)?;
        let response = Header {
            flags: Flags(response.flags.0 & !Flags::COMPRESSION.0),
            ..*response
        };
        let of_response = Response::new(response, body.into()).error();
        let is_unprepared = of_response == Some(UNPREPARED);
        if body.len() > MAX_SHARED_BYTES && !is_unprepared {
            self.may_be_done(riding);
            return None;
        }
        for rider in riding.others {
            // Each has to prepare its own again, since the database names one.
            let error = is_unprepared.then(|| Error::Unprepared(rider.id).body());
            let (flags, opcode) = match is_unprepared {
                true => (Flags(0), Some(Opcode::Error)),
                false => (response.flags, response.opcode),
            };
            let header = Header {
                stream: rider.header.stream,
                flags,
                opcode,
                ..response
            };
            let raw = match opcode {
                Some(Opcode::Error) => ERROR,
                _ => raw,
            };
            let body = error.as_deref().unwrap_or(body);
            let frame = frame(&header, raw, body);
            let own = Response::new(header, body.into());
            match self.show_response(own, &header, &frame, rider.awaited, log) {
                Fate::Keep => self.answers.extend(frame),
                Fate::Instead(frame) => self.answers.extend(frame),
                Fate::Drop => {}
            }
        }
        is_unprepared.then_some(Error::Unprepared(riding.leads))
    }

    /// The one that leads is answered by the proxy itself: so are those that ride with it.
    pub(crate) fn tell_all(&mut self, leads: &Header, opcode: u8, body: &[u8], riding: Riding) {
        let code = body.first_chunk().map(|code| i32::from_be_bytes(*code));
        let is_unprepared = opcode == ERROR && code == Some(UNPREPARED);
        let others = riding.others.into_iter();
        let others = others.map(|rider| (rider.header, rider.id));
        for (header, id) in std::iter::once((*leads, riding.leads)).chain(others) {
            match is_unprepared {
                true => self.answer(&header, &Error::Unprepared(id)),
                false => self.put_answer(&header, Flags(0), opcode, body),
            }
        }
    }

    /// A response goes on unread. To those that ride with it, nothing can be said but that they may have been done.
    pub(crate) fn is_not_seen(&mut self, stream: StreamId) {
        if let Some(riding) = self.riders.remove(&stream) {
            self.may_be_done(riding);
        }
    }

    fn may_be_done(&mut self, riding: Riding) {
        for rider in riding.others {
            let message = "the proxy cannot read the answer to the batch that the write was in";
            let error = Error::WriteTimeout(message.to_owned(), rider.consistency);
            self.answer(&rider.header, &error);
        }
    }

    /// Whether a request of this stream is in a batch that another leads.
    pub(crate) fn rides(&self, stream: StreamId) -> bool {
        let mut others = self.riders.values().flat_map(|riding| &riding.others);
        others.any(|rider| rider.header.stream == stream)
    }

    /// A request's own stream, and those of the requests that ride with it. `awaited`: who awaits its response.
    pub(crate) fn streams_of(&self, stream: StreamId, awaited: &[Awaits]) -> Vec<StreamId> {
        let riding = leads(awaited).then(|| self.riders.get(&stream)).flatten();
        let others = riding.into_iter().flat_map(|riding| &riding.others);
        let others = others.map(|rider| rider.header.stream);
        std::iter::once(stream).chain(others).collect()
    }
}

/// A response's, without compression.
fn frame(header: &Header, raw: u8, body: &[u8]) -> Vec<u8> {
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
