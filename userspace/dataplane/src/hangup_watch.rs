//! A socket that is watched for its end only.
//!
//! Registered for reading, the dialled socket of a spliced flow would wake the agent with every
//! packet that the kernel redirects.

use std::{
    io,
    os::fd::OwnedFd,
    task::{Context, Poll, ready},
};

use tokio::{io::unix::AsyncFd, net::TcpStream};

use crate::sys;

/// A connection at rest.
pub struct HangupWatch(AsyncFd<OwnedFd>);

impl HangupWatch {
    /// Takes it from the runtime.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        Ok(Self(sys::watch_quietly(OwnedFd::from(stream.into_std()?))?))
    }

    /// Ready when the peer has ended its side, or the connection is gone.
    pub fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?.clear_ready();
            if sys::has_ended(self.0.get_ref())? {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Gives it back to the runtime.
    pub fn into_stream(self) -> io::Result<TcpStream> {
        TcpStream::from_std(self.0.into_inner().into())
    }
}
