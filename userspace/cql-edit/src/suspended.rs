//! Requests and responses that wait for an answer from outside.
//!
//! A step suspends the frame that it is shown ([`Request::suspend`](super::Request::suspend),
//! [`Response::suspend`](super::Response::suspend)) and is given a [`Ticket`]. The flow goes on without it. Whoever has
//! the ticket says later, from any thread, what becomes of it; that is left in the flow's [`CompletionSink`], and
//! [`Editor::resolve`](super::Editor::resolve) does it. A ticket that is dropped says so, too: nothing
//! waits for somebody who is gone.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::awaited::Awaits;
use crate::note::Note;
use crate::outcome::Refused;
use crate::room::{Room, Taken};
use crate::terms::Terms;
use cql::wire::{HEADER_BYTES, Header};

/// The most frames of a flow that are suspended at a time. Drivers have no more requests out on a
/// connection unless they are told to.
pub const MAX_SUSPENDED: usize = 1_024;

/// Bodies of a flow that wait have so many bytes at most: one of the largest that are shown, so that a flow
/// does not take all the [`Room`] from others.
pub const MAX_SUSPENDED_BYTES: usize = cql::wire::compress::MAX_SEEN_BYTES;

/// A decision on a suspended request or response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The frame goes on as it was.
    Pass,
    /// The frame goes on with this body, which is not compressed and begins as the flags of its header
    /// say.
    Instead(Vec<u8>),
    /// The client gets a RESULT with this body, and a request does not go on.
    Answer(Vec<u8>),
    /// The client gets this error, and a request does not go on.
    Refuse(Refused),
    /// The step of the request is asked for its decision ([`Transform::due`](super::Transform::due)).
    /// Only for requests.
    Due,
    /// The client gets this response. Only for a request that was [handed
    /// over](super::Request::hand_over).
    Relayed(Relayed),
    /// The carrier of a request that was handed over is gone, and nobody can know what became of it.
    /// The flow has to end, as it would if it had lost its own connection
    /// ([`Editor::is_lost`](super::Editor::is_lost)).
    Lost,
    /// The request goes on as an UNLOGGED BATCH of itself and those with these numbers, of the same
    /// step, and all get the one answer ([`Ticket::leads`]). Only for an EXECUTE that [can be
    /// merged](super::Request::mergeable).
    Leads(Vec<u64>),
}

/// A response that a database has sent on another connection: a whole frame, on the stream of the request, in the
/// version and compression of its flow.
#[derive(Clone)]
pub struct Relayed {
    frame: Vec<u8>,
    /// Dropped when the frame has gone on.
    held: Option<Note>,
}

impl Relayed {
    /// `held` is dropped when the frame has gone on ([`Editor::answers`](super::Editor::answers)), or never will.
    pub fn new(frame: Vec<u8>, held: Option<Note>) -> Self {
        Self { frame, held }
    }

    pub(crate) fn into_parts(self) -> (Vec<u8>, Option<Note>) {
        (self.frame, self.held)
    }
}

impl fmt::Debug for Relayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut relayed = f.debug_struct("Relayed");
        relayed.field("bytes", &self.frame.len()).finish()
    }
}

impl PartialEq for Relayed {
    fn eq(&self, other: &Self) -> bool {
        self.frame == other.frame
    }
}

impl Eq for Relayed {}

/// A carrier takes requests over ([`Request::hand_over`](super::Request::hand_over)).
pub trait Carrier: fmt::Debug + Send + Sync {
    /// Takes this one, a whole frame as the database is to get it. `number`: what the step has given with it. Whoever
    /// cannot, resolves the ticket with [`Resolution::Pass`]. Does not wait.
    fn carry(&self, ticket: Ticket, frame: &[u8], number: u64);
}

/// A decision on a suspended frame, told on its own flow's thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    pub(crate) number: u64,
    pub(crate) resolution: Resolution,
}

/// A flow's sink for decisions on its suspended frames.
pub trait CompletionSink: fmt::Debug + Send + Sync {
    /// For [`Editor::resolve`](super::Editor::resolve), and once for each number. `None`: nobody will say any
    /// more. Called on any thread; does not wait.
    fn put(&self, number: u64, resolution: Option<Resolution>);

    /// Whether somebody may still read it: its flow has not ended. Called on any thread; does not wait.
    fn is_read(&self) -> bool {
        true
    }
}

/// The right to say, once, what becomes of something that waits.
#[derive(Debug)]
pub struct Ticket {
    sink: Option<Arc<dyn CompletionSink>>,
    number: u64,
}

