//! A reader that asks FIONREAD what there is, and trusts the answer.

use std::{
    io::{ErrorKind, Read},
    net::TcpStream,
    thread,
    time::Duration,
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::PATIENCE;

/// Bytes of the buffer of nginx's stream proxy.
const BUFFER: usize = 16 * 1024;

/// Reads `whole` bytes as nginx does: it waits for an edge, reads what its buffer holds, asks FIONREAD for the
/// rest, and waits for the next edge when it is told that there is none. Panics when that does not come.
pub fn read_asking(mut reader: &TcpStream, whole: usize) -> Vec<u8> {
    reader.set_nonblocking(true).unwrap();
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLET | EpollFlags::EPOLLRDHUP;
    epoll.add(reader, EpollEvent::new(interest, 0)).unwrap();
    let (mut read, mut buffer) = (Vec::with_capacity(whole), vec![0; BUFFER]);
    while read.len() < whole {
        let limit = nix::sys::epoll::EpollTimeout::try_from(PATIENCE).unwrap();
        let woken = epoll.wait(&mut [EpollEvent::empty()], limit).unwrap();
        let told = rustix::io::ioctl_fionread(reader).unwrap();
        let at = read.len();
        assert_eq!(
            woken, 1,
            "it waits behind {at} of {whole}, FIONREAD says {told}"
        );
        // It has other things to do.
        thread::sleep(Duration::from_millis(2));
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => panic!("the end, behind {} of {whole}", read.len()),
                Ok(n) => {
                    read.extend_from_slice(&buffer[..n]);
                    if n < BUFFER || rustix::io::ioctl_fionread(reader).unwrap() == 0 {
                        break;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
        }
    }
    reader.set_nonblocking(false).unwrap();
    read
}
