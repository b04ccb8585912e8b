//! The outbox: what the flows of a worker send in one turn, in one system call.
//!
//! A worker runs the tasks of all flows for which something has come, and then waits. What they have to send is posted
//! here, and goes out together before the worker waits: a receiver that is woken wants the processor, and would take it
//! after each `send` ([`SendRing`]).
//!
//! **Invariants**: bytes of a socket are sent in the order in which they were posted, and before any that are written
//! past the outbox; whoever writes past it, or closes a socket, empties it first. A parcel that is dropped is not sent, so
//! that no socket is written to that is a stranger's by now.

use std::{
    cell::RefCell,
    io::{self, ErrorKind},
    os::fd::RawFd,
    task::Waker,
    time::{Duration, Instant},
};

use dataplane::{SendRing, Sending};
use nix::sys::socket::{self, MsgFlags};
use prometheus::IntCounter;
use telemetry::SendMetrics;

/// The most bytes that wait for one socket. More are a transfer of which each piece is worth a call of its own.
const MOST_BYTES: usize = 16 * 1024;
/// So long a parcel waits at most while the worker has other flows to turn to: what a turn of some fifty flows takes.
pub(super) const LONGEST: Duration = Duration::from_micros(250);
/// The room that an empty parcel keeps for the next one.
const KEPT_BYTES: usize = 4 * 1024;
/// The most empty parcels that are kept.
const MOST_SPARE: usize = SendRing::MOST;

thread_local! {
    /// None: this thread is no worker that has a ring.
    static OUTBOX: RefCell<Option<Outbox>> = const { RefCell::new(None) };
}

/// The rings of all workers. A worker without one sends by itself what a flow has to send.
pub struct SendRings {
    rings: Vec<Option<SendRing>>,
    metrics: SendMetrics,
}

impl SendRings {
    /// Makes a ring for each of so many workers. To be called before system calls are filtered.
    pub fn make(workers: usize, metrics: SendMetrics) -> Self {
        let ring = |worker| {
            new_ring()
                .inspect_err(|error| {
                    tracing::info!(worker, %error, "no io_uring: each flow's bytes are sent by a call of their own");
                })
                .ok()
        };
        let rings: Vec<_> = (0..workers).map(ring).collect();
        metrics.rings.set(rings.iter().flatten().count() as i64);
        Self { rings, metrics }
    }

    /// The ring of each worker, as the worker's thread is to [install](install) it.
    pub(super) fn each(self) -> impl Iterator<Item = Option<Outbox>> {
        let metrics = self.metrics;
        self.rings.into_iter().map(move |ring| {
            Some(Outbox {
                ring: ring?,
                places: Vec::new(),
                free: Vec::new(),
                queue: Vec::new(),
                since: None,
                spare: Vec::new(),
                metrics: metrics.clone(),
            })
        })
    }
}

/// Makes a ring, unless a test wants none.
fn new_ring() -> io::Result<SendRing> {
    match test_hooks::get().off("send_ring") {
        Some(reason) => Err(io::Error::other(reason)),
        None => SendRing::new(),
    }
}

/// The bytes that one worker has to send.
pub(super) struct Outbox {
    ring: SendRing,
    places: Vec<Place>,
    /// Places that nobody has.
    free: Vec<usize>,
    /// Places in the order in which they were posted.
    queue: Vec<usize>,
    /// When the first of these was posted.
    since: Option<Instant>,
    /// Empty, with room.
    spare: Vec<Vec<u8>>,
    metrics: SendMetrics,
}

/// The state of a parcel.
enum Place {
    Free,
    Queued {
        socket: RawFd,
        bytes: Vec<u8>,
        waker: Waker,
    },
    Sent,
    /// The socket has not taken these.
    Left(Vec<u8>),
    Failed(io::Error),
}

/// Bytes that were posted, until somebody has seen what became of them.
#[derive(Debug)]
pub(super) struct Parcel {
    place: usize,
}

/// The fate of a parcel.
#[derive(Debug)]
pub(super) enum Fate {
    /// The parcel waits.
    Queued(Parcel),
    Sent,
    /// The socket had no room for these, which are the last ones, or no memory.
    Left(Vec<u8>),
    Failed(io::Error),
}

