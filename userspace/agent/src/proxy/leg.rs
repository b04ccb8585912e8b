//! One of a flow's two connections, as a direction reads and writes it.

use std::{
    io::{self, ErrorKind},
    net::Shutdown,
    os::fd::AsRawFd,
    task::{Context, Poll, ready},
};

use nix::sys::socket::{MsgFlags, recv};
use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream};

use super::{read::read, tls::Tls};

/// See the module. What is not encrypted costs a look at which it is.
pub(super) enum Leg<'a> {
    Plain(&'a TcpStream),
    Tls(&'a TcpStream, &'a mut Tls),
    /// Whether it is encrypted is not known yet, or it is about to be: only its end is read, and nothing
    /// is written.
    Waits(&'a TcpStream),
}

impl Leg<'_> {
    /// Reads what there is, 0 at the end. WouldBlock: another time. UnexpectedEof and InvalidData: of
    /// [TLS](Tls::poll_read).
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => {
                ready!(socket.poll_read_ready(cx))?;
                Poll::Ready(read(socket, buffer))
            }
            Self::Tls(socket, tls) => tls.poll_read(cx, socket, buffer),
            Self::Waits(socket) => poll_end_of(cx, socket),
        }
    }

    /// Ready when [`Self::try_write`] may take something.
    pub(super) fn poll_write_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => socket.poll_write_ready(cx),
            Self::Tls(socket, tls) => tls.poll_write_ready(cx, socket),
            // Whoever changes what it is has it polled again.
            Self::Waits(_) => Poll::Pending,
        }
    }

    /// Writes what can be written.
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

    /// Half-close: ready when the other side was told. A target that is gone already will say so on
    /// its own direction.
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

/// Ready with 0 when there is nothing but the end. What there is stays there, and the socket ready:
/// whoever changes what the leg is has it polled again.
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

/// Looks at what there is, 0 at the end. If that is something and less than `least`, more has to come
/// before the socket is ready again (WouldBlock).
pub(super) fn peek(socket: &TcpStream, buffer: &mut [u8], least: usize) -> io::Result<usize> {
    socket.try_io(Interest::READABLE, || {
        match recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_PEEK)? {
            n if n > 0 && n < least => Err(ErrorKind::WouldBlock.into()),
            n => Ok(n),
        }
    })
}
