//! A shared connection, as the flows on it know it: what they hand over, and who waits for which stream.
//!
//! Flows put frames one behind another into a queue, each under a stream of the connection's own; whoever has the
//! connection ([`connection`](super::connection)) takes all of it at once. There is one lock, held for a copy.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool, AtomicU8, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    task::Waker,
    thread::{self, ThreadId},
};

use cql_edit::{Resolution, Ticket};

/// Requests out at the same time; more go by their flows' own connections. As many as a driver has out on one.
pub(super) const MAX_STREAMS: usize = 1_024;

/// What waits to be written has so many bytes at most.
const MAX_QUEUE_BYTES: usize = 4 << 20;

/// What is kept of a queue that was once longer, in bytes.
const KEPT_BYTES: usize = 256 << 10;

/// The stream of what the connection asks for itself; those of flows are above it.
pub(super) const OWN_STREAM: i16 = 0;

/// Where a frame has its stream.
const STREAM: std::ops::Range<usize> = 2..4;

const BEGINS: u8 = 0;
const OPEN: u8 = 1;
const GONE: u8 = 2;

/// See the module.
pub(super) struct Leg {
    phase: AtomicU8,
    was_open: AtomicBool,
    /// On which its task runs.
    pub(super) thread: ThreadId,
    state: Mutex<State>,
}

struct State {
    queue: Vec<u8>,
    /// Bytes that were ever put into the queue, and taken out of it.
    put: u64,
    taken: u64,
    /// By stream, the first being 1.
    slots: Vec<Option<Slot>>,
    free: Vec<i16>,
    waker: Option<Waker>,
    /// Nobody has it any more.
    unused: bool,
}

/// A request that is out.
pub(super) struct Slot {
    pub(super) ticket: Ticket,
    /// The client's own.
    stream: [u8; 2],
    /// It can be asked again.
    pub(super) is_read: bool,
    /// Where it stands among the bytes that were put.
    at: u64,
    out: Out,
}

/// What is known of a flow here.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// Its requests that are out.
    pub(super) out: AtomicUsize,
    /// The database did not understand one: it may end a connection that has several of those.
    pub(super) is_barred: AtomicBool,
}

/// One of those that a flow has out, until it is dropped.
pub(super) struct Out(Arc<Standing>);

impl Out {
    pub(super) fn of(flow: &Arc<Standing>) -> Self {
        flow.out.fetch_add(1, Relaxed);
        Self(flow.clone())
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        self.0.out.fetch_sub(1, Relaxed);
    }
}

/// What there is to write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Queued {
    Taken,
    Nothing,
    /// And there will be none.
    Unused,
}

