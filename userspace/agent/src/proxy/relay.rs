//! Moves a flow's bytes both ways, in one task.
//!
//! A chunk is read into the worker's buffer, decoded there and written on at once; only what
//! the other side does not take stays with the flow, and until it has gone nothing more is
//! read from the side that it came from: a peer that does not read stops its counterpart
//! through TCP's own window.

use std::{
    cell::RefCell,
    future::poll_fn,
    io::{self, ErrorKind},
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, ready},
};

use prometheus::IntCounter;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
};

use super::{
    decode::{Chunk, Decoder, Way},
    intake::{self, Entered},
};
use crate::flows::Flow;

/// Read at most this much at a time: large frames in few system calls. What one direction of
/// a flow can hold back is at most this, too.
const CHUNK_BYTES: usize = 64 * 1024;

thread_local! {
    /// One for all flows of a worker: idle flows cost no buffer.
    static CHUNK: RefCell<Box<[u8]>> = RefCell::new(vec![0; CHUNK_BYTES].into());
}

/// Why a flow ended, apart from the decoder's reasons.
pub const CLOSE_REASONS: &[&str] = &[
    BOTH_ENDED,
    CLIENT_RESET,
    DATABASE_RESET,
    CLIENT_ERROR,
    DATABASE_ERROR,
];

const BOTH_ENDED: &str = "both_ended";
const CLIENT_RESET: &str = "client_reset";
const DATABASE_RESET: &str = "database_reset";
const CLIENT_ERROR: &str = "client_error";
const DATABASE_ERROR: &str = "database_error";

/// Carries a flow to its end.
pub(super) async fn carry(mut client: TcpStream, mut database: TcpStream, entered: Entered) {
    let reason = Relay::new(&entered, &mut client, &mut database).run().await;
    if reason != BOTH_ENDED {
        end_abruptly(reason, &client, &database);
    }
    let (flow, metrics) = (&entered.flow, &entered.shared.metrics);
    metrics.flows_closed.with_label_values(&[reason]).inc();
    tracing::info!(
        flow = ?flow.id,
        client = %flow.client,
        pid = flow.process.pid,
        process = %flow.process.name,
        orig_dst = %flow.orig_dst,
        rule = %flow.rule,
        path = flow.path().as_str(),
        to_database = flow.to_database.load(Relaxed),
        to_client = flow.to_client.load(Relaxed),
        duration_ms = flow.opened.elapsed().as_millis() as u64,
        reason,
        "flow closed"
    );
}

/// A reset on one side becomes a reset on the other, as it would without us. Framing that
/// was lost ends both sides with FIN: what was forwarded was good.
fn end_abruptly(reason: &str, client: &TcpStream, database: &TcpStream) {
    match reason {
        CLIENT_RESET | CLIENT_ERROR => intake::reset(database),
        DATABASE_RESET | DATABASE_ERROR => intake::reset(client),
        _ => {}
    }
}

struct Relay<'a> {
    decoder: Decoder,
    up: Direction<'a>,
    down: Direction<'a>,
}

/// A direction's state. **Invariant**: `held_back` is empty or nothing is read.
struct Direction<'a> {
    way: Way,
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    held_back: Vec<u8>,
    written: usize,
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
}

/// What stops a flow.
enum Stop {
    /// Reading from, or writing to, this side.
    From(io::Error),
    To(io::Error),
    Lost(&'static str),
}

impl<'a> Relay<'a> {
    fn new(entered: &Entered, client: &'a mut TcpStream, database: &'a mut TcpStream) -> Self {
        let metrics = &entered.shared.metrics;
        let direction = |way, from, to, total: &IntCounter| Direction {
            way,
            from,
            to,
            held_back: Vec::new(),
            written: 0,
            state: State::Open,
            flow: entered.flow.clone(),
            total: total.clone(),
        };
        let (from_client, to_client) = client.split();
        let (from_database, to_database) = database.split();
        Self {
            decoder: Decoder::new(&entered.shared, &entered.flow),
            up: direction(
                Way::ToDatabase,
                from_client,
                to_database,
                &metrics.bytes_to_database,
            ),
            down: direction(
                Way::ToClient,
                from_database,
                to_client,
                &metrics.bytes_to_client,
            ),
        }
    }

