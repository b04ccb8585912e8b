//! The reads of one direction, each in one system call.

use std::{
    io::{self, ErrorKind},
    os::fd::AsRawFd,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use nix::sys::socket::{MsgFlags, recv};
use tokio::{
    io::Interest,
    net::TcpStream,
    task::coop,
    time::{self, Sleep},
};

/// The most bytes that are read at once, so that large frames take few system calls. One direction
/// of a flow can hold back at most this much, too.
pub(super) const CHUNK_BYTES: usize = 64 * 1024;

/// The time after which a socket that was read is read once more. Nobody is known to send urgent data to a database, so that
/// it may take a while, and must cost next to nothing.
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// The reads of one direction.
///
/// A read that does not fill its buffer counts as one that has emptied the socket ([`read`]). Where urgent data (`MSG_OOB`) is in the
/// stream it has not: the kernel ends a read there, leaves the urgent byte out of the next one, and does not tell of the bytes behind it before
/// further ones come. So a socket that was read is read once more later, whatever the runtime knows of it.
#[derive(Default)]
pub(super) struct Reads {
    /// Whether the socket was read since `look` was set.
    has_read: bool,
    /// Ends when the socket is to be read once more.
    look: Option<Pin<Box<Sleep>>>,
}

impl Reads {
    /// Reads the bytes that there are; 0 at the end.
    ///
    /// # Errors
    /// WouldBlock when there is nothing; those of recv(2).
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &TcpStream,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(ready) = from.poll_read_ready(cx) {
            ready?;
            self.has_read = true;
            return Poll::Ready(read(from, buffer));
        }
        ready!(self.poll_look(cx));
        let n = recv(from.as_raw_fd(), buffer, MsgFlags::empty())?;
        self.has_read = true;
        Poll::Ready(Ok(n))
    }

    /// Ready when the socket is to be read once more.
    fn poll_look(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.look {
            Some(look) if look.is_elapsed() => {
                self.look = None;
                Poll::Ready(())
            }
            // A task that has used up its budget is polled again, and could not begin to wait now.
            None if self.has_read && coop::has_budget_remaining() => {
                self.has_read = false;
                let look = self.look.insert(Box::pin(time::sleep(LOOK_AFTER)));
                // Once: a flow has the same waker for its whole life.
                look.as_mut().poll(cx).map(|()| self.look = None)
            }
            _ => Poll::Pending,
        }
    }
}

/// Reads the bytes that there are; 0 at the end.
///
/// A read that does not fill the buffer has emptied the socket: the runtime is told so, and
/// the next look at the socket waits for its next event instead of asking the kernel only to
/// hear EAGAIN. That is half of a relay's reads.
fn read(from: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = None;
    let outcome = from.try_io(Interest::READABLE, || {
        let n = recv(from.as_raw_fd(), buffer, MsgFlags::empty())?;
        read = Some(n);
        if n > 0 && n < buffer.len() {
            Err(ErrorKind::WouldBlock.into())
        } else {
            Ok(n)
        }
    });
    read.map_or(outcome, Ok)
}
