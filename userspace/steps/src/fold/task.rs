//! The task that owns a shared connection: it writes the frames that flows have put into the queue,
//! all of them at once, and brings the answers that it reads to the requests that wait for them.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use cql_client::{Request, Version};
use cql_edit::{Incoming, Relayed, Resolution, Ticket, error_of, in_segments_of, sets_keyspace};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};
use zeroize::Zeroizing;

use super::{
    begin,
    identity::Identity,
    metrics::{Became, Ended},
    pools::Shared,
    shared_connection::{OWN_STREAM, Queued, SharedConnection},
};
use crate::stream::Stream;

/// The time limit for a database that has something to answer. After this silence it is asked
/// whether it is there; after as long again it counts as lost.
const SILENCE: Duration = Duration::from_secs(5);

/// The interval at which a database that has nothing to answer is asked whether it is there.
/// Drivers ask as often.
const IDLE: Duration = Duration::from_secs(30);

/// The most bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// The number of reads after which the flows have their turn.
const MAX_READS: usize = 16;

/// The longest answer that is taken. A read with a longer answer is asked again by its flow's own
/// connection, which passes the answer on as it comes.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// The error code UNPREPARED: the node does not know the statement.
const UNPREPARED: i32 = 0x2500;

/// The error code for a request that is not understood.
const PROTOCOL_ERROR: i32 = 0x000A;

const ERROR: u8 = 0x00;
const RESULT: u8 = 0x08;

/// A guard that ends the connection's waiting requests, whatever ends the task.
struct Ends {
    connection: Arc<SharedConnection>,
    shared: Arc<Shared>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        if self.connection.is_open() {
            self.shared.counters.connections.dec();
        }
        self.connection.ends();
    }
}

/// Runs the connection until no flow uses it any more, or it is lost.
pub(super) async fn run(connection: Arc<SharedConnection>, shared: Arc<Shared>, of: Arc<Identity>) {
    let ends = Ends {
        connection: connection.clone(),
        shared: shared.clone(),
    };
    let opened = begin::open(&shared.connects, &shared.rule, &of, &shared.counters).await;
    let (stream, incoming) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            shared.counters.ended(Ended::Refused);
            tracing::warn!(
                rule = %shared.rule, database = %of.database, %error,
                "flows cannot share a connection, and use their own"
            );
            return;
        }
    };
    shared.counters.connections.inc();
    connection.opens();
    let mut task = ConnectionTask::new((stream, incoming), &connection, &shared, &of);
    let why = std::future::poll_fn(|cx| task.poll(cx)).await;
    shared.counters.ended(why);
    if why != Ended::Unused {
        tracing::warn!(
            rule = %shared.rule, database = %of.database, why = why.as_str(),
            "a shared connection is lost"
        );
    }
    drop(ends);
    if why == Ended::Unused {
        task.says_end().await;
    }
}

struct ConnectionTask<'s> {
    stream: Stream,
    incoming: Incoming,
    connection: &'s SharedConnection,
    shared: &'s Shared,
    of: &'s Identity,
    /// The bytes to write, as they are sent.
    writing: Vec<u8>,
    written: usize,
    buffer: Box<[u8]>,
    /// The tickets that were answered by the last read, with their resolutions. Empty in between.
    answered: Vec<(Ticket, Resolution)>,
    heard: Instant,
    /// The time when the database was asked whether it is there, while it has not answered.
    asked_itself: Option<Instant>,
    looks: Pin<Box<Sleep>>,
}

