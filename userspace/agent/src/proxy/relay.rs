//! Moves a flow's bytes both ways, in one task.
//!
//! A chunk is read into the worker's buffer, decoded there and written on at once; only what
//! the other side does not take stays with the flow, and until it has gone nothing more is
//! read from the side that it came from: a peer that does not read stops its counterpart
//! through TCP's own window.

use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    io::{self, ErrorKind},
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, ready},
    time::Duration,
};

use dataplane::{Position, Splice};
use prometheus::IntCounter;
use socket2::SockRef;
use tokio::{
    io::Interest,
    net::TcpStream,
    time::{self, Sleep},
};

use super::{
    close::{
        self, BOTH_ENDED, CLIENT_ERROR, CLIENT_RESET, DATABASE_ERROR, DATABASE_RESET, DENIED,
        SPLICE_FAILED,
    },
    decode::{Chunk, Decoder, Turn, Way},
    intake::Entered,
    marked,
    read::read,
    splice::{self, Drain, Ride},
};
use crate::{flows::Flow, metrics::Metrics};

/// When an end came before bytes that the kernel has for us.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// `handshake`, the type of a TLS record (RFC 8446 §5.1).
const TLS_HANDSHAKE: u8 = 0x16;

/// Read at most this much at a time: large frames in few system calls. What one direction of
/// a flow can hold back is at most this, too.
pub(super) const CHUNK_BYTES: usize = 64 * 1024;

thread_local! {
    /// One for all flows of a worker: idle flows cost no buffer.
    static CHUNK: RefCell<Box<[u8]>> = RefCell::new(vec![0; CHUNK_BYTES].into());
}

/// Carries a flow to its end.
pub(super) async fn carry(client: TcpStream, database: TcpStream, mut entered: Box<Entered>) {
    let question = entered.question.take();
    let (shared, flow) = (&entered.shared, &entered.flow);
    let decoder = Box::new(Decoder::new(shared, flow, question));
    let mut relay = Relay::new(Some(decoder), flow, &shared.metrics);
    flow.mailbox
        .read_by(&poll_fn(|cx| Poll::Ready(cx.waker().clone())).await);
    let way = splice::Way::Shared(shared.clone());
    let mut ride = Ride::new(way, entered.cookie(), flow, &shared.metrics);
    let (reason, database) = to_the_end(&mut relay, &mut ride, &client, database).await;
    ride.count(&relay);
    close::flow(&entered.flow, &entered.shared.metrics, reason);
    close::sockets(reason, client, database).await;
}

/// Relays and rides in turns. Gives the reason of the end, and the dialled socket unless the
/// splice lost it.
pub(super) async fn to_the_end(
    relay: &mut Relay,
    ride: &mut Ride,
    client: &TcpStream,
    mut database: TcpStream,
) -> (&'static str, Option<TcpStream>) {
    loop {
        let torn = splice::torn(relay.down.enrolled.clone());
        let moving = poll_fn(|cx| relay.poll(cx, client, &database, ride));
        let stop = tokio::select! {
            biased;
            stop = moving => stop,
            // Nobody reads from the client while the database does not take what it sent; it can
            // leave all the same, and then its place is free. (A database that resets is noticed
            // when the client has taken what it sent before.)
            _ = client.ready(Interest::ERROR) => Pause::Ended(CLIENT_RESET),
            () = torn => Pause::Ended(SPLICE_FAILED),
        };
        match stop {
            Pause::Ended(reason) => return (reason, Some(database)),
            Pause::Letter => {
                if let Some(reason) = marked::obey(&relay.up.flow, relay.decoder.as_deref_mut()) {
                    return (reason, Some(database));
                }
            }
            Pause::Idle => match ride.along(relay, client, database).await {
                Ok(back) => database = back,
                Err(ended) => return ended,
            },
        }
    }
}

