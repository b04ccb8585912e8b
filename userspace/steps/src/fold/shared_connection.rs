//! A shared connection (connection multiplexing), as the flows on it see it: the queue of frames,
//! and the request that waits for each stream.
//!
//! Flows put frames one behind another into a queue, each under a stream of the connection's own.
//! The task that owns the connection ([`task`](super::task)) takes all of it at once.
//! There is one lock, held for a copy.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU8, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    task::Waker,
    thread::{self, ThreadId},
};

use cql_edit::{Resolution, Ticket};
use parking_lot::{Mutex, MutexGuard};

/// The most requests out at the same time; more go by their flows' own connections. A driver has as
/// many out on one connection.
pub(super) const MAX_STREAMS: usize = 1_024;

/// The most bytes that wait to be written.
const MAX_QUEUE_BYTES: usize = 4 << 20;

/// The bytes of memory that are kept of a queue that was once longer.
const KEPT_BYTES: usize = 256 << 10;

/// The stream of the connection's own requests; those of flows are above it.
pub(super) const OWN_STREAM: i16 = 0;

/// The position of the stream in a frame.
const STREAM: std::ops::Range<usize> = 2..4;

const BEGINS: u8 = 0;
const OPEN: u8 = 1;
const GONE: u8 = 2;

/// The flows' side of a shared connection.
pub(super) struct SharedConnection {
    phase: AtomicU8,
    was_open: AtomicBool,
    /// The thread on which the connection's task runs.
    pub(super) thread: ThreadId,
    state: Mutex<State>,
}

struct State {
    queue: Vec<u8>,
    /// Bytes that were ever put into the queue; `taken` counts those taken out of it.
    put: u64,
    taken: u64,
    /// The requests by stream, from stream 1 on.
    slots: Vec<Option<Slot>>,
    free: Vec<i16>,
    waker: Option<Waker>,
    /// Set when no flow uses the connection any more.
    unused: bool,
}

/// A request that is out on a shared connection.
pub(super) struct Slot {
    pub(super) ticket: Ticket,
    /// The client's own stream.
    stream: [u8; 2],
    /// Whether the request is a read, which can be asked again.
    pub(super) is_read: bool,
    /// The request's position among all bytes that were put.
    at: u64,
    out: Out,
}

/// The shared state of one flow's requests.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// The number of the flow's requests that are out.
    pub(super) out: AtomicUsize,
    /// Set when the database did not understand a request of the flow. The database may end a
    /// connection that has several of those.
    pub(super) is_barred: AtomicBool,
}

/// A request's part in its flow's count. Dropping it takes the request out of the count.
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

/// The outcome of looking for bytes to write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Queued {
    Taken,
    Nothing,
    /// Nothing, and no bytes will come any more.
    Unused,
}

impl fmt::Debug for SharedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut connection = f.debug_struct("SharedConnection");
        connection
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

impl SharedConnection {
    /// Makes a connection that begins on this thread.
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

    /// Whether the connection takes requests.
    pub(super) fn is_open(&self) -> bool {
        self.phase.load(Acquire) == OPEN
    }

    pub(super) fn is_gone(&self) -> bool {
        self.phase.load(Acquire) == GONE
    }

    /// Whether the connection has ever taken requests.
    pub(super) fn was_open(&self) -> bool {
        self.was_open.load(Acquire)
    }

    pub(super) fn opens(&self) {
        self.was_open.store(true, Release);
        self.phase.store(OPEN, Release);
    }

    /// Notes that no flow uses the connection any more. It ends with the last answer that somebody
    /// waits for.
    pub(super) fn mark_unused(&self) {
        let mut state = self.lock();
        state.unused = true;
        let waker = state.waker.take();
        drop(state);
        waker.inspect(Waker::wake_by_ref);
    }

    /// Sends this frame. False: that is not possible, and the request goes on by its flow's own
    /// connection.
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

    /// Queues a request of the task's own, on [`OWN_STREAM`].
    pub(super) fn asks_itself(&self, frame: &[u8]) {
        self.lock().put(frame, OWN_STREAM);
    }

    /// Takes the bytes to write, if `to` is empty. The task is woken when there are more.
    pub(super) fn take(&self, to: &mut Vec<u8>, waker: &Waker) -> Queued {
        let mut state = self.lock();
        // A flow may have left the pool and still wait for an answer.
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

    /// Whether a request waits for an answer.
    pub(super) fn is_busy(&self) -> bool {
        let state = self.lock();
        state.free.len() < state.slots.len().saturating_sub(1)
    }

    /// Locks the slots, to look up several of them.
    pub(super) fn slots(&self) -> Slots<'_> {
        Slots(self.lock())
    }

    /// Ends the connection. Requests that the database cannot have got go on by their flows' own
    /// connections; the flows of all other requests are lost with it.
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
        self.state.lock()
    }
}

impl State {
    /// Finds a free stream for a frame of this size.
    fn slot_for(&mut self, bytes: usize) -> Option<i16> {
        if self.queue.len() + bytes > MAX_QUEUE_BYTES {
            return None;
        }
        if let Some(stream) = self.free.pop() {
            return Some(stream);
        }
        // There are as many slots as requests were ever out at once.
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

/// The locked slots. See [`SharedConnection::slots`].
pub(super) struct Slots<'l>(MutexGuard<'l, State>);

impl Slots<'_> {
    /// Takes the request that waits for this stream, which is free now.
    pub(super) fn answered(&mut self, stream: i16) -> Option<Slot> {
        let place = usize::try_from(stream).ok()?;
        let slot = self.0.slots.get_mut(place)?.take()?;
        self.0.free.push(stream);
        Some(slot)
    }
}

impl Slot {
    /// Bars the flow from shared connections.
    pub(super) fn bars(&self) {
        self.out.0.is_barred.store(true, Relaxed);
    }

    /// Addresses an answer to the client's own stream.
    pub(super) fn addressed(&self, frame: &[u8]) -> Vec<u8> {
        let mut frame = frame.to_vec();
        if let Some(place) = frame.get_mut(STREAM) {
            place.copy_from_slice(&self.stream);
        }
        frame
    }
}
