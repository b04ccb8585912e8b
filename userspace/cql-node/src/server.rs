//! Accepting connections and moving their bytes. All tasks run on the node's one thread.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::clients::Clients;
use super::credentials::Credentials;
use super::database::Database;
use super::delays::{Delays, Late};
use super::request;
use super::response::{self, SchemaChange};
use super::session::{Next, Session};
use super::tally::Tallied;
use super::wire::{self, Decoder, Limits};

/// Free space for one read.
const READ_BYTES: usize = 64 << 10;
/// Answers are written out when this much waits, whatever else has been read: a client that
/// sends and does not read stops being read.
const FLUSH_BYTES: usize = 256 << 10;
/// How long a connection that is refused may take to read why, and what it may still send.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 1 << 20;
/// After a failed accept (out of descriptors, say), so as not to spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(20);

/// Settings that every connection of a node shares.
#[derive(Debug, Clone)]
pub(super) struct NodeSettings {
    pub(super) credentials: Option<Credentials>,
    pub(super) limits: Limits,
    pub(super) max_connections: usize,
    pub(super) delays: Option<Delays>,
    pub(super) tally: Tallied,
}

/// Serves until `stop` is dropped or changes, then drops every connection.
pub(super) async fn serve(
    listener: TcpListener,
    db: Database,
    clients: Arc<Clients>,
    settings: NodeSettings,
    mut stop: watch::Receiver<()>,
) {
    let db = Rc::new(RefCell::new(db));
    // A task that panics ends its connection; the set holds its error until it is reaped here.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stop.changed() => return,
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a connection's task failed");
                }
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) if clients.open() < settings.max_connections => {
                    let session = Session::new(settings.credentials.clone(), clients.register(peer));
                    connections.spawn_local(connection(stream, session, Rc::clone(&db), settings.clone()));
                }
                Ok((_, peer)) => tracing::warn!(%peer, max = settings.max_connections, "too many connections"),
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            },
        }
    }
}

async fn connection(
    stream: TcpStream,
    session: Session,
    db: Rc<RefCell<Database>>,
    settings: NodeSettings,
) {
    let _ = stream.set_nodelay(true);
    let connection = Connection {
        stream,
        session,
        db,
        decoder: Decoder::new(settings.limits),
        answers: Vec::new(),
        sealed: None,
        max_version: settings.limits.max_version,
        late: settings.delays.map(Late::new),
        asked: Vec::new(),
        tally: settings.tally,
    };
    if let Err(error) = connection.run().await {
        tracing::debug!(%error, "connection ended");
    }
}

struct Connection {
    stream: TcpStream,
    session: Session,
    db: Rc<RefCell<Database>>,
    decoder: Decoder,
    /// Whole frames that wait to be written.
    answers: Vec<u8>,
    /// v5, once segments have begun: the answers in segments.
    sealed: Option<Vec<u8>>,
    max_version: u8,
    /// When the statements were read whose answers are in `answers`, where they take time.
    asked: Vec<Instant>,
    /// Answers that wait, where statements take time.
    late: Option<Late>,
    tally: Tallied,
}

impl Connection {
    async fn run(mut self) -> std::io::Result<()> {
        loop {
            while let Some(next) = self.answer_one() {
                match next {
                    Next::Continue => {
                        if self.answers.len() >= FLUSH_BYTES {
                            self.flush().await?;
                        }
                    }
                    Next::StartSegments => {
                        self.flush().await?;
                        self.decoder.start_segments();
                        self.sealed = Some(Vec::new());
                    }
                    Next::Close => {
                        self.flush().await?;
                        return self.linger().await;
                    }
                }
            }
            self.take_due();
            self.flush().await?;
            let Self {
                stream,
                session,
                decoder,
                late,
                tally,
                ..
            } = &mut self;
            tokio::select! {
                read = stream.read_buf(decoder.raw.spare(READ_BYTES)) => {
                    let read = read?;
                    tally.update(|t| t.bytes_in += read as u64);
                    if read == 0 {
                        return Ok(());
                    }
                }
                () = next_due(late.as_ref()) => {}
                Some(change) = next_event(&mut session.events) => self.session.tell(&change, &mut self.answers),
                Some(node) = next_ring(&mut session.rings) => self.session.tell_node(node, &mut self.answers),
            }
        }
    }

