//! One direction of a flow: bytes are read from one side, decoded, and written to the other.

use std::{
    cell::RefCell,
    future::Future,
    io::{self, ErrorKind},
    os::fd::RawFd,
    pin::{Pin, pin},
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use dataplane::{Leg, Splice};
use flow::{CloseReason, Flow};
use prometheus::IntCounter;
use tokio::{
    task,
    time::{self, Sleep},
};

use super::{
    leg_io::LegIo,
    outbox::{self, Fate, Parcel},
    passing::{Direction, Turn, Verdict},
    read::{CHUNK_BYTES, Reads},
    reader::Reader,
};

/// The most bytes of a direction that are read in one turn of its flow, and less than a chunk more: so long the other flows of
/// the worker wait. By reckoning that is some 0.1 ms where they are copied, and 1 ms where TLS ends on both sides.
const TURN_BYTES: usize = 512 * 1024;

/// The pause before a read is repeated when an end came before bytes that the kernel still has for
/// the agent.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// The number of such repeats after which the bytes count as lost. The kernel's worker brings them
/// within milliseconds.
const MAX_LOOKS: u32 = 5_000;

/// The type `handshake` of a TLS record (RFC 8446 §5.1).
pub(super) const TLS_HANDSHAKE: u8 = 0x16;

thread_local! {
    /// One buffer for all flows of a worker, so that idle flows cost no buffer.
    pub(super) static CHUNK: RefCell<Box<[u8]>> = RefCell::new(vec![0; CHUNK_BYTES].into());
}

/// A direction's state. **Invariant**: `held_back` is empty or nothing is read.
pub(super) struct DirectionPump {
    pub direction: Direction,
    pub held_back: Vec<u8>,
    written: usize,
    /// The number of bytes in front of `held_back` that were counted when they were posted.
    counted: usize,
    /// The bytes before `held_back` that are sent when the worker's turn is over, or were.
    posted: Option<Parcel>,
    /// The leg by which this direction is written, while it is short.
    pub leg: Weak<Leg>,
    /// Set when the kernel may carry this direction.
    pub enrolled: Option<Arc<Splice>>,
    /// The bytes that the agent had read before `enrolled` was set.
    read_before: u64,
    /// Nothing is read before this timer ends: an end is looked at again, or the client is slowed
    /// down.
    again: Option<Pin<Box<Sleep>>>,
    looks: u32,
    /// The bytes that may still be read in this turn of the flow. None are left: the next turn goes on.
    left: usize,
    reads: Reads,
    /// Whether the flow's first byte was that of a TLS handshake record. None: none has come.
    pub begins_with_tls: Option<bool>,
    /// Bytes that the agent itself has read since the flow began.
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub state: State,
    /// The flow's own byte count; `total` is the agent's.
    pub flow: Arc<Flow>,
    total: IntCounter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Open,
    /// The source has ended; the target is told once everything is written.
    Ending,
    Ended,
    /// Framing is lost, or the flow is denied. The flow ends once the good bytes are written.
    Losing(CloseReason),
}

/// The outcome of a read.
enum Came {
    /// Bytes have come, as many as this, to the beginning of the buffer.
    Bytes(usize),
    /// The side has ended.
    End,
    /// Nothing for now. The direction's state says how it goes on.
    Nothing,
}

/// The error that stops a flow.
pub(super) enum Stop {
    /// The error came from reading.
    From(io::Error),
    To(io::Error),
}

/// The close reasons of a side, by the kind of an error.
#[derive(Clone, Copy)]
struct SideReasons {
    reset: CloseReason,
    tls: CloseReason,
    other: CloseReason,
}

const CLIENT_SIDE: SideReasons = SideReasons {
    reset: CloseReason::ClientReset,
    tls: CloseReason::ClientTls,
    other: CloseReason::ClientError,
};
const DATABASE_SIDE: SideReasons = SideReasons {
    reset: CloseReason::DatabaseReset,
    tls: CloseReason::DatabaseTls,
    other: CloseReason::DatabaseError,
};

impl Stop {
    /// Names the close reason of a flow whose bytes travelled in this direction.
    pub(super) fn reason(self, direction: Direction) -> CloseReason {
        let (from, to) = match direction {
            Direction::ToDatabase => (CLIENT_SIDE, DATABASE_SIDE),
            Direction::ToClient => (DATABASE_SIDE, CLIENT_SIDE),
        };
        match self {
            Stop::From(error) => reason_of(&error, from),
            Stop::To(error) => reason_of(&error, to),
        }
    }
}

fn reason_of(error: &io::Error, side: SideReasons) -> CloseReason {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => side.reset,
        ErrorKind::InvalidData => side.tls,
        _ => side.other,
    }
}

/// Has the flow's task run again, once all flows have had a turn for which something has come by then. A task that woke itself
/// would run some sixty times before the runtime looks at its sockets.
pub(super) fn take_another_turn(cx: &mut Context<'_>) {
    let _ = pin!(task::yield_now()).poll(cx);
}

