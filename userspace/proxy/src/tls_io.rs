//! TLS on one of a flow's connections: the records that come from the socket and go to it, and the
//! plain bytes in them.
//!
//! It is read and written like a socket: bytes that cannot be written yet are not taken, and an end
//! is an end. **Bounds**: bytes that are written and not in the socket yet are at most
//! [`MAX_WRITTEN`]; bytes that are read and not handed on are less than a record ([`MAX_RECORD`]),
//! or a flight of the handshake (rustls: 64 KiB).

use std::{
    cell::RefCell,
    io::{self, ErrorKind, IoSlice, Read, Write},
    net::Shutdown,
    sync::Arc,
    task::{Context, Poll, ready},
};

use flow::Flow;
use rustls::Connection;
use socket2::SockRef;
use tls::{Failure, SeenBy, Side};
use tokio::net::TcpStream;

use super::{
    outbox,
    read::{CHUNK_BYTES, Reads},
};

/// The largest record on the wire (RFC 5246 §6.2.3, which allows more than RFC 8446 does).
const MAX_RECORD: usize = 5 + 16 * 1024 + 2048;

/// The most bytes that are read from a socket at once. Together with the part of a record that was
/// there before, that is no more than a chunk.
const MAX_READ: usize = CHUNK_BYTES - MAX_RECORD;

/// The most bytes that are written and not in the socket yet: a chunk.
const MAX_WRITTEN: usize = CHUNK_BYTES;

thread_local! {
    /// One buffer for all flows of a worker, as for bytes that are not encrypted.
    static ENCRYPTED: RefCell<Box<[u8]>> = RefCell::new(vec![0; MAX_READ].into());
}

/// One connection's TLS: rustls, and the state of both directions' ends.
pub(super) struct Tls {
    connection: Connection,
    /// The end that the other side has come to.
    end: Option<End>,
    is_established: bool,
    /// Whether the other side was told that nothing more comes.
    has_ended: bool,
    news: Option<News>,
    /// The flow that shows this connection's TLS, and the side; both are set before a byte of the
    /// plain stream is read. None: nothing is shown.
    shown_by: Option<(Arc<Flow>, Side)>,
}

/// The reason why nothing more is read.
enum End {
    /// A close_notify has come.
    Said,
    /// The connection has ended without close_notify, so nobody knows how much is missing.
    Cut,
    /// The records that came are not valid.
    Failed(rustls::Error),
}

/// An event, for the metrics and the log.
pub(super) enum News {
    /// The handshake is over.
    Established,
    /// The handshake has failed.
    NotEstablished(Failure, String),
    /// Later records are not valid. With TLS 1.3 that may be an alert about the handshake.
    Failed(Failure, String),
}

impl Tls {
    pub(super) fn new(connection: impl Into<Connection>) -> Self {
        let mut connection = connection.into();
        connection.set_buffer_limit(Some(MAX_WRITTEN));
        Self {
            connection,
            end: None,
            is_established: false,
            has_ended: false,
            news: None,
            shown_by: None,
        }
    }

    /// Shows this connection's TLS on this side of this flow.
    pub(super) fn shown_by(mut self, flow: &Arc<Flow>, side: Side) -> Self {
        self.shown_by = Some((flow.clone(), side));
        self
    }

    /// Takes the event that has happened since the last call.
    pub(super) fn news(&mut self) -> Option<News> {
        self.news.take()
    }

    pub(super) fn is_established(&self) -> bool {
        self.is_established
    }

    /// Returns the name that a client connects to, if it has sent one.
    pub(super) fn server_name(&self) -> Option<&str> {
        match &self.connection {
            Connection::Server(server) => server.server_name(),
            Connection::Client(_) => None,
        }
    }