    /// Answers the next request that has arrived whole.
    fn answer_one(&mut self) -> Option<Next> {
        match self.decoder.next() {
            Ok(None) => None,
            Ok(Some((header, body))) => {
                self.tally.update(|t| t.request(header.opcode));
                let at = self.answers.len();
                let db = &mut self.db.borrow_mut();
                let next = self.session.answer(db, header, body, &mut self.answers);
                if let Some(late) = &mut self.late
                    && [request::QUERY, request::EXECUTE, request::BATCH].contains(&header.opcode)
                {
                    late.push(Instant::now(), self.answers.split_off(at));
                }
                Some(next)
            }
            Err(failure) => {
                let at = wire::begin(
                    &mut self.answers,
                    self.max_version,
                    self.decoder.failed_stream(),
                    response::ERROR,
                );
                response::put_error(&mut self.answers, &failure);
                wire::finish(&mut self.answers, at);
                Some(Next::Close)
            }
        }
    }

    /// Answers that have waited long enough.
    fn take_due(&mut self) {
        let Some(late) = &mut self.late else {
            return;
        };
        let now = Instant::now();
        while let Some(answer) = late.pop(now) {
            self.answers.extend_from_slice(&answer.frame);
            self.asked.push(answer.asked);
        }
    }

    async fn flush(&mut self) -> std::io::Result<()> {
        if self.answers.is_empty() {
            return Ok(());
        }
        let bytes = match &mut self.sealed {
            None => &self.answers,
            Some(sealed) => {
                sealed.clear();
                wire::seal(&self.answers, sealed);
                sealed
            }
        };
        self.stream.write_all(bytes).await?;
        let took = self.asked.drain(..).map(|asked| asked.elapsed());
        self.tally.update(|t| {
            t.sent(&self.answers, bytes.len());
            t.took_us.extend(took.map(|took| took.as_micros() as u32));
        });
        self.answers.clear();
        // A large answer's memory is not kept for the rest of the connection.
        self.answers.shrink_to(4 * FLUSH_BYTES);
        if let Some(sealed) = &mut self.sealed {
            sealed.clear();
            sealed.shrink_to(4 * FLUSH_BYTES);
        }
        Ok(())
    }

    /// Closes so that the last answer arrives: closing with unread data would send a reset,
    /// which may overtake it.
    async fn linger(mut self) -> std::io::Result<()> {
        self.stream.shutdown().await?;
        let drain = async {
            let mut left = LINGER_BYTES;
            let mut scratch = vec![0; READ_BYTES];
            while left > 0 {
                match self.stream.read(&mut scratch).await {
                    Ok(0) | Err(_) => return,
                    Ok(n) => left = left.saturating_sub(n),
                }
            }
        };
        let _ = tokio::time::timeout(LINGER, drain).await;
        Ok(())
    }
}

/// When the next answer is due; for ever pending when none waits.
async fn next_due(late: Option<&Late>) {
    match late.and_then(Late::next_due) {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// The first node of the next ring, likewise.
async fn next_ring(rings: &mut Option<watch::Receiver<Vec<SocketAddr>>>) -> Option<SocketAddr> {
    let Some(rings) = rings else {
        return std::future::pending().await;
    };
    match rings.changed().await {
        Ok(()) => rings.borrow_and_update().first().copied(),
        Err(_) => std::future::pending().await,
    }
}

/// The next schema change; for ever pending when the client did not register for them, `None`
/// never: missed events are skipped, as a real node's may be.
async fn next_event(
    events: &mut Option<broadcast::Receiver<SchemaChange>>,
) -> Option<SchemaChange> {
    let Some(receiver) = events else {
        return std::future::pending().await;
    };
    loop {
        match receiver.recv().await {
            Ok(change) => return Some(change),
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
        }
    }
}
