//! A read from a socket in one system call.

use std::{
    io::{self, ErrorKind},
    os::fd::AsRawFd,
};

use nix::sys::socket::{MsgFlags, recv};
use tokio::{io::Interest, net::TcpStream};

/// The most bytes that are read at once, so that large frames take few system calls. One direction
/// of a flow can hold back at most this much, too.
pub(super) const CHUNK_BYTES: usize = 64 * 1024;

/// Reads the bytes that there are; 0 at the end.
///
/// A read that does not fill the buffer has emptied the socket: the runtime is told so, and
/// the next look at the socket waits for its next event instead of asking the kernel only to
/// hear EAGAIN. That is half of a relay's reads.
///
/// # Errors
/// WouldBlock when there is nothing; those of recv(2).
pub(super) fn read(from: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
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