/// Why the relay stops moving bytes.
pub(super) enum Pause {
    /// The flow has ended, for this reason.
    Ended(&'static str),
    /// Nothing is under way, and nobody needs to see what comes: the kernel may carry it.
    Idle,
    /// A mark asks something of the flow.
    Letter,
}

pub(super) struct Relay {
    /// None where nobody needs to see the bytes; then it takes no room.
    decoder: Option<Box<Decoder>>,
    up: Direction,
    down: Direction,
    /// Which one is polled first: in turn, so that a burst one way leaves the other its
    /// share of the task's budget.
    down_first: bool,
    /// Redirected bytes are on their way to the client: nothing may be written to it until the
    /// kernel says that they are in its stream.
    drain: Option<Drain>,
}

/// A direction's state. **Invariant**: `held_back` is empty or nothing is read.
struct Direction {
    way: Way,
    held_back: Vec<u8>,
    written: usize,
    /// The kernel may carry this direction.
    enrolled: Option<Arc<Splice>>,
    /// What was read before that.
    read_before: u64,
    /// An end that is looked at again.
    again: Option<Pin<Box<Sleep>>>,
    /// A TLS record was the first that came.
    is_tls: bool,
    /// Since the flow began, by the agent itself.
    read_bytes: u64,
    written_bytes: u64,
    state: State,
    /// The flow's own count, and the agent's.
    flow: Arc<Flow>,
    total: IntCounter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The source has ended; the target is told once everything is written.
    Ending,
    Ended,
    /// Framing is lost, or the flow denied; it ends once what was good is written.
    Losing(&'static str),
}

/// The reason when reading from the database fails.
pub(super) fn database_failed(error: &io::Error) -> &'static str {
    reason_of(error, DATABASE_SIDE)
}

fn reason_of(error: &io::Error, (reset, other): Side) -> &'static str {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => reset,
        _ => other,
    }
}

/// What stops a flow.
enum Stop {
    /// Reading from, or writing to, this side.
    From(io::Error),
    To(io::Error),
}

impl Relay {
    pub(super) fn new(decoder: Option<Box<Decoder>>, flow: &Arc<Flow>, metrics: &Metrics) -> Self {
        let direction = |way, total: &IntCounter| Direction {
            way,
            held_back: Vec::new(),
            written: 0,
            enrolled: None,
            read_before: 0,
            again: None,
            is_tls: false,
            read_bytes: 0,
            written_bytes: 0,
            state: State::Open,
            flow: flow.clone(),
            total: total.clone(),
        };
        Self {
            decoder,
            up: direction(Way::ToDatabase, &metrics.bytes_to_database),
            down: direction(Way::ToClient, &metrics.bytes_to_client),
            down_first: false,
            drain: None,
        }
    }