impl<'s> ConnectionTask<'s> {
    fn new(
        (stream, incoming): (Stream, Incoming),
        connection: &'s SharedConnection,
        shared: &'s Shared,
        of: &'s Identity,
    ) -> Self {
        Self {
            stream,
            incoming,
            connection,
            shared,
            of,
            writing: Vec::new(),
            written: 0,
            buffer: vec![0; READ_BYTES].into(),
            answered: Vec::new(),
            heard: Instant::now(),
            asked_itself: None,
            looks: Box::pin(tokio::time::sleep(SILENCE)),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        match self.step(cx) {
            Ok(()) => Poll::Pending,
            Err(ended) => Poll::Ready(ended),
        }
    }

    /// Moves all bytes that can be moved.
    fn step(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        self.read(cx)?;
        while self.looks.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            self.look(now)?;
            self.looks.as_mut().reset((now + SILENCE).into());
        }
        loop {
            self.write(cx)?;
            match self.connection.take(&mut self.writing, cx.waker()) {
                Queued::Unused => return Err(Ended::Unused),
                Queued::Nothing => return Ok(()),
                Queued::Taken => {
                    self.shared.counters.writes.inc();
                    let opening = &self.of.opening;
                    if opening.version >= 5 {
                        self.writing = in_segments_of(opening.compression, &self.writing);
                    }
                }
            }
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        while let Some(rest) = self.writing.get(self.written..).filter(|r| !r.is_empty()) {
            match Pin::new(&mut self.stream).poll_write(cx, rest) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(n)) if n > 0 => self.written += n,
                Poll::Ready(_) => return Err(Ended::Closed),
            }
        }
        self.writing.clear();
        self.written = 0;
        // Bytes that were taken to be encrypted may not be in the socket yet, nor what TLS has to
        // send by itself.
        match Pin::new(&mut self.stream).poll_flush(cx) {
            Poll::Ready(Err(_)) => Err(Ended::Closed),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }

    fn read(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        for _ in 0..MAX_READS {
            let mut read = ReadBuf::new(&mut self.buffer);
            match Pin::new(&mut self.stream).poll_read(cx, &mut read) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Err(_)) => return Err(Ended::Closed),
                Poll::Ready(Ok(())) if read.filled().is_empty() => return Err(Ended::Closed),
                Poll::Ready(Ok(())) => {}
            }
            self.heard = Instant::now();
            self.shared.counters.reads.inc();
            let came = self.incoming.comes(read.filled());
            let told = came.map_err(|_| Ended::Garbage);
            let told = told.and_then(|()| self.hears());
            // Tickets that were answered before an error that ends the connection are resolved,
            // too.
            for (ticket, becomes) in self.answered.drain(..) {
                ticket.resolve(becomes);
            }
            told?;
        }
        // There may be more to read, and others wait for their turn.
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Finds the requests that the frames which have come answer.
    fn hears(&mut self) -> Result<(), Ended> {
        let mut slots = self.connection.slots();
        loop {
            let next = self.incoming.next(MAX_ANSWER_BYTES);
            let Some(came) = next.map_err(|_| Ended::Garbage)? else {
                return Ok(());
            };
            if came.stream == OWN_STREAM && self.asked_itself.take().is_some() {
                continue;
            }
            let slot = slots.answered(came.stream).ok_or(Ended::Garbage)?;
            // If the connection ends from here on, the slot is dropped with its ticket: the
            // ticket's flow is lost, too.
            let Some(frame) = came.frame else {
                if !slot.is_read {
                    return Err(Ended::Garbage);
                }
                self.shared.counters.became(Became::LargeAnswer);
                self.answered.push((slot.ticket, Resolution::Pass));
                continue;
            };
            match came.opcode {
                // No read or write sets the keyspace. Other flows would see the change.
                RESULT if sets_keyspace(self.of.opening.compression, frame) => {
                    return Err(Ended::Garbage);
                }
                RESULT => {}
                ERROR => match error_of(self.of.opening.compression, frame) {
                    // Another node may have answered the PREPARE. The request was not done.
                    Some(UNPREPARED) => {
                        self.shared.counters.became(Became::Unprepared);
                        self.answered.push((slot.ticket, Resolution::Pass));
                        continue;
                    }
                    Some(PROTOCOL_ERROR) => slot.bars(),
                    _ => {}
                },
                _ => return Err(Ended::Garbage),
            }
            let becomes = match self.shared.room.take(frame.len()) {
                Ok(held) => Resolution::Relayed(Relayed::new(slot.addressed(frame), held)),
                Err(()) if slot.is_read => {
                    self.shared.counters.became(Became::LargeAnswer);
                    Resolution::Pass
                }
                Err(()) => {
                    self.shared.counters.became(Became::Dropped);
                    Resolution::Lost
                }
            };
            self.answered.push((slot.ticket, becomes));
        }
    }

    /// Sends close_notify on an encrypted connection, as far as the socket takes it, so that the
    /// database knows that it was not cut off.
    async fn says_end(&mut self) {
        std::future::poll_fn(|cx| {
            let _ = Pin::new(&mut self.stream).poll_shutdown(cx);
            Poll::Ready(())
        })
        .await;
    }

    /// Checks whether the database is still there.
    fn look(&mut self, now: Instant) -> Result<(), Ended> {
        let patience = match self.connection.is_busy() {
            true => SILENCE,
            false => IDLE,
        };
        match self.asked_itself {
            Some(since) if now.duration_since(self.heard.max(since)) >= SILENCE => {
                return Err(Ended::Silent);
            }
            None if now.duration_since(self.heard) >= patience => {
                self.connection
                    .asks_itself(&options(self.of.opening.version));
                self.asked_itself = Some(now);
            }
            _ => {}
        }
        Ok(())
    }
}

