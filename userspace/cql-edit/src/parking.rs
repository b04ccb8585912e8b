//! Requests and responses that wait for an answer from outside.
//!
//! A step parks the one that it is shown ([`Request::park`](super::Request::park),
//! [`Response::park`](super::Response::park)) and is given a [`Ticket`]. The flow goes on without it. Whoever has
//! the ticket says later, from any thread, what becomes of it; that is left in the flow's [`Mailbox`], and
//! [`Editor::resolve`](super::Editor::resolve) does it. A ticket that is dropped says so, too: nothing
//! waits for somebody who is gone.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::request::Note;
use crate::room::{Room, Taken};
use crate::talk::Awaits;
use crate::transform::Refused;
use cql::StreamId;
use cql::wire::{HEADER_BYTES, Header};

/// As many of a flow wait at most: drivers have no more requests out on a connection unless they are told to.
pub const MAX_PARKED: usize = 1_024;

/// Bodies of a flow that wait have so many bytes at most: one of the largest that are shown, so that a flow
/// does not take all the [`Room`] from others.
pub const MAX_PARKED_BYTES: usize = cql::wire::compress::MAX_SEEN_BYTES;

/// What becomes of a request or a response that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It goes on as it was.
    Pass,
    /// It goes on with this body, which is not compressed and begins as the flags of its header say.
    Instead(Vec<u8>),
    /// The client gets a RESULT with this body, and a request does not go on.
    Answer(Vec<u8>),
    /// The client gets this error, and a request does not go on.
    Refuse(Refused),
    /// Of a request: its step is asked what becomes of it ([`Transform::due`](super::Transform::due)).
    Due,
    /// Of a request that was [handed over](super::Request::hand_over): the client gets this response.
    Relayed(Relayed),
    /// Of the same: whoever had it is gone, and what became of it cannot be known. The flow has to end, as it would if
    /// it had lost its own connection ([`Editor::is_lost`](super::Editor::is_lost)).
    Lost,
    /// Of an EXECUTE that [can be merged](super::Request::mergeable): it goes on as an UNLOGGED BATCH of itself and
    /// those behind these numbers, of the same step, and all get the one answer ([`Ticket::leads`]).
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

/// Who takes requests over ([`Request::hand_over`](super::Request::hand_over)).
pub trait Carrier: fmt::Debug + Send + Sync {
    /// Takes this one, a whole frame as the database is to get it. `number`: what the step has given with it. Whoever
    /// cannot, resolves the ticket with [`Resolution::Pass`]. Does not wait.
    fn carry(&self, ticket: Ticket, frame: &[u8], number: u64);
}

/// What becomes of one that waits, told on its own flow's thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    pub(crate) number: u64,
    pub(crate) resolution: Resolution,
}

/// Where it is said what becomes of what a flow has parked.
pub trait Mailbox: fmt::Debug + Send + Sync {
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
    mailbox: Option<Arc<dyn Mailbox>>,
    number: u64,
}

impl Ticket {
    /// Says it.
    pub fn resolve(mut self, resolution: Resolution) {
        if let Some(mailbox) = self.mailbox.take() {
            mailbox.put(self.number, Some(resolution));
        }
    }
}

impl Ticket {
    /// Whether its flow has not ended.
    pub fn is_awaited(&self) -> bool {
        self.mailbox
            .as_ref()
            .is_some_and(|mailbox| mailbox.is_read())
    }

    /// Under which it waits, among those of its flow.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Has the step asked on the flow's own thread, soon ([`Transform::due`](super::Transform::due)).
    pub fn is_due(&self) {
        if let Some(mailbox) = &self.mailbox {
            mailbox.put(self.number, Some(Resolution::Due));
        }
    }

    /// It goes on as it was.
    pub fn passes(self) -> Letter {
        self.letter(Resolution::Pass)
    }

    /// It goes on with these of the same flow, in their order, as one batch.
    pub fn leads(self, others: Vec<Self>) -> Letter {
        let mut numbers = Vec::with_capacity(others.len());
        for mut other in others {
            // Of another flow: it is given up, as it is dropped.
            let same = match (&other.mailbox, &self.mailbox) {
                (Some(other), Some(own)) => Arc::ptr_eq(other, own),
                _ => false,
            };
            if same {
                other.mailbox = None;
                numbers.push(other.number);
            }
        }
        self.letter(Resolution::Leads(numbers))
    }

    fn letter(mut self, resolution: Resolution) -> Letter {
        self.mailbox = None;
        Letter {
            number: self.number,
            resolution,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(mailbox) = self.mailbox.take() {
            mailbox.put(self.number, None);
        }
    }
}

/// What became of something that was to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Waited {
    /// It went on.
    Passed,
    /// It went on with another body.
    Changed,
    /// It went on in a batch with others.
    Merged,
    /// The client got a RESULT.
    Answered,
    /// The client got the database's response, by another connection.
    Relayed,
    /// Whoever had it was lost, and its flow has ended for that.
    Lost,
    /// The client got an error.
    Refused,
    /// Nobody would have said any more: it became what its step says ([`Transform::given_up`]).
    ///
    /// [`Transform::given_up`]: super::Transform::given_up
    GivenUp,
    /// Its flow had ended before.
    Abandoned,
    /// It could not be parked: as much waits as may.
    NoRoom,
}

