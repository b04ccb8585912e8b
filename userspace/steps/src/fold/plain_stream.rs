//! The byte stream of a shared connection that is not encrypted. It may skip TCP, as a short leg does.

use std::{
    io::{self, ErrorKind},
    pin::Pin,
    task::{Context, Poll, ready},
};

use dataplane::{Leg, LegApplication, Legs, LongLeg};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// A connection to a database, and the leg that it is while it skips TCP. The leg comes last: it ends when the socket is
/// closed.
pub(super) struct PlainStream {
    socket: TcpStream,
    leg: Option<Leg>,
}

impl PlainStream {
    pub(super) fn new(socket: TcpStream) -> Self {
        Self { socket, leg: None }
    }

    /// Has the connection skip TCP from now on. To be called once the database has answered on it.
    ///
    /// # Errors
    /// The connection takes TCP, as before.
    pub(super) fn skip_tcp(&mut self, legs: &Legs) -> Result<(), LongLeg> {
        let own = SockRef::from(&self.socket);
        self.leg = Some(legs.enter(own, LegApplication::Database)?);
        Ok(())
    }
}

impl AsyncRead for PlainStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, to)
    }
}

impl AsyncWrite for PlainStream {
    /// Writes as much as the socket takes. Of a short leg that is no word that it takes no more, and so no reason to wait until it says
    /// that it does: TCP says so, and a sockmap need not.
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket.poll_write_ready(cx))?;
            let write = || self.socket.try_write(bytes);
            match self.leg.as_ref().map_or_else(write, |leg| leg.write(write)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
