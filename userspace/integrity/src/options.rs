//! Options of sockets that no crate wraps: the one file here with `unsafe`.

use std::{mem, net::TcpStream, os::fd::AsRawFd};

use nix::libc;
use rustix::io::Errno;

fn done(result: libc::c_int) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_raw_os_error(
            std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EINVAL),
        )),
    }
}

/// Sets SO_RCVLOWAT.
pub(super) fn set_low_at(socket: &TcpStream, bytes: usize) -> Result<(), Errno> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(1);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    let (value, length) = ((&raw const bytes).cast(), size_of_val(&bytes) as u32);
    // SAFETY: the pointer is to a local of the length given, which the kernel reads and does not keep.
    done(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, length) })
}

/// Asks TCP_INFO.
pub(super) fn ask_tcp_info(socket: &TcpStream) -> Result<(), Errno> {
    // SAFETY: it is made of integers, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut length = size_of_val(&info) as u32;
    let value = (&raw mut info).cast();
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: the pointers are to locals, of which the kernel writes no more than the length given.
    done(unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, value, &raw mut length) })
}

/// Asks SIOCOUTQ: bytes that the peer has not acknowledged.
pub(super) fn unsent_bytes(socket: &TcpStream) -> Result<u64, Errno> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes an int, which this is.
    done(unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) })?;
    Ok(bytes.unsigned_abs().into())
}