    /// Ready when the flow has ended, or the kernel may carry it.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        client: &TcpStream,
        database: &TcpStream,
        ride: &mut Ride,
    ) -> Poll<Pause> {
        if self.up.flow.mailbox.is_full() {
            return Poll::Ready(Pause::Letter);
        }
        if let Some(drain) = &mut self.drain {
            match drain.poll(cx, ride) {
                Poll::Ready(Ok(())) => self.drain = None,
                Poll::Ready(Err(reason)) => return Poll::Ready(Pause::Ended(reason)),
                Poll::Pending => {}
            }
        }
        if let Poll::Ready(reason) = self.poll_ways(cx, client, database) {
            return Poll::Ready(Pause::Ended(reason));
        }
        if self.is_idle() && ride.poll_wanted(cx).is_ready() {
            return Poll::Ready(Pause::Idle);
        }
        Poll::Pending
    }

    /// Everything that was read is written on, both sides may still speak, and the decoder has
    /// nothing more to learn.
    fn is_idle(&self) -> bool {
        let rests = |d: &Direction| d.state == State::Open && d.held_back.is_empty();
        self.decoder.is_none() && self.drain.is_none() && rests(&self.up) && rests(&self.down)
    }

    /// Moves what the client has sent, and nothing else.
    pub(super) fn poll_up(
        &mut self,
        cx: &mut Context<'_>,
        client: &TcpStream,
        database: &TcpStream,
    ) -> Poll<Result<(), &'static str>> {
        self.poll_way(cx, Way::ToDatabase, client, database)
    }

    /// Nothing of the client's is held back, and it may still speak.
    pub(super) fn up_rests(&self) -> bool {
        self.up.state == State::Open && self.up.held_back.is_empty()
    }

    /// From now on the kernel may carry it.
    pub(super) fn is_enrolled(&mut self, splice: Arc<Splice>) {
        self.down.read_before = self.down.read_bytes;
        self.down.enrolled = Some(splice);
    }

    /// Whether the client began as TLS does.
    pub(super) fn is_tls(&self) -> bool {
        self.up.is_tls
    }

    /// What the agent has read and written itself, since the flow began.
    pub(super) fn position(&self) -> Position {
        Position {
            from_client: self.up.read_bytes,
            from_database: self.down.read_bytes,
            to_client: self.down.written_bytes,
        }
    }

    /// Adds bytes that the kernel has carried.
    pub(super) fn carried(&self, up: u64, down: u64) {
        self.up.add(up);
        self.down.add(down);
    }

    /// Nothing is written to the client until the kernel is done.
    pub(super) fn drain_first(&mut self, drain: Drain) {
        self.drain = Some(drain);
    }

    /// Ready with the reason when the flow has ended.
    fn poll_ways(
        &mut self,
        cx: &mut Context<'_>,
        client: &TcpStream,
        database: &TcpStream,
    ) -> Poll<&'static str> {
        let was_lost = self.lost().is_some();
        self.down_first = !self.down_first;
        let mut ended = true;
        for way in if self.down_first {
            DOWN_FIRST
        } else {
            UP_FIRST
        } {
            match self.poll_way(cx, way, client, database) {
                Poll::Ready(Err(reason)) => return Poll::Ready(reason),
                Poll::Ready(Ok(())) => {}
                Poll::Pending => ended = false,
            }
        }
        if let Some(last_words) = self.decoder.as_mut().and_then(|d| d.last_words()) {
            self.deny(&last_words);
        }
        if self.let_go() {
            return self.poll_ways(cx, client, database);
        }
        match self.lost() {
            // The other direction may wait for bytes that are not read any more.
            Some(_) if !was_lost => self.poll_ways(cx, client, database),
            _ if !ended => Poll::Pending,
            Some(reason) => Poll::Ready(reason),
            None => Poll::Ready(BOTH_ENDED),
        }
    }

    fn poll_way(
        &mut self,
        cx: &mut Context<'_>,
        way: Way,
        client: &TcpStream,
        database: &TcpStream,
    ) -> Poll<Result<(), &'static str>> {
        if way == Way::ToClient && self.drain.is_some() {
            return Poll::Pending;
        }
        let lost = self.lost().is_some();
        let (direction, from, to, sides) = match way {
            Way::ToDatabase => (&mut self.up, client, database, (CLIENT_SIDE, DATABASE_SIDE)),
            Way::ToClient => (
                &mut self.down,
                database,
                client,
                (DATABASE_SIDE, CLIENT_SIDE),
            ),
        };
        let moved = if lost {
            direction.poll_flush(cx, to)
        } else {
            direction.poll(cx, from, to, &mut self.decoder)
        };
        let Err(stop) = ready!(moved) else {
            return Poll::Ready(Ok(()));
        };
        let reason = stop.reason(sides.0, sides.1);
        if way == Way::ToClient && reason == DATABASE_RESET && self.up.state == State::Ended {
            // Cassandra answers a client's FIN with RST: the client gets it, and nothing went
            // wrong.
            close::reset(client);
            return Poll::Ready(Err(BOTH_ENDED));
        }
        Poll::Ready(Err(reason))
    }

    /// Whether both directions are to be polled again: what one held back may pass now. A decoder
    /// that has nothing more to learn goes.
    fn let_go(&mut self) -> bool {
        let Some(decoder) = &mut self.decoder else {
            return false;
        };
        let let_go = decoder.let_go();
        let is_off = decoder.is_off();
        if is_off {
            self.decoder = None;
        }
        let_go || is_off
    }

    /// The client is told, behind what it has been sent; then the flow ends.
    fn deny(&mut self, last_words: &[u8]) {
        if self.down.state == State::Open {
            self.down.held_back.extend_from_slice(last_words);
        }
        self.down.state = State::Losing(DENIED);
    }

    /// Framing is lost in one direction, or the flow denied: nothing more is read in either, and the flow ends
    /// when what was good has been written.
    fn lost(&self) -> Option<&'static str> {
        [&self.up, &self.down]
            .into_iter()
            .find_map(|d| match d.state {
                State::Losing(reason) => Some(reason),
                _ => None,
            })
    }
}

const UP_FIRST: [Way; 2] = [Way::ToDatabase, Way::ToClient];
const DOWN_FIRST: [Way; 2] = [Way::ToClient, Way::ToDatabase];

/// A side's reasons: (reset, any other error).
type Side = (&'static str, &'static str);
const CLIENT_SIDE: Side = (CLIENT_RESET, CLIENT_ERROR);
const DATABASE_SIDE: Side = (DATABASE_RESET, DATABASE_ERROR);

impl Stop {
    fn reason(self, from: Side, to: Side) -> &'static str {
        match self {
            Stop::From(error) => reason_of(&error, from),
            Stop::To(error) => reason_of(&error, to),
        }
    }
}

