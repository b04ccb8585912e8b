//! TLS on one of a flow's connections: what comes from the socket and goes to it, and what the other
//! side means by it.
//!
//! It is read and written as a socket is: what cannot be written yet is not taken, and an end is an end.
//! **Bounds**: what is written and not in the socket yet is at most [`MAX_WRITTEN`]; what is read and not
//! handed on is less than a record ([`MAX_RECORD`]), or a flight of the handshake (rustls: 64 KiB).

use std::{
    cell::RefCell,
    io::{self, ErrorKind, IoSlice, Read, Write},
    net::Shutdown,
    sync::Arc,
    task::{Context, Poll, ready},
};

use rustls::Connection;
use socket2::SockRef;
use tokio::net::TcpStream;

use super::{direction::CHUNK_BYTES, read::read};
use crate::{
    flows::Flow,
    tls::{Failure, SeenBy, Side},
};

/// The largest record on the wire (RFC 5246 §6.2.3, which allows more than RFC 8446 does).
const MAX_RECORD: usize = 5 + 16 * 1024 + 2048;

/// Read from a socket at a time. With what was there of a record before, it is no more than a chunk.
const MAX_READ: usize = CHUNK_BYTES - MAX_RECORD;

/// A chunk.
const MAX_WRITTEN: usize = CHUNK_BYTES;

thread_local! {
    /// One for all flows of a worker, as for what is not encrypted.
    static ENCRYPTED: RefCell<Box<[u8]>> = RefCell::new(vec![0; MAX_READ].into());
}

/// See the module.
pub(super) struct Tls {
    connection: Connection,
    /// The other side's.
    end: Option<End>,
    is_established: bool,
    /// The other side was told that nothing more comes.
    has_ended: bool,
    news: Option<News>,
    /// It shows what is known of it before a byte of what was said is read. None: nobody looks.
    shown_by: Option<(Arc<Flow>, Side)>,
}

/// Nothing more is read.
enum End {
    /// The other side has said so.
    Said,
    /// It did not, so nobody knows what is missing.
    Cut,
    /// What came is no good.
    Failed(rustls::Error),
}

/// What has happened, for who counts.
pub(super) enum News {
    /// The handshake is over.
    Established,
    /// It will never be.
    NotEstablished(Failure, String),
    /// What came later is no good. With TLS 1.3 that may be an alert about the handshake.
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

    /// It is this side of this flow.
    pub(super) fn shown_by(mut self, flow: &Arc<Flow>, side: Side) -> Self {
        self.shown_by = Some((flow.clone(), side));
        self
    }

    /// What has happened since this was last asked.
    pub(super) fn news(&mut self) -> Option<News> {
        self.news.take()
    }

    pub(super) fn is_established(&self) -> bool {
        self.is_established
    }

    /// The name that a client connects to, if it has said one.
    pub(super) fn server_name(&self) -> Option<&str> {
        match &self.connection {
            Connection::Server(server) => server.server_name(),
            Connection::Client(_) => None,
        }
    }

    /// Reads what there is, 0 at the end; WouldBlock is for another time, UnexpectedEof an end that was
    /// not said, InvalidData what is no TLS. `out` has room for a chunk.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        socket: &TcpStream,
        out: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            // It may be what the other side waits for. Who does not take it may still send.
            let flushed = self.poll_flush(cx, socket);
            if let Some(end) = &self.end {
                return Poll::Ready(end.read(self.is_established));
            }
            if let Poll::Ready(Err(e)) = flushed {
                return Poll::Ready(Err(e));
            }
            ready!(socket.poll_read_ready(cx))?;
            let taken = ENCRYPTED.with_borrow_mut(|encrypted| {
                let n = read(socket, encrypted)?;
                Ok(self.take(encrypted.get(..n).unwrap_or_default(), out))
            });
            match taken {
                Ok(0) => {}
                Err(e) if ErrorKind::WouldBlock == io::Error::kind(&e) => {}
                Err(e) => return Poll::Ready(Err(self.failed(e))),
                Ok(n) => return Poll::Ready(Ok(n)),
            }
        }
    }

    /// Takes what came from the socket, nothing at its end, and gives what was meant by it. What does
    /// not belong to anything any more is thrown away.
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
                // It says so of a message that is too long.
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
                flow.is_encrypted(*side, SeenBy::of(&self.connection));
            }
        }
        let mut taken = 0;
        // What came before something that is no good is good.
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

    /// The socket has failed.
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
            // Whoever waits is polled again when it is.
            false => Poll::Pending,
        }
    }

    /// Writes what can be written.
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

    /// Whether everything is in the socket.
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

    /// Half-close: ready when the other side was told. One that has gone will say so itself.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>, socket: &TcpStream) -> Poll<()> {
        if !self.is_established {
            // Whoever waits is polled again when it is.
            let _ = self.poll_flush(cx, socket);
            return Poll::Pending;
        }
        self.say_end();
        let _ = ready!(self.poll_flush(cx, socket));
        let _ = SockRef::from(socket).shutdown(Shutdown::Write);
        Poll::Ready(())
    }

    /// The other side is told that nothing more comes, once that is flushed.
    pub(super) fn say_end(&mut self) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.connection.send_close_notify();
        }
    }
}

impl End {
    /// What who reads is told.
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
#[path = "tls_tests.rs"]
mod tests;