/// Makes this thread's flows post what they send.
pub(super) fn install(outbox: Option<Outbox>) {
    OUTBOX.set(outbox);
}

/// Posts bytes. The waker is told if they are not sent as a whole. None: they are to be written by the caller, for there is
/// no outbox, or they are too many; nothing is in the outbox then.
pub(super) fn post(socket: RawFd, bytes: &[u8], waker: &Waker) -> Option<Parcel> {
    if bytes.len() > MOST_BYTES {
        flush();
        return None;
    }
    let (place, is_full) = OUTBOX.with_borrow_mut(|outbox| {
        let outbox = outbox.as_mut()?;
        let place = outbox.post(socket, bytes, waker);
        Some((
            place,
            outbox.queue.len() >= SendRing::MOST || outbox.is_late(),
        ))
    })?;
    if is_full {
        flush();
    }
    Some(Parcel { place })
}

/// Sends what was posted.
pub(super) fn flush() {
    let woken = OUTBOX.with_borrow_mut(|outbox| outbox.as_mut().map(Outbox::flush));
    woken.into_iter().flatten().for_each(Waker::wake);
}

/// Sends what has waited for long. To be called as a flow's turn begins and after each chunk: a worker that has always something
/// to do never waits, and a turn may be of many chunks.
pub(super) fn flush_late() {
    let is_late = OUTBOX.with_borrow(|outbox| outbox.as_ref().is_some_and(Outbox::is_late));
    if is_late {
        flush();
    }
}

impl Parcel {
    /// Posts more bytes for the same socket. False: there is no room, or the parcel is on its way.
    pub(super) fn append(&self, more: &[u8]) -> bool {
        OUTBOX.with_borrow_mut(|outbox| {
            match outbox.as_mut().and_then(|o| o.places.get_mut(self.place)) {
                Some(Place::Queued { bytes, .. }) if bytes.len() + more.len() <= MOST_BYTES => {
                    bytes.extend_from_slice(more);
                    true
                }
                _ => false,
            }
        })
    }

    /// Whether all was sent.
    pub(super) fn is_sent(&self) -> bool {
        OUTBOX.with_borrow(|outbox| {
            let place = outbox.as_ref().and_then(|o| o.places.get(self.place));
            matches!(place, Some(Place::Sent))
        })
    }

    /// Answers what has become of it.
    pub(super) fn fate(self) -> Fate {
        let fate = OUTBOX.with_borrow_mut(|outbox| {
            let place = outbox.as_mut()?.places.get_mut(self.place)?;
            match place {
                Place::Queued { .. } => None,
                Place::Free | Place::Sent => Some(Fate::Sent),
                Place::Left(bytes) => Some(Fate::Left(std::mem::take(bytes))),
                Place::Failed(error) => {
                    let kind = error.kind();
                    Some(Fate::Failed(std::mem::replace(error, kind.into())))
                }
            }
        });
        match fate {
            None => Fate::Queued(self),
            Some(fate) => fate,
        }
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        // As a thread ends, the outbox may be gone.
        _ = OUTBOX.try_with(|outbox| {
            if let Ok(mut outbox) = outbox.try_borrow_mut()
                && let Some(outbox) = outbox.as_mut()
            {
                outbox.give_back(self.place);
            }
        });
    }
}