    /// Reads the plain bytes that there are; 0 at the end. WouldBlock: another time. UnexpectedEof:
    /// the end came without close_notify. InvalidData: what came is no valid TLS. `out` has room
    /// for a chunk.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        socket: &TcpStream,
        reads: &mut Reads,
        out: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            // The pending output may be what the other side waits for. A side that does not take it
            // may still send.
            let flushed = self.poll_flush(cx, socket);
            if let Some(end) = &self.end {
                return Poll::Ready(end.read(self.is_established));
            }
            if let Poll::Ready(Err(e)) = flushed {
                return Poll::Ready(Err(e));
            }
            let taken = ENCRYPTED.with_borrow_mut(|encrypted| -> Poll<io::Result<usize>> {
                let n = ready!(reads.poll(cx, socket, encrypted))?;
                if !self.is_established {
                    // A signature takes longer than anything may wait.
                    outbox::flush();
                }
                let encrypted = encrypted.get(..n).unwrap_or_default();
                Poll::Ready(Ok(self.take(encrypted, out)))
            });
            match ready!(taken) {
                Ok(0) => {}
                Err(e) if ErrorKind::WouldBlock == io::Error::kind(&e) => {}
                Err(e) => return Poll::Ready(Err(self.failed(e))),
                Ok(n) => return Poll::Ready(Ok(n)),
            }
        }
    }

    /// Takes bytes that came from the socket, or none at its end, and writes the plain bytes to
    /// `out`. Returns their number. Bytes behind the end of TLS are thrown away.
    fn take(&mut self, mut encrypted: &[u8], out: &mut [u8]) -> usize {
        if encrypted.is_empty() {
            self.ends(End::Cut);
            return 0;
        }
        let mut taken = 0;
        while !encrypted.is_empty() && self.end.is_none() {
            match self.connection.read_tls(&mut encrypted) {
                Ok(0) => self.ends(End::Said),
                Ok(_) => taken += self.process(out.get_mut(taken..).unwrap_or_default()),
                // This error also stands for a message that is too long.
                Err(e) => self.ends(End::Failed(rustls::Error::General(e.to_string()))),
            }
        }
        taken
    }

    fn process(&mut self, out: &mut [u8]) -> usize {
        let state = self.connection.process_new_packets();
        if !self.is_established && !self.connection.is_handshaking() {
            self.is_established = true;
            self.news = Some(News::Established);
            if let Some((flow, side)) = &self.shown_by {
                flow.set_tls(*side, SeenBy::of(&self.connection));
            }
        }
        let mut taken = 0;
        // Plain bytes that came before an invalid record are valid.
        while let Some(room) = out.get_mut(taken..).filter(|room| !room.is_empty()) {
            match self.connection.reader().read(room) {
                Ok(n) if n > 0 => taken += n,
                _ => break,
            }
        }
        match state {
            Ok(state) if state.peer_has_closed() => self.ends(End::Said),
            Ok(_) => {}
            Err(error) => self.ends(End::Failed(error)),
        }
        taken
    }

    fn ends(&mut self, end: End) {
        self.news = match &end {
            End::Failed(error) => {
                let (failure, text) = (Failure::of(error), error.to_string());
                Some(match (self.is_established, self.news.take()) {
                    (false, _) => News::NotEstablished(failure, text),
                    (true, None) => News::Failed(failure, text),
                    (true, Some(before)) => before,
                })
            }
            End::Said | End::Cut if self.is_established => self.news.take(),
            End::Said | End::Cut => {
                let text = "the connection ended before the handshake did";
                Some(News::NotEstablished(Failure::Ended, text.to_owned()))
            }
        };
        self.end = Some(end);
    }

    /// Notes that the socket has failed.
    fn failed(&mut self, error: io::Error) -> io::Error {
        if !self.is_established && self.end.is_none() {
            self.news = Some(News::NotEstablished(Failure::Connection, error.to_string()));
        }
        error
    }

    /// Ready when something can be written.
    pub(super) fn poll_write_ready(
        &mut self,
        cx: &mut Context<'_>,
        socket: &TcpStream,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(cx, socket))?;
        match self.is_established {
            true => Poll::Ready(Ok(())),
            // The task is polled again when the handshake is over.
            false => Poll::Pending,
        }
    }

    /// Writes as many bytes as can be written.
    pub(super) fn try_write(&mut self, socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_established {
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut written = 0;
        loop {
            let rest = bytes.get(written..).unwrap_or_default();
            let n = self.connection.writer().write(rest)?;
            written += n;
            if !self.try_flush(socket)? || written == bytes.len() || n == 0 {
                return Ok(written);
            }
        }
    }

    /// Ready when everything is in the socket.
    pub(super) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        socket: &TcpStream,
    ) -> Poll<io::Result<()>> {
        loop {
            match self.try_flush(socket) {
                Ok(true) => return Poll::Ready(Ok(())),
                Ok(false) => ready!(socket.poll_write_ready(cx))?,
                Err(e) => return Poll::Ready(Err(self.failed(e))),
            }
        }
    }

    /// Writes to the socket as far as it takes bytes. Returns whether everything is in it.
    pub(super) fn try_flush(&mut self, socket: &TcpStream) -> io::Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Socket(socket)) {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Ends the writing direction (half-close). Ready when the other side was told. A side that has
    /// gone reports that itself.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>, socket: &TcpStream) -> Poll<()> {
        if !self.is_established {
            // The task is polled again when the handshake is over.
            let _ = self.poll_flush(cx, socket);
            return Poll::Pending;
        }
        self.say_end();
        let _ = ready!(self.poll_flush(cx, socket));
        let _ = SockRef::from(socket).shutdown(Shutdown::Write);
        Poll::Ready(())
    }

    /// Queues close_notify, which the other side gets once that is flushed.
    pub(super) fn say_end(&mut self) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.connection.send_close_notify();
        }
    }
}

impl End {
    /// Returns the outcome that a reader gets.
    fn read(&self, is_established: bool) -> io::Result<usize> {
        match self {
            Self::Said | Self::Cut if !is_established => Err(ErrorKind::InvalidData.into()),
            Self::Said => Ok(0),
            Self::Cut => Err(ErrorKind::UnexpectedEof.into()),
            Self::Failed(error) => Err(io::Error::new(ErrorKind::InvalidData, error.clone())),
        }
    }
}

/// A socket that is written to as far as it takes bytes.
struct Socket<'a>(&'a TcpStream);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[path = "tls_io_tests.rs"]
mod tests;