impl Ticket {
    /// Decides the suspended frame.
    pub fn resolve(mut self, resolution: Resolution) {
        if let Some(sink) = self.sink.take() {
            sink.put(self.number, Some(resolution));
        }
    }
}

impl Ticket {
    /// Whether its flow has not ended.
    pub fn is_awaited(&self) -> bool {
        self.sink.as_ref().is_some_and(|sink| sink.is_read())
    }

    /// Returns the number under which the frame waits, among those of its flow.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Has the step asked on the flow's own thread, soon ([`Transform::due`](super::Transform::due)).
    pub fn fall_due(&self) {
        if let Some(sink) = &self.sink {
            sink.put(self.number, Some(Resolution::Due));
        }
    }

    /// Has the frame go on as it was.
    pub fn passes(self) -> Completion {
        self.completion(Resolution::Pass)
    }

    /// Has the request go on with these of the same flow, in their order, as one batch.
    pub fn leads(self, others: Vec<Self>) -> Completion {
        let mut numbers = Vec::with_capacity(others.len());
        for mut other in others {
            // Of another flow: it is given up, as it is dropped.
            let same = match (&other.sink, &self.sink) {
                (Some(other), Some(own)) => Arc::ptr_eq(other, own),
                _ => false,
            };
            if same {
                other.sink = None;
                numbers.push(other.number);
            }
        }
        self.completion(Resolution::Leads(numbers))
    }

    fn completion(mut self, resolution: Resolution) -> Completion {
        self.sink = None;
        Completion {
            number: self.number,
            resolution,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            sink.put(self.number, None);
        }
    }
}

/// A flow's suspended frames.
#[derive(Debug, Default)]
pub(crate) struct SuspendedFrames {
    /// The receiver of decisions. None: nothing can be suspended.
    pub(crate) sink: Option<Arc<dyn CompletionSink>>,
    next: u64,
    bytes: usize,
    suspended: HashMap<u64, Suspended>,
    /// Decisions on some of them that are carried out before the request that is being shown goes on.
    pub(crate) said: Vec<Completion>,
    /// A request that was carried is lost, and the flow has to end for that.
    pub(crate) lost: bool,
}

/// A suspended frame.
#[derive(Debug)]
pub(crate) struct Suspended {
    pub(crate) header: Header,
    pub(crate) kept: Kept,
    /// The index of the step that has suspended it.
    pub(crate) step_index: usize,
    /// The steps that a response is still to be shown to: the request's own response, or this one.
    pub(crate) awaited: Vec<Awaits>,
    pub(crate) to_database: bool,
    /// The database may have it, by another connection: it is not to go on as well.
    pub(crate) is_carried: bool,
    pub(crate) permit: SlotPermit,
}

impl Suspended {
    /// A frame that nobody carries.
    pub(crate) fn new(
        to_database: bool,
        header: Header,
        kept: Kept,
        step_index: usize,
        awaited: Vec<Awaits>,
        permit: SlotPermit,
    ) -> Self {
        Self {
            header,
            kept,
            step_index,
            awaited,
            to_database,
            is_carried: false,
            permit,
        }
    }
}

/// A frame, with its header.
#[derive(Debug)]
pub(crate) enum Kept {
    /// The frame as it was sent.
    Sent(Vec<u8>),
    /// Changed by a step, its body without compression.
    Changed(Vec<u8>),
}

impl Kept {
    /// `changed`: its header and body; `frame`: as it was sent.
    fn of(frame: &[u8], changed: Option<(&Header, &[u8])>) -> Self {
        match changed {
            None => Self::Sent(frame.to_vec()),
            Some((_, body)) => {
                let raw = frame.get(..HEADER_BYTES).unwrap_or_default();
                Self::Changed([raw, body].concat())
            }
        }
    }

    /// A frame as it stands behind the steps that have seen it, with its header. `changed`: the header
    /// and body that they have changed; `frame`: as it was sent, with `header`.
    pub(crate) fn as_it_stands(
        header: &Header,
        frame: &[u8],
        changed: Option<(&Header, &[u8])>,
    ) -> (Header, Self) {
        let now = changed.map_or(*header, |(header, _)| *header);
        (now, Self::of(frame, changed))
    }

