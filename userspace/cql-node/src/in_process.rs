//! A node without sockets: bytes in, bytes out, on the caller's thread.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::anyhow;
use tokio::sync::broadcast::error::TryRecvError;

use super::clients::Clients;
use super::database::Database;
use super::response;
use super::session::{Next, Session};
use super::versions::MAX_VERSION;
use super::wire::{self, Decoder, Limits};

/// Bytes that its tables may hold, and that a request may have.
const MAX_STORED_BYTES: usize = 8 << 20;
const MAX_REQUEST_BYTES: usize = 1 << 20;

/// A node for whoever brings the bytes himself.
#[derive(Debug)]
pub struct InProcess {
    db: Database,
    clients: Arc<Clients>,
}

/// A connection to such a node.
#[derive(Debug)]
pub struct Connection {
    session: Session,
    decoder: Decoder,
    is_segmented: bool,
    is_closed: bool,
}

impl InProcess {
    /// Makes a node whose schema these statements make.
    ///
    /// # Errors
    /// A statement makes no schema.
    pub fn new(schema: &[String]) -> anyhow::Result<Self> {
        let clients = Arc::new(Clients::default());
        let of_clients = Arc::clone(&clients);
        let db = Database::new(at(), MAX_VERSION, MAX_STORED_BYTES, of_clients);
        let mut db = db.map_err(|failure| anyhow!(failure.message))?;
        for text in schema {
            let made = db.make(text);
            made.map_err(|failure| anyhow!("{text}: {}", failure.message))?;
        }
        Ok(Self { db, clients })
    }

    /// Begins a connection.
    pub fn connect(&self) -> Connection {
        Connection {
            session: Session::new(None, self.clients.register(at())),
            decoder: Decoder::new(Limits {
                max_version: MAX_VERSION,
                max_body: MAX_REQUEST_BYTES,
            }),
            is_segmented: false,
            is_closed: false,
        }
    }

    /// Takes bytes of a client, and returns those of the answers.
    pub fn answer(&mut self, connection: &mut Connection, bytes: &[u8]) -> Vec<u8> {
        let Connection {
            session,
            decoder,
            is_segmented,
            is_closed,
        } = connection;
        let mut sent = Vec::new();
        decoder.raw.spare(bytes.len()).extend_from_slice(bytes);
        while !*is_closed {
            let mut answer = Vec::new();
            let next = match decoder.next() {
                Ok(None) => break,
                Ok(Some((header, body))) => session.answer(&mut self.db, header, body, &mut answer),
                Err(failure) => {
                    let stream = decoder.failed_stream();
                    let at = wire::begin(&mut answer, MAX_VERSION, stream, response::ERROR);
                    response::put_error(&mut answer, &failure);
                    wire::finish(&mut answer, at);
                    Next::Close
                }
            };
            match *is_segmented {
                true => wire::seal(&answer, &mut sent),
                false => sent.extend(answer),
            }
            match next {
                Next::Continue => {}
                Next::StartSegments => {
                    decoder.start_segments();
                    *is_segmented = true;
                }
                Next::Close => *is_closed = true,
            }
        }
        sent
    }
}

impl Connection {
    /// Takes the events of which its client has asked to be told, as the bytes that tell it.
    pub fn take_events(&mut self) -> Vec<u8> {
        let mut sent = Vec::new();
        while let Some(events) = &mut self.session.events {
            let change = match events.try_recv() {
                Ok(change) => change,
                // Missed ones are skipped, as by a node with sockets.
                Err(TryRecvError::Lagged(_)) => continue,
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            };
            let mut event = Vec::new();
            self.session.tell(&change, &mut event);
            match self.is_segmented {
                true => wire::seal(&event, &mut sent),
                false => sent.extend(event),
            }
        }
        sent
    }
}

fn at() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9042))
}