cql::labelled!(Waited {
    Passed => "passed",
    Changed => "changed",
    Merged => "merged",
    Answered => "answered",
    Relayed => "relayed",
    Lost => "lost",
    Refused => "refused",
    GivenUp => "given_up",
    Abandoned => "abandoned",
    NoRoom => "no_room",
});

/// What a flow has parked.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    /// None: nothing can be parked.
    pub(crate) mailbox: Option<Arc<dyn Mailbox>>,
    next: u64,
    bytes: usize,
    parked: HashMap<u64, Parked>,
    /// What is to become of some before the request that is being shown goes on.
    pub(crate) said: Vec<Letter>,
}

/// One that waits.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) header: Header,
    pub(crate) kept: Kept,
    /// The step that has parked it.
    pub(crate) place: usize,
    /// Of a request: who wants to see its response. Of a response: who has not seen it yet.
    pub(crate) awaited: Vec<Awaits>,
    pub(crate) to_database: bool,
    /// The database may have it, by another connection: it is not to go on as well.
    pub(crate) is_carried: bool,
    pub(crate) space: Space,
}

/// A frame, with its header.
#[derive(Debug)]
pub(crate) enum Kept {
    /// As it was sent.
    Sent(Vec<u8>),
    /// Changed by a step, its body without compression.
    Changed(Vec<u8>),
}

impl Kept {
    /// `changed`: its header and body; `frame`: as it was sent.
    pub(crate) fn of(frame: &[u8], changed: Option<(&Header, &[u8])>) -> Self {
        match changed {
            None => Self::Sent(frame.to_vec()),
            Some((_, body)) => {
                let raw = frame.get(..HEADER_BYTES).unwrap_or_default();
                Self::Changed([raw, body].concat())
            }
        }
    }

    /// All of it.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Sent(bytes) | Self::Changed(bytes) => bytes,
        }
    }
}

/// A place for one that waits.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) number: u64,
    bytes: usize,
    /// Given back as it is dropped.
    _taken: Taken,
}

/// Where one that is shown may be parked.
#[derive(Debug)]
pub(crate) struct Lot<'e> {
    parking: &'e mut Parking,
    room: &'e Arc<Room>,
    found: Option<Space>,
    full: bool,
}

impl<'e> Lot<'e> {
    pub(crate) fn new(parking: &'e mut Parking, room: &'e Arc<Room>) -> Self {
        Self {
            parking,
            room,
            found: None,
            full: false,
        }
    }

    /// For something of so many bytes, once.
    pub(crate) fn park(&mut self, bytes: usize) -> Option<Ticket> {
        let mailbox = self.parking.mailbox.clone()?;
        if self.found.is_some() {
            return None;
        }
        let fits = self.parking.parked.len() < MAX_PARKED
            && self.parking.bytes + bytes <= MAX_PARKED_BYTES;
        let taken = fits.then(|| self.room.take(bytes)).flatten();
        let Some(taken) = taken else {
            self.full = true;
            return None;
        };
        let number = self.parking.next;
        self.parking.next += 1;
        self.found = Some(Space {
            number,
            bytes,
            _taken: taken,
        });
        Some(Ticket {
            mailbox: Some(mailbox),
            number,
        })
    }

    /// See [`Request::flow`](super::Request::flow).
    pub(crate) fn flow(&self) -> Option<usize> {
        self.parking.flow()
    }

    pub(crate) fn says(&mut self, letter: Letter) {
        self.parking.said.push(letter);
    }

    /// Whether something is to become of what waits, before the one that is shown goes on.
    pub(crate) fn has_said(&self) -> bool {
        !self.parking.said.is_empty()
    }

    /// What the step at hand has taken.
    pub(crate) fn found(&mut self) -> Option<Space> {
        self.found.take()
    }

    /// Whether the step at hand found none.
    pub(crate) fn was_full(&mut self) -> bool {
        std::mem::take(&mut self.full)
    }
}

impl Parking {
    pub(crate) fn put(&mut self, parked: Parked) {
        self.bytes += parked.space.bytes;
        self.parked.insert(parked.space.number, parked);
    }

    /// See [`Request::flow`](super::Request::flow).
    pub(crate) fn flow(&self) -> Option<usize> {
        let mailbox = self.mailbox.as_ref()?;
        Some(Arc::as_ptr(mailbox).cast::<()>().addr())
    }

    /// None: it does not wait any more.
    pub(crate) fn take(&mut self, number: u64) -> Option<Parked> {
        let parked = self.parked.remove(&number)?;
        self.bytes -= parked.space.bytes;
        Some(parked)
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Parked> {
        self.parked.get(&number)
    }

    /// Whether something of this stream waits.
    pub(crate) fn has(&self, stream: StreamId) -> bool {
        let mut parked = self.parked.values();
        parked.any(|parked| parked.header.stream == stream)
    }

    /// Whether some are [carried](Parked::is_carried).
    pub(crate) fn are_carried(&self) -> bool {
        self.parked.values().any(|parked| parked.is_carried)
    }

    pub(crate) fn is_carried(&self, number: u64) -> bool {
        let parked = self.parked.get(&number);
        parked.is_some_and(|parked| parked.is_carried)
    }

    /// Those of a direction, oldest first.
    pub(crate) fn numbers(&self, to_database: bool) -> Vec<u64> {
        let those = self
            .parked
            .iter()
            .filter(|(_, p)| p.to_database == to_database);
        let mut numbers: Vec<u64> = those.map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers
    }

    pub(crate) fn len(&self) -> usize {
        self.parked.len()
    }
}