    /// Returns the reason why the flow has ended.
    async fn run(&mut self) -> &'static str {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<&'static str> {
        let up = self.up.poll(cx, &mut self.decoder);
        if let Poll::Ready(Err(stop)) = up {
            return Poll::Ready(stop.reason(CLIENT_SIDE, DATABASE_SIDE));
        }
        let down = self.down.poll(cx, &mut self.decoder);
        if let Poll::Ready(Err(stop)) = down {
            return Poll::Ready(stop.reason(DATABASE_SIDE, CLIENT_SIDE));
        }
        match (up, down) {
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(BOTH_ENDED),
            _ => Poll::Pending,
        }
    }
}

/// A side's reasons: (reset, any other error).
type Side = (&'static str, &'static str);
const CLIENT_SIDE: Side = (CLIENT_RESET, CLIENT_ERROR);
const DATABASE_SIDE: Side = (DATABASE_RESET, DATABASE_ERROR);

impl Stop {
    fn reason(self, from: Side, to: Side) -> &'static str {
        let (error, (reset, other)) = match self {
            Stop::From(error) => (error, from),
            Stop::To(error) => (error, to),
            Stop::Lost(reason) => return reason,
        };
        match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => reset,
            _ => other,
        }
    }
}

impl Direction<'_> {
    /// Moves what can be moved. Ready when the direction has ended.
    fn poll(&mut self, cx: &mut Context<'_>, decoder: &mut Decoder) -> Poll<Result<(), Stop>> {
        loop {
            ready!(self.poll_flush(cx))?;
            match self.state {
                State::Open => ready!(self.poll_chunk(cx, decoder))?,
                State::Ending => {
                    // Half-close. A target that is gone already says so on its own direction.
                    let _ = ready!(Pin::new(&mut self.to).poll_shutdown(cx));
                    self.state = State::Ended;
                }
                State::Ended => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Writes what was held back.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        if self.held_back.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while let Some(rest) = self.held_back.get(self.written..).filter(|r| !r.is_empty()) {
            let n = ready!(Pin::new(&mut self.to).poll_write(cx, rest)).map_err(Stop::To)?;
            self.written += n;
            self.count(n);
        }
        // The memory of a burst is not kept for the rest of the flow's life.
        self.held_back = Vec::new();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    /// Reads one chunk, has it decoded, and writes it on. A read that does not fill the
    /// buffer has emptied the socket, and the runtime knows: no second read only to be told.
    fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
        decoder: &mut Decoder,
    ) -> Poll<Result<(), Stop>> {
        CHUNK.with_borrow_mut(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            ready!(Pin::new(&mut self.from).poll_read(cx, &mut buffer)).map_err(Stop::From)?;
            let bytes = buffer.filled();
            if bytes.is_empty() {
                decoder.end(self.way);
                self.state = State::Ending;
                return Poll::Ready(Ok(()));
            }
            match decoder.chunk(self.way, bytes) {
                Chunk::Forward => Poll::Ready(self.forward(cx, bytes)),
                Chunk::Close { keep, reason } => {
                    let good = bytes.get(..keep).unwrap_or(bytes);
                    Poll::Ready(self.forward(cx, good).and(Err(Stop::Lost(reason))))
                }
            }
        })
    }

    fn forward(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<(), Stop> {
        if bytes.is_empty() {
            return Ok(());
        }
        let written = match Pin::new(&mut self.to).poll_write(cx, bytes) {
            Poll::Ready(Ok(n)) => n,
            Poll::Ready(Err(e)) => return Err(Stop::To(e)),
            Poll::Pending => 0,
        };
        self.count(written);
        if let Some(rest) = bytes.get(written..).filter(|r| !r.is_empty()) {
            self.held_back.extend_from_slice(rest);
        }
        Ok(())
    }

    fn count(&self, bytes: usize) {
        let bytes = bytes as u64;
        match self.way {
            Way::ToDatabase => self.flow.to_database.fetch_add(bytes, Relaxed),
            Way::ToClient => self.flow.to_client.fetch_add(bytes, Relaxed),
        };
        self.total.inc_by(bytes);
    }
}