impl Direction {
    /// Moves what can be moved. Ready when the direction has ended.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &TcpStream,
        to: &TcpStream,
        decoder: &mut Option<Box<Decoder>>,
    ) -> Poll<Result<(), Stop>> {
        loop {
            ready!(self.poll_flush(cx, to))?;
            if let Some(again) = &mut self.again {
                ready!(again.as_mut().poll(cx));
                self.again = None;
            }
            match self.state {
                State::Open => match decoder.as_mut().map_or(Turn::Read, |d| d.turn(self.way)) {
                    Turn::Read => ready!(self.poll_chunk(cx, from, to, decoder))?,
                    Turn::Pass(chunk) => self.pass(chunk, &[], to)?,
                    Turn::Wait => return Poll::Pending,
                },
                State::Ending => self.end(to),
                State::Ended | State::Losing(_) => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Writes what was held back.
    fn poll_flush(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> Poll<Result<(), Stop>> {
        if self.held_back.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while let Some(rest) = self.held_back.get(self.written..).filter(|r| !r.is_empty()) {
            ready!(to.poll_write_ready(cx)).map_err(Stop::To)?;
            match to.try_write(rest) {
                Ok(n) => {
                    self.written += n;
                    self.count(n);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(Stop::To(e))),
            }
        }
        // The memory of a burst is not kept for the rest of the flow's life.
        self.held_back = Vec::new();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    /// Reads one chunk, has it decoded, and writes it on.
    fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
        from: &TcpStream,
        to: &TcpStream,
        decoder: &mut Option<Box<Decoder>>,
    ) -> Poll<Result<(), Stop>> {
        ready!(from.poll_read_ready(cx)).map_err(Stop::From)?;
        CHUNK.with_borrow_mut(|buffer| {
            let n = match read(from, buffer) {
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Poll::Ready(Ok(())),
                Err(e) => return Poll::Ready(Err(Stop::From(e))),
            };
            self.is_tls |= self.read_bytes == 0 && buffer.first() == Some(&TLS_HANDSHAKE);
            self.read_bytes += n as u64;
            let bytes = buffer.get(..n).unwrap_or_default();
            if bytes.is_empty() && self.is_behind() {
                self.again = Some(Box::pin(time::sleep(LOOK_AGAIN)));
                return Poll::Ready(Ok(()));
            }
            if bytes.is_empty() {
                let rest = decoder
                    .as_mut()
                    .map(|d| d.end(self.way))
                    .unwrap_or_default();
                self.state = State::Ending;
                return Poll::Ready(self.forward(&rest, to));
            }
            let chunk = decoder.as_mut().map(|d| d.chunk(self.way, bytes));
            Poll::Ready(self.pass(chunk.unwrap_or(Chunk::Forward), bytes, to))
        })
    }

    fn pass(&mut self, chunk: Chunk, bytes: &[u8], to: &TcpStream) -> Result<(), Stop> {
        match chunk {
            Chunk::Forward => self.forward(bytes, to),
            Chunk::Close { keep, reason } => {
                self.state = State::Losing(reason);
                self.forward(bytes.get(..keep).unwrap_or(bytes), to)
            }
            Chunk::Instead { bytes, close } => {
                if let Some(reason) = close {
                    self.state = State::Losing(reason);
                }
                self.forward(&bytes, to)
            }
        }
    }

    /// Whether the kernel has bytes for the agent that it has not read: where it had no memory for
    /// them at once, its worker brings them, and the end may come before.
    fn is_behind(&self) -> bool {
        let Some(splice) = &self.enrolled else {
            return false;
        };
        let passed = splice.moved().map(|moved| moved.passed);
        passed.is_ok_and(|passed| passed > self.read_bytes - self.read_before)
    }

    fn forward(&mut self, bytes: &[u8], to: &TcpStream) -> Result<(), Stop> {
        if bytes.is_empty() {
            return Ok(());
        }
        let written = match to.try_write(bytes) {
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

    fn count(&mut self, bytes: usize) {
        self.written_bytes += bytes as u64;
        self.add(bytes as u64);
    }

    fn add(&self, bytes: u64) {
        match self.way {
            Way::ToDatabase => self.flow.to_database.fetch_add(bytes, Relaxed),
            Way::ToClient => self.flow.to_client.fetch_add(bytes, Relaxed),
        };
        self.total.inc_by(bytes);
    }

    /// Half-close. A target that is gone already will say so on its own direction.
    fn end(&mut self, to: &TcpStream) {
        let _ = SockRef::from(to).shutdown(std::net::Shutdown::Write);
        self.state = State::Ended;
    }
}
