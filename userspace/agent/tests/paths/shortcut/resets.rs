//! Resets of a peer: a reader that waits for more is told of each, whatever TCP had to drop before.

use std::{
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    time::Instant,
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use socket2::SockRef;

use super::*;
use crate::keeper::host::no_keeper_is_left;

/// Bytes that fill a reader's queue for the shortcut but for few, and those that do not fit.
const FILLS: usize = FLOW_BYTES - 76;
const MORE: usize = 500;

/// A reset has come by then, if the kernel lets it.
const SOON: Duration = Duration::from_millis(10);

/// Bytes that take TCP because of their size.
const BULK: usize = 70_000;

/// A receive buffer that the queue is far beyond: an application may choose it while the queue is full.
const BUFFER_BYTES: usize = 64 << 10;

/// The longest time for which a reader may not know: it asks a second after the last packet, when a look has found it. One that
/// nobody finds would wait for ever.
const UNTOLD_AT_MOST: Duration = Duration::from_secs(4);

/// Connections at most until the kernel has dropped a reset.
const TRIES: usize = 10;

/// Prepares a connection so that `server`'s reset comes to nothing. Its last bytes find no room, for what is past TCP counts against the receive buffer, so
/// there is a hole; and TCP answers the reset behind it with a challenge only if it has not answered anything else that was out of
/// its window for half a second, such as an acknowledgement while the window was shut.
///
/// Returns whether there is the hole: the kernel sends again after 200 ms what it has dropped.
fn makes_a_hole(client: &mut TcpStream, server: &mut TcpStream) -> bool {
    client.set_nonblocking(true).unwrap();
    let mut left = FILLS;
    while left > 0 {
        let part = left.min(16_000);
        server.write_all(&pattern(FILLS - left, part)).unwrap();
        left -= part;
    }
    let reads = SockRef::from(&*client);
    reads.set_recv_buffer_size(BUFFER_BYTES).unwrap();
    server.write_all(&pattern(FILLS, MORE)).unwrap();
    client.write_all(&[0; BULK]).unwrap();
    let mut received = Vec::new();
    let dry = client.read_to_end(&mut received).unwrap_err();
    assert_eq!(dry.kind(), ErrorKind::WouldBlock);
    assert!(received == pattern(0, received.len()), "other bytes");
    received.len() < FILLS + MORE
}

/// The challenges that TCP has not sent in the hosts' namespace.
fn skipped(hosts: &Hosts) -> u64 {
    tcp_counter(hosts, "TCPACKSkippedChallenge")
}

/// Whether the peer has acknowledged all that `socket` has sent. Then nothing is left to be sent again, to which the peer's host
/// would answer with another reset.
fn is_acknowledged(hosts: &Hosts, socket: &TcpStream) -> bool {
    let port = format!(":{:04X}", socket.local_addr().unwrap().port());
    let table = hosts.client(|| std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap());
    let mut rows = table.lines().map(|row| row.split_whitespace().collect());
    let own = rows
        .find(|row: &Vec<&str>| row[1].ends_with(&port))
        .unwrap();
    own[4].starts_with("00000000:")
}

/// Reads nothing but the end of what the peer has sent, which has to come in time.
fn told(client: &mut TcpStream) -> std::io::Result<usize> {
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
    epoll.add(&*client, EpollEvent::new(edges, 0)).unwrap();
    let until = Instant::now() + UNTOLD_AT_MOST;
    loop {
        match client.read(&mut [0; 1]) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            end => return end,
        }
        let left = until.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "it waits in vain");
        ready(&epoll, left.as_millis() as u16);
    }
}

/// The process that is to tell the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tells {
    Agent,
    /// The agent is dead.
    Keeper,
}

/// A client whose peer has reset their connection, which the kernel has dropped; and the peer's end.
fn untold(hosts: &Hosts, listener: &TcpListener, half_closes: bool) -> (TcpStream, TcpStream) {
    for _ in 0..TRIES {
        let (mut client, mut server) = pair(hosts, listener, Family::V4);
        if !makes_a_hole(&mut client, &mut server) {
            continue;
        }
        if half_closes {
            client.shutdown(Shutdown::Write).unwrap();
        }
        eventually("all is acknowledged", || is_acknowledged(hosts, &client));
        let before = skipped(hosts);
        // At once, whoever else has a descriptor of it.
        rustix::net::connect_unspec(&server).unwrap();
        thread::sleep(SOON);
        if skipped(hosts) == before + 1 {
            return (client, server);
        }
    }
    panic!("TCP has dropped no reset");
}

#[test]
fn a_reader_is_told_of_a_reset_that_tcp_drops() {
    for (tells, half_closes) in [
        (Tells::Agent, false),
        (Tells::Agent, true),
        (Tells::Keeper, false),
    ] {
        let hosts = Hosts::new();
        let listener = listen(&hosts, Family::V4);
        let agent = hosts.agent(&shortcut(&[port(&listener)]));
        agent
            .wait_for_log("the keeper has the shortcut's sockets")
            .unwrap();
        let (mut client, _server) = untold(&hosts, &listener, half_closes);
        if tells == Tells::Keeper {
            agent.signal(Signal::SIGKILL).unwrap();
        }
        let begun = Instant::now();
        let end = told(&mut client);
        println!(
            "{tells:?} {half_closes}: {end:?} after {:?}",
            begun.elapsed()
        );
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
        if tells == Tells::Keeper {
            // Though nobody has closed the sockets.
            no_keeper_is_left(&agent);
        }
    }
}