impl DirectionPump {
    pub(super) fn new(direction: Direction, flow: &Arc<Flow>, total: &IntCounter) -> Self {
        Self {
            direction,
            held_back: Vec::new(),
            written: 0,
            counted: 0,
            posted: None,
            leg: Weak::new(),
            enrolled: None,
            read_before: 0,
            again: None,
            looks: 0,
            left: TURN_BYTES,
            reads: Reads::default(),
            begins_with_tls: None,
            read_bytes: 0,
            written_bytes: 0,
            state: State::Open,
            flow: flow.clone(),
            total: total.clone(),
        }
    }

    /// Notes that the kernel may carry this direction from now on.
    pub(super) fn set_enrolled(&mut self, splice: Arc<Splice>) {
        self.read_before = self.read_bytes;
        self.enrolled = Some(splice);
    }

    /// Counts bytes that were read, as the kernel counts them ([`dataplane::AgentMoved`]).
    pub(super) fn read(&self) -> u64 {
        self.read_bytes - self.read_before
    }

    /// Whether both sides may still speak, and everything that was read is written on.
    pub(super) fn is_quiet(&self) -> bool {
        self.state == State::Open && self.held_back.is_empty() && self.is_sent()
    }

    /// Whether the bytes that were posted are in the socket, as far as it takes them now.
    fn is_sent(&self) -> bool {
        self.posted.as_ref().is_none_or(|posted| {
            if !posted.is_sent() {
                outbox::flush();
            }
            posted.is_sent()
        })
    }

    /// Notes that the flow has a turn, in which as many bytes may be read as in any.
    pub(super) fn begin_turn(&mut self) {
        self.left = TURN_BYTES;
    }

    /// Whether as many bytes were read as may be in one turn, so that others may be there.
    pub(super) fn is_cut_short(&self) -> bool {
        self.left == 0
    }

