//! [`Request`]: a request that was kept back whole, for transforms to read and to change.
//!
//! `parameters` is what stands beside the statements: levels, page size, timestamp, flags.

mod parameters;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::awaited::{Awaiter, Awaits};
use crate::caller::Caller;
use crate::copied::{Copied, NotCopied};
use crate::layout::{Asked, Layout};
use crate::merging::{Mergeable, NotMerged};
use crate::note::Note;
use crate::opening::Opening;
use crate::suspended::{Carrier, Completion, SlotPermit, SuspendSlots, Ticket};
use cql::Consistency;
use cql::wire::Cursor;
use cql::wire::{Flags, Header};
use cql::{Opcode, StreamId};

/// A statement of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statement<'a> {
    /// The statement's text. It may be no CQL, and not UTF-8.
    Text(&'a [u8]),
    /// The id that an earlier PREPARE gave.
    Prepared(&'a [u8]),
}

/// See the module. Its body is as it was sent, but for compression.
#[derive(Debug)]
pub struct Request<'a> {
    pub(crate) header: Header,
    pub(crate) body: Cow<'a, [u8]>,
    pub(crate) layout: Layout,
    changed: bool,
    /// The number and the note with which the step at hand wants to see the response.
    awaited: Option<(u64, Option<Note>)>,
    /// The slots in which the request may be suspended.
    slots: Option<SuspendSlots<'a>>,
    unix_us: Option<i64>,
    opening: Option<&'a mut Arc<Opening>>,
    kept: Option<&'a mut Option<Note>>,
    /// Nobody knows whether it is a USE.
    may_use: bool,
    /// The response cannot be told from others on the stream.
    is_unpaired: bool,
    /// The request has passed already.
    is_copy: bool,
    /// The carrier of the request, and the number that the step has given with it.
    carried: Option<(Arc<dyn Carrier>, Ticket, u64)>,
}

/// The most that a `[string]`, and a map, can count.
const MAX_SHORT: usize = u16::MAX as usize;

impl<'a> Request<'a> {
    /// Reads a request. None: the body is not what the header says.
    pub(crate) fn read(header: Header, body: Cow<'a, [u8]>) -> Option<Self> {
        let layout = Layout::of(&header, &body)?;
        Some(Self {
            header,
            body,
            layout,
            changed: false,
            awaited: None,
            slots: None,
            unix_us: None,
            opening: None,
            kept: None,
            may_use: false,
            is_unpaired: false,
            is_copy: false,
            carried: None,
        })
    }

    /// Lets the request be suspended in these slots.
    pub(crate) fn beside(mut self, slots: SuspendSlots<'a>) -> Self {
        self.slots = Some(slots);
        self
    }

    /// Adds the flow's opening, and what a step keeps of the flow.
    pub(crate) fn of_flow(
        mut self,
        opening: Option<&'a mut Arc<Opening>>,
        kept: &'a mut Option<Note>,
    ) -> Self {
        self.opening = opening;
        self.kept = Some(kept);
        self
    }

    /// Notes that the request is not as it was sent.
    pub(crate) fn mark_changed(&mut self) {
        self.changed = true;
    }

    pub(crate) fn set_time(&mut self, unix_us: Option<i64>) {
        self.unix_us = unix_us;
    }

    /// When it came by the wall clock, in µs since 1970, where [somebody has said
    /// so](crate::Editor::set_time).
    pub fn unix_us(&self) -> Option<i64> {
        self.unix_us
    }

    /// The request's opcode.
    pub fn opcode(&self) -> Opcode {
        self.header.opcode.unwrap_or(Opcode::Options)
    }

    /// 3, 4 or 5.
    pub fn version(&self) -> u8 {
        self.header.version
    }

    /// Whether an EXECUTE has the id of the result's metadata, and a PREPARED too.
    pub fn has_metadata_id(&self) -> bool {
        self.header.metadata_id && self.header.version < 5
    }

    /// The stream, on which its response will come.
    pub fn stream(&self) -> StreamId {
        self.header.stream
    }

