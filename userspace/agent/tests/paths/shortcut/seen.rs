//! An application's view of its own sockets on the shortcut.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    os::fd::AsRawFd,
    thread,
    time::{Duration, Instant},
};

use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
    socket::{MsgFlags, recv},
};
use socket2::SockRef;

use super::{listen, messages, pair, pattern, port, ready, shortcut};
use crate::common::*;

#[test]
fn what_an_application_sees_is_what_tcp_shows() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&listener)]));
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    let mut bytes = [0; 64];

    client.write_all(b"hello").unwrap();
    assert_eq!(rustix::io::ioctl_fionread(&server).unwrap(), 5);
    assert_eq!(server.peek(&mut bytes).unwrap(), 5);
    assert_eq!(server.read(&mut bytes).unwrap(), 5);
    assert_eq!(&bytes[..5], b"hello");

    server.set_nonblocking(true).unwrap();
    let empty = server.read(&mut bytes).unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::WouldBlock);
    server.set_nonblocking(false).unwrap();

    let limit = Duration::from_millis(50);
    server.set_read_timeout(Some(limit)).unwrap();
    let begun = Instant::now();
    let empty = server.read(&mut bytes).unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::WouldBlock);
    assert!(begun.elapsed() >= limit);
    server.set_read_timeout(Some(PATIENCE)).unwrap();

    // A reader that blocks is woken.
    let waiting = blocked_read(&server);
    client.write_all(b"wake").unwrap();
    assert_eq!(waiting.join().unwrap().unwrap(), 4);

    for trigger in [EpollFlags::empty(), EpollFlags::EPOLLET] {
        let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
        let interest = EpollFlags::EPOLLIN | trigger;
        epoll.add(&server, EpollEvent::new(interest, 0)).unwrap();
        assert_eq!(ready(&epoll, 0), 0);
        client.write_all(b"event").unwrap();
        assert_eq!(ready(&epoll, 1000), 1, "{trigger:?}");
        let again = usize::from(trigger.is_empty());
        assert_eq!(ready(&epoll, 0), again, "{trigger:?}");
        assert_eq!(server.read(&mut bytes).unwrap(), 5);
        assert_eq!(ready(&epoll, 0), 0, "{trigger:?}");
    }

    // A FIN travels by TCP, and is not seen before the bytes that were sent before it.
    let sent = pattern(0, 100_000);
    for piece in sent.chunks(1000) {
        client.write_all(piece).unwrap();
    }
    client.shutdown(Shutdown::Write).unwrap();
    let mut received = Vec::new();
    server.read_to_end(&mut received).unwrap();
    assert!(sent == received);
    server.write_all(b"answer").unwrap();
    drop(server);
    received.clear();
    client.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"answer");

    // A reset is seen behind the bytes that were sent before it.
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    client.write_all(b"last words").unwrap();
    reset(client);
    assert_eq!(server.read(&mut bytes).unwrap(), 10);
    let reset = server.read(&mut bytes).unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);

    // Nobody reads any more.
    let (mut client, server) = pair(&hosts, &listener, Family::V4);
    drop(server);
    eventually("the client is told", || client.write_all(b"x").is_err());
    assert!(messages(&agent, "shortcut") > 100);
}

/// Costs of opting in: each of these differs from TCP on this kernel. The list is in
/// docs/decisions/0005-shortcut.md, too.
#[test]
fn what_an_application_sees_otherwise_than_with_tcp() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let _agent = hosts.agent(&shortcut(&[port(&listener)]));
    let mut bytes = [0; 64];

    // MSG_WAITALL returns what there is.
    let (mut client, server) = pair(&hosts, &listener, Family::V4);
    client.write_all(b"abc").unwrap();
    let all = recv(server.as_raw_fd(), &mut bytes[..6], MsgFlags::MSG_WAITALL);
    assert_eq!(all.unwrap(), 3);

    // splice(2) and sendfile(2) find nothing to take from the socket.
    client.write_all(b"abc").unwrap();
    let (_reads, pipe) = rustix::pipe::pipe().unwrap();
    let flags = rustix::pipe::SpliceFlags::NONBLOCK;
    server.set_nonblocking(true).unwrap();
    let spliced = rustix::pipe::splice(&server, None, &pipe, None, 3, flags);
    assert_eq!(spliced.unwrap_err(), rustix::io::Errno::AGAIN);

    // A read that blocks is told of a reset at the second try.
    let (client, mut server) = pair(&hosts, &listener, Family::V4);
    let waiting = blocked_read(&server);
    reset(client);
    let first = waiting.join().unwrap().unwrap_err();
    assert_eq!(first.kind(), ErrorKind::WouldBlock);
    let second = server.read(&mut bytes).unwrap_err();
    assert_eq!(second.kind(), ErrorKind::ConnectionReset);

    // A read that blocks is woken when another thread of it may send on, and says that there is
    // nothing to read.
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    let waiting = blocked_read(&client);
    let much = 16 << 20;
    thread::scope(|scope| {
        scope.spawn(|| client.write_all(&pattern(0, much)).unwrap());
        let mut received = vec![0; much];
        server.read_exact(&mut received).unwrap();
        assert!(received == pattern(0, much));
    });
    let woken = waiting.join().unwrap().unwrap_err();
    assert_eq!(woken.kind(), ErrorKind::WouldBlock);

    // To close with bytes unread ends the flow for the peer, and does not reset it.
    let (mut client, server) = pair(&hosts, &listener, Family::V4);
    client.write_all(b"unread").unwrap();
    drop(server);
    assert_eq!(client.read(&mut bytes).unwrap(), 0);
}

/// Returns once the thread that reads sleeps.
fn blocked_read(from: &TcpStream) -> thread::JoinHandle<std::io::Result<usize>> {
    let (tell, told) = std::sync::mpsc::channel();
    let mut from = from.try_clone().unwrap();
    let reads = thread::spawn(move || {
        tell.send(nix::unistd::gettid()).unwrap();
        from.read(&mut [0; 64])
    });
    let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
    eventually("the reader sleeps", || {
        let stat = std::fs::read_to_string(&stat).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('S')
    });
    reads
}

fn reset(socket: TcpStream) {
    let linger = Some(Duration::ZERO);
    SockRef::from(&socket).set_linger(linger).unwrap();
}