impl Outbox {
    fn post(&mut self, socket: RawFd, posted: &[u8], waker: &Waker) -> usize {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.extend_from_slice(posted);
        let queued = Place::Queued {
            socket,
            bytes,
            waker: waker.clone(),
        };
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.places.push(Place::Free);
                self.places.len() - 1
            }
        };
        if let Some(free) = self.places.get_mut(place) {
            *free = queued;
        }
        self.queue.push(place);
        self.since.get_or_insert_with(Instant::now);
        place
    }

    fn is_late(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() > LONGEST)
    }

    /// Sends what is queued. Returns who is to be told that not all of his was sent.
    fn flush(&mut self) -> Vec<Waker> {
        if self.queue.is_empty() {
            return Vec::new();
        }
        self.since = None;
        let mut queued = Vec::with_capacity(self.queue.len());
        for place in std::mem::take(&mut self.queue) {
            let Some(state) = self.places.get_mut(place) else {
                continue;
            };
            // Others were dropped.
            if let Place::Queued { .. } = state
                && let Place::Queued {
                    socket,
                    bytes,
                    waker,
                } = std::mem::replace(state, Place::Sent)
            {
                queued.push((place, socket, bytes, waker));
            }
        }
        let mut sends: Vec<_> = queued
            .iter()
            .map(|(_, socket, bytes, _)| Sending {
                socket: *socket,
                bytes,
                sent: None,
            })
            .collect();
        self.send(&mut sends);
        let sent: Vec<_> = sends.into_iter().map(|send| send.sent).collect();
        let mut woken = Vec::new();
        for ((place, _, mut bytes, waker), sent) in queued.into_iter().zip(sent) {
            let state = match sent {
                Some(Ok(n)) if n >= bytes.len() => {
                    self.keep(bytes);
                    continue;
                }
                Some(Ok(n)) => {
                    bytes.drain(..n);
                    Place::Left(bytes)
                }
                Some(Err(error)) if !is_to_be_repeated(&error) => Place::Failed(error),
                Some(Err(_)) | None => Place::Left(bytes),
            };
            if let Some(place) = self.places.get_mut(place) {
                *place = state;
            }
            woken.push(waker);
        }
        woken
    }

    /// A lone send is no less dear in a ring than by itself.
    fn send(&mut self, sends: &mut [Sending<'_>]) {
        let count = |counter: &IntCounter, n: usize| counter.inc_by(n as u64);
        if let [send] = sends {
            count(&self.metrics.alone, 1);
            return send_alone(send);
        }
        let sent = self.ring.send(sends);
        if let Err(error) = &sent {
            tracing::debug!(%error, "a worker's sends are made one by one");
        }
        let left = sends.iter_mut().filter(|send| send.sent.is_none());
        let alone = left.map(send_alone).count();
        count(&self.metrics.alone, alone);
        count(&self.metrics.together, sends.len() - alone);
    }

    fn keep(&mut self, mut bytes: Vec<u8>) {
        if self.spare.len() < MOST_SPARE && bytes.capacity() <= KEPT_BYTES {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    fn give_back(&mut self, place: usize) {
        if let Some(state) = self.places.get_mut(place) {
            *state = Place::Free;
            self.free.push(place);
        }
    }
}

/// Whether a send that was refused with this error is to be made again, by whoever posted it: when there is room, or by TCP
/// ([`dataplane::Leg::write`]).
fn is_to_be_repeated(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::OutOfMemory)
}

fn send_alone(send: &mut Sending<'_>) {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let sent = socket::send(send.socket, send.bytes, flags);
    send.sent = Some(sent.map_err(io::Error::from));
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read as _,
        os::{fd::AsRawFd as _, unix::net::UnixStream},
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
        task::Wake,
    };

    use prometheus::Registry;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    struct Desk {
        woken: Arc<Woken>,
        metrics: SendMetrics,
    }

    impl Desk {
        fn open() -> Self {
            let metrics = SendMetrics::register(&Registry::new()).unwrap();
            install(SendRings::make(1, metrics.clone()).each().next().unwrap());
            Self {
                woken: Arc::default(),
                metrics,
            }
        }

        fn post(&self, to: &UnixStream, bytes: &[u8]) -> Parcel {
            post(to.as_raw_fd(), bytes, &self.woken.clone().into()).unwrap()
        }

        fn woken(&self) -> usize {
            self.woken.0.load(Relaxed)
        }
    }

    fn pair() -> (UnixStream, UnixStream) {
        let (from, to) = UnixStream::pair().unwrap();
        from.set_nonblocking(true).unwrap();
        to.set_nonblocking(true).unwrap();
        (from, to)
    }

    fn came(mut to: &UnixStream) -> Vec<u8> {
        let mut came = Vec::new();
        _ = to.read_to_end(&mut came);
        came
    }

    #[test]
    fn what_is_posted_goes_out_together_and_in_order() {
        let desk = Desk::open();
        let (a, b) = (pair(), pair());
        let (first, second) = (desk.post(&a.0, b"ab"), desk.post(&b.0, b"x"));
        assert!(first.append(b"cd"));
        assert!(came(&a.1).is_empty() && !first.is_sent());
        let Fate::Queued(first) = first.fate() else {
            panic!("sent too soon")
        };
        flush();
        assert_eq!((came(&a.1), came(&b.1)), (b"abcd".to_vec(), b"x".to_vec()));
        assert!(first.is_sent() && !first.append(b"e"));
        assert!(matches!(
            (first.fate(), second.fate()),
            (Fate::Sent, Fate::Sent)
        ));
        assert_eq!(
            (
                desk.metrics.together.get(),
                desk.metrics.alone.get(),
                desk.woken()
            ),
            (2, 0, 0)
        );
        drop(desk.post(&a.0, b"f"));
        let last = desk.post(&a.0, b"g");
        flush();
        assert_eq!(came(&a.1), b"g", "what is dropped is not sent");
        assert!(last.is_sent());
        assert_eq!(desk.metrics.alone.get(), 1);
    }

    #[test]
    fn who_cannot_be_sent_all_is_told() {
        let desk = Desk::open();
        let (a, b, gone) = (pair(), pair(), pair());
        let much: Vec<u8> = (0..MOST_BYTES).map(|n| n as u8).collect();
        let mut parcels = Vec::new();
        let mut expected = Vec::new();
        // Until the socket is full.
        while desk.woken() == 0 {
            parcels = vec![desk.post(&a.0, &much), desk.post(&b.0, b"x")];
            expected.extend_from_slice(&much);
            flush();
        }
        let left = parcels.swap_remove(0).fate();
        let Fate::Left(left) = left else {
            panic!("{left:?}")
        };
        let mut came = came(&a.1);
        came.extend(left);
        assert!(came == expected);
        drop(gone.1);
        let parcels = [desk.post(&gone.0, b"x"), desk.post(&a.0, b"y")];
        flush();
        let [failed, sent] = parcels.map(Parcel::fate);
        assert!(matches!(failed, Fate::Failed(error) if error.kind() == ErrorKind::BrokenPipe));
        assert!(matches!(sent, Fate::Sent));
        assert_eq!(desk.woken(), 2);
    }

    #[test]
    fn a_full_outbox_is_emptied_and_places_are_used_again() {
        let desk = Desk::open();
        let to = pair();
        for _ in 0..3 {
            let parcels: Vec<_> = (0..SendRing::MOST)
                .map(|_| desk.post(&to.0, b"x"))
                .collect();
            assert!(parcels.iter().all(Parcel::is_sent));
        }
        let places = OUTBOX.with_borrow(|outbox| outbox.as_ref().unwrap().places.len());
        assert_eq!(places, SendRing::MOST);
        assert_eq!(came(&to.1).len(), 3 * SendRing::MOST);
        let first = desk.post(&to.0, b"a");
        assert!(
            post(
                to.0.as_raw_fd(),
                &[0; MOST_BYTES + 1],
                &desk.woken.clone().into()
            )
            .is_none()
        );
        assert!(first.is_sent(), "before what is written past it");
    }

    #[test]
    fn nothing_waits_for_long_while_there_is_other_work() {
        let desk = Desk::open();
        let (a, b) = (pair(), pair());
        let first = desk.post(&a.0, b"a");
        std::thread::sleep(LONGEST);
        assert!(!first.is_sent());
        flush_late();
        assert!(first.is_sent());
        let second = desk.post(&a.0, b"b");
        std::thread::sleep(LONGEST);
        let third = desk.post(&b.0, b"c");
        assert!(second.is_sent() && third.is_sent());
    }

    #[test]
    fn without_an_outbox_nothing_is_posted() {
        install(None);
        let to = pair();
        assert!(post(to.0.as_raw_fd(), b"x", Waker::noop()).is_none());
        flush();
    }
}