impl fmt::Debug for Leg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut leg = f.debug_struct("Leg");
        leg.field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl Leg {
    /// One that begins on this thread.
    pub(super) fn new() -> Self {
        Self {
            phase: AtomicU8::new(BEGINS),
            was_open: AtomicBool::new(false),
            thread: thread::current().id(),
            state: Mutex::new(State {
                queue: Vec::new(),
                put: 0,
                taken: 0,
                slots: Vec::new(),
                free: Vec::new(),
                waker: None,
                unused: false,
            }),
        }
    }

    /// It can be asked.
    pub(super) fn is_open(&self) -> bool {
        self.phase.load(Acquire) == OPEN
    }

    pub(super) fn is_gone(&self) -> bool {
        self.phase.load(Acquire) == GONE
    }

    /// It could be asked once.
    pub(super) fn was_open(&self) -> bool {
        self.was_open.load(Acquire)
    }

    pub(super) fn opens(&self) {
        self.was_open.store(true, Release);
        self.phase.store(OPEN, Release);
    }

    /// Nobody has it any more, so it ends with the last answer that somebody waits for.
    pub(super) fn is_unused(&self) {
        let mut state = self.lock();
        state.unused = true;
        let waker = state.waker.take();
        drop(state);
        waker.inspect(Waker::wake_by_ref);
    }

    /// Has this frame asked. False: it cannot be, and goes on by its flow's own connection.
    pub(super) fn ask(&self, ticket: Ticket, frame: &[u8], is_read: bool, out: Out) -> bool {
        let mut state = self.lock();
        let stream = frame.get(STREAM).and_then(<[u8]>::first_chunk).copied();
        let slot = match stream {
            Some(stream) if self.is_open() => state.slot_for(frame.len()).map(|own| (stream, own)),
            _ => None,
        };
        let Some((stream, own)) = slot else {
            drop(state);
            ticket.resolve(Resolution::Pass);
            return false;
        };
        let at = state.put;
        state.put(frame, own);
        if let Some(slot) = state.slots.get_mut(own as usize) {
            *slot = Some(Slot {
                ticket,
                stream,
                is_read,
                at,
                out,
            });
        }
        let waker = state.waker.take();
        drop(state);
        waker.inspect(Waker::wake_by_ref);
        true
    }

    /// What its own task asks, on [`OWN_STREAM`].
    pub(super) fn asks_itself(&self, frame: &[u8]) {
        self.lock().put(frame, OWN_STREAM);
    }

    /// What there is to write, if `to` is empty; its task is woken when there is more.
    pub(super) fn take(&self, to: &mut Vec<u8>, waker: &Waker) -> Queued {
        let mut state = self.lock();
        // Somebody may have left and wait for an answer all the same.
        let mut out = state.slots.iter().flatten();
        if state.unused && !out.any(|slot| slot.ticket.is_awaited()) {
            return Queued::Unused;
        }
        if to.is_empty() && !state.queue.is_empty() {
            std::mem::swap(&mut state.queue, to);
            state.queue.shrink_to(KEPT_BYTES);
            state.taken = state.put;
            return Queued::Taken;
        }
        match &mut state.waker {
            Some(old) => old.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        Queued::Nothing
    }

    /// Whether somebody waits for an answer.
    pub(super) fn is_busy(&self) -> bool {
        let state = self.lock();
        state.free.len() < state.slots.len().saturating_sub(1)
    }

    /// Looks up who waits for answers, several times.
    pub(super) fn slots(&self) -> Slots<'_> {
        Slots(self.lock())
    }

    /// It has ended: what the database cannot have got goes on by its flow's own connection, and the flows of the rest
    /// are lost with it.
    pub(super) fn ends(&self) {
        let mut state = self.lock();
        self.phase.store(GONE, Release);
        let slots = std::mem::take(&mut state.slots);
        let taken = state.taken;
        state.queue = Vec::new();
        state.free = Vec::new();
        drop(state);
        for slot in slots.into_iter().flatten() {
            slot.ticket.resolve(match slot.at >= taken {
                true => Resolution::Pass,
                false => Resolution::Lost,
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A stream for a frame of so many bytes.
    fn slot_for(&mut self, bytes: usize) -> Option<i16> {
        if self.queue.len() + bytes > MAX_QUEUE_BYTES {
            return None;
        }
        if let Some(stream) = self.free.pop() {
            return Some(stream);
        }
        // As many as were ever out at once.
        let stream = self.slots.len().max(1);
        if stream > MAX_STREAMS {
            return None;
        }
        self.slots.resize_with(stream + 1, || None);
        i16::try_from(stream).ok()
    }

    fn put(&mut self, frame: &[u8], stream: i16) {
        let at = self.queue.len();
        self.queue.extend_from_slice(frame);
        if let Some(place) = self.queue.get_mut(at..).and_then(|own| own.get_mut(STREAM)) {
            place.copy_from_slice(&stream.to_be_bytes());
        }
        self.put += frame.len() as u64;
    }
}

/// See [`Leg::slots`].
pub(super) struct Slots<'l>(MutexGuard<'l, State>);

impl Slots<'_> {
    /// Who waits for this stream, which is free now.
    pub(super) fn answered(&mut self, stream: i16) -> Option<Slot> {
        let place = usize::try_from(stream).ok()?;
        let slot = self.0.slots.get_mut(place)?.take()?;
        self.0.free.push(stream);
        Some(slot)
    }
}

impl Slot {
    /// Its flow has nothing asked here any more.
    pub(super) fn bars(&self) {
        self.out.0.is_barred.store(true, Relaxed);
    }

    /// An answer, as its client is to get it.
    pub(super) fn addressed(&self, frame: &[u8]) -> Vec<u8> {
        let mut frame = frame.to_vec();
        if let Some(place) = frame.get_mut(STREAM) {
            place.copy_from_slice(&self.stream);
        }
        frame
    }
}