    /// Bytes of its body, without compression.
    pub fn body_bytes(&self) -> usize {
        self.body.len()
    }

    /// The request's statements: one, and any number in a BATCH.
    pub fn statements(&self) -> impl Iterator<Item = Statement<'_>> {
        let bytes = |range: &Range<usize>| self.body.get(range.clone()).unwrap_or_default();
        self.layout.asked().map(move |asked| match asked {
            Asked::Text(range) => Statement::Text(bytes(range)),
            Asked::Id(range) => Statement::Prepared(bytes(range)),
        })
    }

    /// The keyspace that is given with it (v5).
    pub fn keyspace(&self) -> Option<&str> {
        let of_parameters = self.layout.parameters.and_then(|p| p.keyspace);
        let (at, length) = of_parameters.or(self.layout.keyspace)?;
        std::str::from_utf8(self.body.get(at..at + length)?).ok()
    }

    /// The keyspace of what does not say its own: that which is given with it, or its connection's. None: there is
    /// none, or [nobody can be sure](super::Caller::keyspace_unclear).
    pub fn sure_keyspace<'s>(&'s self, caller: &'s Caller) -> Option<&'s str> {
        let of_connection = || {
            caller
                .keyspace
                .as_deref()
                .filter(|_| !caller.keyspace_unclear)
        };
        self.keyspace().or_else(of_connection)
    }

    /// A BATCH of counters (`native_protocol_v5.spec` §4.1.7).
    pub fn is_counter_batch(&self) -> bool {
        const COUNTER: u8 = 2;
        self.opcode() == Opcode::Batch && self.body.get(self.layout.proper) == Some(&COUNTER)
    }

    /// The database is asked to trace it.
    pub fn is_traced(&self) -> bool {
        self.header.flags.any(Flags::TRACING)
    }

    /// All of its body that says which rows are read, in two pieces: without a custom payload, and without the
    /// client's time, which is a write's, and which many drivers send with everything.
    pub fn question(&self) -> [&[u8]; 2] {
        let proper = self.layout.proper;
        let cut = self.layout.parameters.and_then(|p| p.timestamp);
        let (end, begin) = cut.map_or((self.body.len(), self.body.len()), |at| (at, at + 8));
        [proper..end, begin..self.body.len()].map(|range| self.body.get(range).unwrap_or_default())
    }

    /// Puts an entry into the custom payload, which there is since v4. False: it could not be done.
    pub fn add_payload(&mut self, key: &str, value: &[u8]) -> bool {
        let (key, value) = match (u16::try_from(key.len()), i32::try_from(value.len())) {
            (Ok(length), Ok(bytes)) if self.header.version >= 4 => (
                [&length.to_be_bytes()[..], key.as_bytes()].concat(),
                [&bytes.to_be_bytes()[..], value].concat(),
            ),
            _ => return false,
        };
        let entry = [key, value].concat();
        if !self.header.flags.any(Flags::CUSTOM_PAYLOAD) {
            self.header.flags.0 |= Flags::CUSTOM_PAYLOAD.0;
            let map = [&1u16.to_be_bytes()[..], &entry].concat();
            self.replace(0, 0, &map);
            return true;
        }
        let count = Cursor::new(&self.body).short().unwrap_or(u16::MAX);
        if usize::from(count) >= MAX_SHORT {
            return false;
        }
        let end = self.layout.proper;
        self.replace(0, 2, &(count + 1).to_be_bytes());
        self.replace(end, 0, &entry);
        true
    }

    /// Another text for the statement with this number. False: it has none.
    pub fn set_text(&mut self, number: usize, text: &[u8]) -> bool {
        let Some(Asked::Text(range)) = self.layout.asked().nth(number) else {
            return false;
        };
        let (Ok(length), Some(at)) = (i32::try_from(text.len()), range.start.checked_sub(4)) else {
            return false;
        };
        let old = 4 + range.len();
        self.replace(at, old, &[&length.to_be_bytes()[..], text].concat());
        true
    }

    /// Whether its response cannot be told from others, because several requests are out on its stream: the response
    /// is not shown to anybody, and the request cannot wait.
    pub fn is_unpaired(&self) -> bool {
        self.is_unpaired
    }

    /// Whether it has passed already: nothing can be done to it.
    pub fn is_copy(&self) -> bool {
        self.is_copy
    }

    /// Whether it is a copy of a request to tables of a keyspace that nobody has seen the client choose.
    pub fn lacks_keyspace(&self, caller: &Caller) -> bool {
        self.is_copy && caller.keyspace_unclear && self.sure_keyspace(caller).is_none()
    }

    pub(crate) fn mark_copy(&mut self) {
        self.is_copy = true;
    }

    pub(crate) fn mark_unpaired(&mut self) {
        self.is_unpaired = true;
    }

    /// Has the response shown to the transform, too, with this number.
    pub fn await_response(&mut self, number: u64) {
        self.awaited = Some((number, None));
    }

    /// Asks for the response, as [`await_response`](Self::await_response) does, and keeps a note until
    /// then ([`Response::note`](super::Response::note)).
    pub fn await_response_with(&mut self, number: u64, note: Note) {
        self.awaited = Some((number, Some(note)));
    }

    /// Takes what the step at this index has asked of the response.
    #[inline]
    pub(crate) fn take_awaited(&mut self, step_index: usize) -> Option<Awaits> {
        let (number, note) = self.awaited.take()?;
        let who = Awaiter::Step(step_index);
        Some(Awaits { who, number, note })
    }

    /// The request's question, to be put to another database.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn copied(&self) -> Result<Copied, NotCopied> {
        Copied::of(&self.header, &self.body)
    }

    /// Has it wait, once the step at hand has returned, until the ticket says what becomes of it; the steps behind
    /// see it then, if it goes on. `None`: it cannot wait, because too much does, or nothing can in this flow.
    pub fn suspend(&mut self) -> Option<Ticket> {
        if self.is_unpaired {
            return None;
        }
        let bytes = self.body.len();
        self.slots.as_mut()?.suspend(bytes)
    }

    /// Has it wait like one that is [suspended](Self::suspend), until the editor itself lets it go on: under this
    /// number. `None`: it cannot wait.
    pub(crate) fn wait(&mut self) -> Option<u64> {
        let bytes = self.body.len();
        let ticket = self.slots.as_mut()?.suspend(bytes)?;
        let number = ticket.number();
        drop(ticket.passes());
        Some(number)
    }

    /// Has it wait like one that is [suspended](Self::suspend), and be taken over by somebody who has it asked by another
    /// connection, once the step at hand has returned. It does not go on as well, unless whoever has it says so;
    /// a ticket that is dropped ends the flow ([`Resolution::Lost`](super::Resolution::Lost)). False: it cannot wait.
    pub fn hand_over(&mut self, carrier: Arc<dyn Carrier>, number: u64) -> bool {
        let Some(ticket) = self.suspend() else {
            return false;
        };
        self.carried = Some((carrier, ticket, number));
        true
    }

    /// Notes that an EXECUTE may be a USE, because the step does not know what it executes. If its
    /// response says that the flow is in another keyspace, the keyspace is
    /// [unclear](super::Caller::keyspace_unclear) from then on.
    pub fn may_be_use(&mut self) {
        self.may_use = true;
    }

    pub(crate) fn may_use(&self) -> bool {
        self.may_use
    }

    /// Whether it says nothing of its connection, and nothing that a database is known to take for a mistake of the
    /// connection: some close one that makes several.
    pub fn is_ordinary(&self) -> bool {
        const LEVELS: u16 = 0x000A;
        const SERIAL_LEVELS: std::ops::RangeInclusive<u16> = 8..=9;
        const KINDS: u8 = 2;
        let allowed = match self.header.version {
            ..4 => Flags::COMPRESSION.0,
            _ => Flags::COMPRESSION.0 | Flags::CUSTOM_PAYLOAD.0,
        };
        let kind = self.body.get(self.layout.proper).copied();
        let is_batch = self.opcode() == Opcode::Batch;
        self.header.flags.0 & !allowed == 0
            && self.consistency().is_some_and(|level| level.0 <= LEVELS)
            && (self.serial_consistency()).is_none_or(|level| SERIAL_LEVELS.contains(&level.0))
            && (!is_batch || kind.is_some_and(|kind| kind <= KINDS))
    }

    /// Takes the carrier, if the step has handed the request over.
    pub(crate) fn take_carried(&mut self) -> Option<(Arc<dyn Carrier>, Ticket, u64)> {
        self.carried.take()
    }

    /// How its flow has begun, if it has, and if another connection could begin in the same way. Only known to a
    /// pipeline of which a step [wants to](super::Transform::wants_opening).
    pub fn opening(&self) -> Option<&Arc<Opening>> {
        self.opening.as_deref()
    }

    /// Has it be the same as another that is equal, so that the password in it is there once.
    pub fn shares_opening(&mut self, other: &Arc<Opening>) {
        if let Some(opening) = &mut self.opening
            && opening.token == other.token
        {
            **opening = other.clone();
        }
    }

    /// The note that was last [kept](Self::keep) of this flow.
    pub fn kept(&self) -> Option<&Note> {
        self.kept.as_ref()?.as_ref()
    }

    /// Has this be known with the requests of this flow that follow, until it ends. One of a pipeline's steps does.
    pub fn keep(&mut self, note: Option<Note>) {
        if let Some(kept) = &mut self.kept {
            **kept = note;
        }
    }

    /// Whether it may be one of a batch with others, beside what its statement is.
    ///
    /// # Errors
    /// Why it may not.
    pub fn mergeable(&self) -> Result<Consistency, NotMerged> {
        Mergeable::of(&self.header, &self.body).map(|one| one.consistency)
    }

    /// The flow's number, which no other flow has for as long as one of its tickets is held. `None`:
    /// nothing can be suspended in this flow.
    pub fn flow(&self) -> Option<usize> {
        self.slots.as_ref()?.flow()
    }

    /// Has this become of what waits before the request itself goes on, and of the request itself if it was
    /// [suspended](Self::suspend).
    pub fn first(&mut self, completion: Completion) {
        if let Some(slots) = &mut self.slots {
            slots.says(completion);
        }
    }

    /// Whether something is to go on before it.
    pub(crate) fn has_said(&self) -> bool {
        self.slots.as_ref().is_some_and(SuspendSlots::has_said)
    }

    /// Takes the permit by which the step at hand has suspended the request.
    pub(crate) fn take_space(&mut self) -> Option<SlotPermit> {
        self.slots.as_mut()?.found()
    }

    /// Whether the step at hand found no slot to suspend it in.
    pub(crate) fn take_full(&mut self) -> bool {
        self.slots.as_mut().is_some_and(SuspendSlots::take_full)
    }

    /// Asks the database to trace it.
    pub fn trace(&mut self) {
        if !self.header.flags.any(Flags::TRACING) {
            self.header.flags.0 |= Flags::TRACING.0;
            self.changed = true;
        }
    }

    /// Header and body, if anything has changed.
    pub(crate) fn changed(&self) -> Option<(&Header, &[u8])> {
        self.changed.then_some((&self.header, &*self.body))
    }

    /// Another body, which the header fits as well.
    pub(crate) fn set_body(&mut self, body: Vec<u8>) {
        self.changed = true;
        if let Some(layout) = Layout::of(&self.header, &body) {
            self.layout = layout;
        }
        self.body = Cow::Owned(body);
    }

    /// Other bytes in place of `old` of them. Whatever announces them has been changed before.
    fn replace(&mut self, at: usize, old: usize, new: &[u8]) {
        self.changed = true;
        let body = self.body.to_mut();
        let end = (at + old).min(body.len());
        body.splice(at.min(end)..end, new.iter().copied());
        if new.len() != old
            && let Some(layout) = Layout::of(&self.header, body)
        {
            self.layout = layout;
        }
    }
}