    /// Moves the bytes that can be moved in this turn, a chunk at a time through `buffer`: each is read, shown to
    /// the reader, and written on. Ready when the direction has ended.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        from: &mut LegIo<'_>,
        to: &mut LegIo<'_>,
        reader: &mut Reader,
    ) -> Poll<Result<(), Stop>> {
        loop {
            ready!(self.poll_flush(cx, to))?;
            if let Some(again) = &mut self.again {
                ready!(again.as_mut().poll(cx));
                self.again = None;
            }
            match self.state {
                State::Open => {}
                State::Ending => {
                    ready!(to.poll_end(cx));
                    self.state = State::Ended;
                    continue;
                }
                State::Ended | State::Losing(_) => return Poll::Ready(Ok(())),
            }
            let (verdict, bytes) = match reader.turn(self.direction) {
                Turn::Read(_) if self.is_cut_short() => {
                    take_another_turn(cx);
                    return Poll::Pending;
                }
                Turn::Read(most) => {
                    let before = self.read();
                    let most = buffer.len().min(most.get());
                    let buffer = buffer.get_mut(..most).unwrap_or_default();
                    match ready!(self.poll_read(cx, buffer, from))? {
                        Came::Bytes(n) => {
                            let bytes = buffer.get(..n).unwrap_or_default();
                            (reader.chunk(self.direction, before, bytes), bytes)
                        }
                        Came::End => {
                            reader.let_out();
                            let rest = reader.end(self.direction);
                            self.state = State::Ending;
                            (Verdict::these(rest), &[][..])
                        }
                        Came::Nothing => continue,
                    }
                }
                Turn::Pass(verdict) => (verdict, &[][..]),
                Turn::Rest(pause) => {
                    self.again = Some(Box::pin(time::sleep(pause)));
                    continue;
                }
                Turn::Wait => return Poll::Pending,
            };
            if let Some(reason) = verdict.close {
                self.state = State::Losing(reason);
            }
            // Of a flow that is not read the kernel may take over whenever nothing is under way.
            let waker = (!reader.is_off()).then(|| cx.waker());
            self.forward(verdict.passing.of(bytes), to, waker)?;
            outbox::flush_late();
        }
    }

    /// Writes the bytes that were posted, now, and those that were held back.
    pub(super) fn poll_flush_now(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut LegIo<'_>,
    ) -> Poll<Result<(), Stop>> {
        outbox::flush();
        self.poll_flush(cx, to)
    }

    /// Notes what has become of the bytes that were posted.
    fn take_fate(&mut self, to: &LegIo<'_>) -> Result<(), Stop> {
        let Some(posted) = self.posted.take() else {
            return Ok(());
        };
        let is_last = !self.held_back.is_empty() || self.state != State::Open;
        if is_last || to.plain_socket().is_none() {
            outbox::flush();
        }
        match posted.fate() {
            Fate::Queued(posted) => self.posted = Some(posted),
            Fate::Sent => {}
            Fate::Left(mut left) => {
                self.counted = left.len();
                left.append(&mut self.held_back);
                self.held_back = left;
            }
            Fate::Failed(error) => return Err(Stop::To(error)),
        }
        Ok(())
    }

    /// Writes the bytes that were held back.
    pub(super) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut LegIo<'_>,
    ) -> Poll<Result<(), Stop>> {
        self.take_fate(to)?;
        if self.held_back.is_empty() {
            return to.poll_flush(cx).map_err(Stop::To);
        }
        while let Some(rest) = self.held_back.get(self.written..).filter(|r| !r.is_empty()) {
            ready!(to.poll_write_ready(cx)).map_err(Stop::To)?;
            match self.write(to, rest) {
                Ok(n) => {
                    self.written += n;
                    self.count(n.saturating_sub(self.counted));
                    self.counted = self.counted.saturating_sub(n);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(Stop::To(e))),
            }
        }
        // The memory of a burst is not kept for the rest of the flow's life.
        self.held_back = Vec::new();
        self.written = 0;
        to.poll_flush(cx).map_err(Stop::To)
    }

    /// Reads the bytes that there are, one buffer full at most.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        from: &mut LegIo<'_>,
    ) -> Poll<Result<Came, Stop>> {
        let n = match ready!(from.poll_read(cx, buffer, &mut self.reads)) {
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Poll::Ready(Ok(Came::Nothing)),
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                self.state = State::Losing(match self.direction {
                    Direction::ToDatabase => CloseReason::ClientTruncated,
                    Direction::ToClient => CloseReason::DatabaseTruncated,
                });
                return Poll::Ready(Ok(Came::Nothing));
            }
            Err(e) => return Poll::Ready(Err(Stop::From(e))),
        };
        if n > 0 {
            let is_tls = buffer.first() == Some(&TLS_HANDSHAKE);
            self.begins_with_tls.get_or_insert(is_tls);
            self.read_bytes += n as u64;
            self.left = self.left.saturating_sub(n);
            return Poll::Ready(Ok(Came::Bytes(n)));
        }
        if !self.is_behind() {
            return Poll::Ready(Ok(Came::End));
        }
        self.looks += 1;
        if self.looks > MAX_LOOKS {
            let lost = io::Error::other("the kernel lost what it had for the agent");
            return Poll::Ready(Err(Stop::From(lost)));
        }
        self.again = Some(Box::pin(time::sleep(LOOK_AGAIN)));
        Poll::Ready(Ok(Came::Nothing))
    }

    /// Whether the kernel has bytes for the agent that the agent has not read. Where the kernel had
    /// no memory for them at once, its worker brings them, and the end may come before them.
    fn is_behind(&self) -> bool {
        let Some(splice) = &self.enrolled else {
            return false;
        };
        let passed = splice.moved().map(|moved| moved.passed);
        passed.is_ok_and(|passed| passed > self.read())
    }

    /// Writes bytes on, or posts them if there is a waker.
    fn forward(
        &mut self,
        bytes: &[u8],
        to: &mut LegIo<'_>,
        waker: Option<&Waker>,
    ) -> Result<(), Stop> {
        if bytes.is_empty() {
            return Ok(());
        }
        if let (Some(waker), Some(socket)) = (waker, to.plain_socket())
            && self.post(bytes, socket, waker)
        {
            self.count(bytes.len());
            return Ok(());
        }
        if !self.is_sent() {
            self.held_back.extend_from_slice(bytes);
            return Ok(());
        }
        let written = match self.write(to, bytes) {
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => 0,
            Err(e) => return Err(Stop::To(e)),
        };
        self.count(written);
        if let Some(rest) = bytes.get(written..).filter(|r| !r.is_empty()) {
            self.held_back.extend_from_slice(rest);
        }
        Ok(())
    }

    /// Posts bytes behind those that were posted before. False: they are to be written, if those are sent.
    fn post(&mut self, bytes: &[u8], socket: RawFd, waker: &Waker) -> bool {
        if self.posted.as_ref().is_some_and(|p| p.append(bytes)) {
            return true;
        }
        if !self.is_sent() {
            return false;
        }
        self.posted = outbox::post(socket, bytes, waker);
        self.posted.is_some()
    }

    /// Writes as many bytes as can be written.
    fn write(&self, to: &mut LegIo<'_>, bytes: &[u8]) -> io::Result<usize> {
        match self.leg.upgrade() {
            Some(leg) => leg.write(|| to.try_write(bytes)),
            None => to.try_write(bytes),
        }
    }

    fn count(&mut self, bytes: usize) {
        self.written_bytes += bytes as u64;
        self.add(bytes as u64);
    }

    pub(super) fn add(&self, bytes: u64) {
        match self.direction {
            Direction::ToDatabase => self.flow.to_database.fetch_add(bytes, Relaxed),
            Direction::ToClient => self.flow.to_client.fetch_add(bytes, Relaxed),
        };
        self.total.inc_by(bytes);
    }
}

#[cfg(test)]
#[path = "direction_pump_tests.rs"]
mod tests;
