//! A side of a flow: one of its two connections, as a direction reads and writes it.

use std::{
    io::{self, ErrorKind},
    net::Shutdown,
    os::fd::{AsRawFd, RawFd},
    task::{Context, Poll, ready},
};

use nix::sys::socket::{MsgFlags, recv};
use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream};

use super::{read::Reads, tls_io::Tls};

/// One connection, plain or TLS. A plain one costs a branch more than a bare socket.
pub(super) enum LegIo<'a> {
    Plain(&'a TcpStream),
    Tls(&'a TcpStream, &'a mut Tls),
    /// A connection of which it is not known yet whether it is encrypted, or that is about to be.
    /// Only its end is read, and nothing is written.
    Waits(&'a TcpStream),
}

impl LegIo<'_> {
    /// Reads the bytes that there are; 0 at the end. WouldBlock: another time. UnexpectedEof and
    /// InvalidData come from [TLS](Tls::poll_read).
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        reads: &mut Reads,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => reads.poll(cx, socket, buffer),
            Self::Tls(socket, tls) => tls.poll_read(cx, socket, reads, buffer),
            Self::Waits(socket) => poll_end_of(cx, socket),
        }
    }

    /// The socket, if bytes go to it as they are.
    pub(super) fn plain_socket(&self) -> Option<RawFd> {
        match self {
            Self::Plain(socket) => Some(socket.as_raw_fd()),
            Self::Tls(..) | Self::Waits(_) => None,
        }
    }

    /// Ready when [`Self::try_write`] may take something.
    pub(super) fn poll_write_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => socket.poll_write_ready(cx),
            Self::Tls(socket, tls) => tls.poll_write_ready(cx, socket),
            // The code that changes the variant has the leg polled again.
            Self::Waits(_) => Poll::Pending,
        }
    }

    /// Writes as many bytes as can be written.
    pub(super) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_write(bytes),
            Self::Tls(socket, tls) => tls.try_write(socket, bytes),
            Self::Waits(_) => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// Ready when everything that was written is in the socket.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) | Self::Waits(_) => Poll::Ready(Ok(())),
            Self::Tls(socket, tls) => tls.poll_flush(cx, socket),
        }
    }

    /// Ends the writing direction (half-close). Ready when the other side was told. A target that
    /// is gone already reports that on its own direction.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Plain(socket) => {
                let _ = SockRef::from(*socket).shutdown(Shutdown::Write);
                Poll::Ready(())
            }
            Self::Tls(socket, tls) => tls.poll_end(cx, socket),
            Self::Waits(_) => Poll::Pending,
        }
    }
}

/// Ready with 0 when there is nothing but the end. Other bytes stay in the socket, which stays
/// ready: the code that changes the leg's variant has it polled again.
fn poll_end_of(cx: &mut Context<'_>, socket: &TcpStream) -> Poll<io::Result<usize>> {
    loop {
        ready!(socket.poll_read_ready(cx))?;
        match peek(socket, &mut [0], 0) {
            Ok(0) => return Poll::Ready(Ok(0)),
            Ok(_) => return Poll::Pending,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Poll::Ready(Err(e)),
        }
    }
}

/// Looks at the bytes that there are, without taking them; 0 at the end. If there are some, but
/// fewer than `least`, more have to come before the socket is ready again (WouldBlock).
pub(super) fn peek(socket: &TcpStream, buffer: &mut [u8], least: usize) -> io::Result<usize> {
    socket.try_io(Interest::READABLE, || {
        match recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_PEEK)? {
            n if n > 0 && n < least => Err(ErrorKind::WouldBlock.into()),
            n => Ok(n),
        }
    })
}