    /// The body before compression. `None`: it cannot be expanded.
    pub(crate) fn plain(&self, terms: &Terms, header: &Header) -> Option<Cow<'_, [u8]>> {
        let body = self.bytes().get(HEADER_BYTES..).unwrap_or_default();
        match self {
            Self::Sent(_) => terms.plain(header, body),
            Self::Changed(_) => Some(body.into()),
        }
    }

    /// The frame with this body in place of its own, without compression.
    pub(crate) fn with_body(&self, body: &[u8]) -> Self {
        let raw = self.bytes().get(..HEADER_BYTES).unwrap_or_default();
        Self::Changed([raw, body].concat())
    }

    /// Whether a step has changed it.
    pub(crate) fn is_changed(&self) -> bool {
        matches!(self, Self::Changed(_))
    }

    /// Returns the whole frame.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Sent(bytes) | Self::Changed(bytes) => bytes,
        }
    }
}

/// A place for one that waits.
#[derive(Debug)]
pub(crate) struct SlotPermit {
    pub(crate) number: u64,
    bytes: usize,
    /// Given back as it is dropped.
    _taken: Taken,
}

/// Slots in which the frame that is shown may be suspended.
#[derive(Debug)]
pub(crate) struct SuspendSlots<'e> {
    suspended: &'e mut SuspendedFrames,
    room: &'e Arc<Room>,
    found: Option<SlotPermit>,
    full: bool,
}

impl<'e> SuspendSlots<'e> {
    pub(crate) fn new(suspended: &'e mut SuspendedFrames, room: &'e Arc<Room>) -> Self {
        Self {
            suspended,
            room,
            found: None,
            full: false,
        }
    }

    /// For something of so many bytes, once.
    pub(crate) fn suspend(&mut self, bytes: usize) -> Option<Ticket> {
        let sink = self.suspended.sink.clone()?;
        if self.found.is_some() {
            return None;
        }
        let fits = self.suspended.suspended.len() < MAX_SUSPENDED
            && self.suspended.bytes + bytes <= MAX_SUSPENDED_BYTES;
        let taken = fits.then(|| self.room.take(bytes)).flatten();
        let Some(taken) = taken else {
            self.full = true;
            return None;
        };
        let number = self.suspended.next;
        self.suspended.next += 1;
        self.found = Some(SlotPermit {
            number,
            bytes,
            _taken: taken,
        });
        Some(Ticket {
            sink: Some(sink),
            number,
        })
    }

    /// Returns the number of the flow; see [`Request::flow`](super::Request::flow).
    pub(crate) fn flow(&self) -> Option<usize> {
        self.suspended.flow()
    }

    pub(crate) fn says(&mut self, completion: Completion) {
        self.suspended.said.push(completion);
    }

    /// Whether something is to become of what waits, before the one that is shown goes on.
    pub(crate) fn has_said(&self) -> bool {
        !self.suspended.said.is_empty()
    }

    /// Takes the permit that the step at hand has got.
    pub(crate) fn found(&mut self) -> Option<SlotPermit> {
        self.found.take()
    }

    /// Whether the step at hand found none.
    pub(crate) fn take_full(&mut self) -> bool {
        std::mem::take(&mut self.full)
    }
}

impl SuspendedFrames {
    pub(crate) fn put(&mut self, suspended: Suspended) {
        self.bytes += suspended.permit.bytes;
        self.suspended.insert(suspended.permit.number, suspended);
    }

    /// Returns the number of the flow; see [`Request::flow`](super::Request::flow).
    pub(crate) fn flow(&self) -> Option<usize> {
        let sink = self.sink.as_ref()?;
        Some(Arc::as_ptr(sink).cast::<()>().addr())
    }

    /// Takes a suspended frame out. None: it does not wait any more.
    pub(crate) fn take(&mut self, number: u64) -> Option<Suspended> {
        let suspended = self.suspended.remove(&number)?;
        self.bytes -= suspended.permit.bytes;
        Some(suspended)
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Suspended> {
        self.suspended.get(&number)
    }

    /// Whether some are [carried](Suspended::is_carried).
    pub(crate) fn are_carried(&self) -> bool {
        self.suspended
            .values()
            .any(|suspended| suspended.is_carried)
    }

    pub(crate) fn is_carried(&self, number: u64) -> bool {
        let suspended = self.suspended.get(&number);
        suspended.is_some_and(|suspended| suspended.is_carried)
    }

    /// Numbers of the suspended frames of a direction, oldest first.
    pub(crate) fn numbers(&self, to_database: bool) -> Vec<u64> {
        let those = self
            .suspended
            .iter()
            .filter(|(_, p)| p.to_database == to_database);
        let mut numbers: Vec<u64> = those.map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers
    }

    pub(crate) fn len(&self) -> usize {
        self.suspended.len()
    }
}