/// The frame of an OPTIONS, on the connection's own stream. Flows have begun in one of these versions.
fn options(version: u8) -> Zeroizing<Vec<u8>> {
    let version = Version::try_from(version).unwrap_or(Version::V4);
    Request::Options.frame(version, OWN_STREAM)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use cql::Compression;
    use cql_edit::Opening;
    use policy::RuleName;
    use telemetry::Metrics;
    use tls::Towards;
    use tokio::io;

    use super::*;
    use crate::fold::{FoldMetrics, FoldSettings, Folds};

    /// A stream that behaves like TLS while a socket takes nothing: written bytes stay in it, and
    /// the first flush has to wait.
    #[derive(Default)]
    struct Keeps {
        kept: Vec<u8>,
        waited: bool,
        went: Arc<Mutex<Vec<u8>>>,
    }

    impl AsyncRead for Keeps {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Keeps {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.kept.extend(bytes);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            if !self.kept.is_empty() && !std::mem::replace(&mut self.waited, true) {
                return Poll::Pending;
            }
            let kept = std::mem::take(&mut self.kept);
            self.went.lock().unwrap().extend(kept);
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn what_tls_has_taken_goes_on_when_the_socket_takes_it() {
        let registry = prometheus::Registry::new();
        let agents = Metrics::register(&registry, &[]).unwrap();
        let metrics = FoldMetrics::register(&registry, &agents).unwrap();
        let settings = toml::from_str::<FoldSettings>("")
            .unwrap()
            .checked()
            .unwrap();
        let shared = Folds::new(metrics).open(&RuleName::new("r"), &settings);
        let opening = Opening {
            version: 4,
            compression: Compression::None,
            startup: vec![0; 2].into(),
            token: None,
        };
        let at = ([127, 0, 0, 1], 9042).into();
        let of = Identity::of((at, &Towards::Plain), false, None, &Arc::new(opening)).unwrap();
        let (connection, shared, keeps) =
            (SharedConnection::new(), shared.unwrap(), Keeps::default());
        let went = keeps.went.clone();
        let stream: Stream = Box::new(keeps);
        let mut task = ConnectionTask::new((stream, Incoming::new(4)), &connection, &shared, &of);
        let asked = options(4);
        connection.asks_itself(&asked);
        let mut moves =
            async || std::future::poll_fn(|cx| Poll::Ready(task.poll(cx).is_pending())).await;
        assert!(moves().await);
        assert!(went.lock().unwrap().is_empty(), "it waits");
        // The socket is ready, and nobody has sent a request since.
        assert!(moves().await);
        assert_eq!(*went.lock().unwrap(), **asked);
        let counted = &task.shared.counters;
        assert_eq!((counted.writes.get(), counted.reads.get()), (1, 0));
    }
}
