//! How much a flow and a host may hold, and what takes TCP instead.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    thread,
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use sandbox::Agent;
use socket2::SockRef;

use super::{
    FLOW_BYTES, FLOW_MESSAGES, bytes, exchange, flows, listen, messages, pair, pattern, port,
    ready, safer, shortcut, tcp_counter,
};
use crate::common::*;

/// Bytes that a flow may hold in the kernel.
const KERNEL_BYTES: u64 = 8 << 20;

const TCP_BUFFER_BYTES: usize = 256 << 10;

/// Bytes after which TCP's window is as wide as it gets.
const BULK_BYTES: usize = 16 << 20;

/// Packets that TCP has dropped in the hosts' namespace for want of room in a receive buffer.
fn dropped(hosts: &Hosts) -> u64 {
    ["RcvPruned", "TCPRcvQDrop"]
        .map(|name| tcp_counter(hosts, name))
        .iter()
        .sum()
}

/// Sends messages of so many bytes, of one pattern, until no more are taken. Returns how many bytes were.
fn fill(mut writer: &TcpStream, message: usize) -> usize {
    let (mut sent, mut blocked) = (0, 0);
    // TCP's own buffers take a moment to be full.
    while blocked < 100 {
        match writer.write(&pattern(sent, message)) {
            Ok(n) => (sent, blocked) = (sent + n, 0),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                blocked += 1;
                thread::yield_now();
            }
            Err(e) => panic!("{e}"),
        }
    }
    sent
}

fn fill_and_drain(
    (hosts, agent): (&Hosts, &Agent<'_>),
    client: &mut TcpStream,
    server: &mut TcpStream,
    epoll: &Epoll,
    is_first: bool,
) {
    let (past_tcp, refused) = (bytes(agent, "shortcut"), messages(agent, "flow_full"));
    let sent = fill(client, 8000);
    let queued = bytes(agent, "shortcut") - past_tcp;
    // Or the agent was looking after this very socket when the first one came, and all took TCP.
    if queued > 0 {
        let told = rustix::io::ioctl_fionread(&*server).unwrap();
        assert_eq!(told, queued);
        // The reader has chosen its buffer.
        let bound = SockRef::from(&*server).recv_buffer_size().unwrap() as u64 / 2;
        assert!(queued <= bound, "{queued}");
        assert!(sent as u64 > queued, "{sent}");
        // Behind a round in which all took TCP, its window may leave less.
        if is_first {
            assert!(queued > bound - 8000, "{queued}");
            assert!(messages(agent, "flow_full") > refused);
        }
    }
    // Both ends are here.
    let held = kernel_bytes(&hosts.app);
    println!(
        "{sent} bytes were taken, {queued} of them past TCP; the kernel holds {held} for them"
    );
    assert!(held < KERNEL_BYTES, "{held}");
    assert!(sent < 16 << 20, "{sent}");

    let mut received = 0;
    // As much as there may be: the read that empties the queue is short.
    let mut buffer = vec![0; 16 << 20];
    while received < sent {
        assert_eq!(ready(epoll, 1000), 1, "no edge after {received} of {sent}");
        let n = server.read(&mut buffer).unwrap();
        assert!(buffer[..n] == pattern(received, n), "at {received}");
        received += n;
    }
}

/// The bytes past TCP count against the reader's receive buffer. TCP would drop what its window has let through if a buffer that
/// cannot grow were full of them.
#[test]
fn nothing_is_dropped_for_want_of_a_receive_buffer() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&listener)]));
    for message in [100, 8_000, 60_000] {
        for (chosen, bulk) in [
            (None, 0),
            (Some(TCP_BUFFER_BYTES), 0),
            (Some(TCP_BUFFER_BYTES), BULK_BYTES),
            (Some(FLOW_BYTES), 0),
            (Some(FLOW_BYTES), BULK_BYTES),
        ] {
            let (mut client, server) = pair(&hosts, &listener, Family::V4);
            let reads = SockRef::from(&server);
            if let Some(chosen) = chosen {
                reads.set_recv_buffer_size(chosen).unwrap();
            }
            // By TCP, whose window grows with it.
            thread::scope(|scope| {
                scope.spawn(|| client.write_all(&vec![0; bulk]).unwrap());
                (&server).read_exact(&mut vec![0; bulk]).unwrap();
            });
            client.set_nonblocking(true).unwrap();
            let room = chosen.map_or(usize::MAX, |_| reads.recv_buffer_size().unwrap() / 2);
            let most = room.min(FLOW_BYTES) as u64;
            let (past_tcp, before) = (bytes(&agent, "shortcut"), dropped(&hosts));
            let sent = fill(&client, message);
            let queued = bytes(&agent, "shortcut") - past_tcp;
            let by_number = (FLOW_MESSAGES - 128) * message as u64;
            let said = format!("{message} {chosen:?} {bulk}: {queued} past TCP");
            assert!(queued <= most, "{said}");
            // Behind bulk TCP's window may leave no room.
            let is_full = queued + message as u64 > most.min(by_number);
            assert!(is_full || bulk > 0, "{said}");
            let mut received = vec![0; sent];
            (&server).read_exact(&mut received).unwrap();
            assert!(received == pattern(0, sent));
            assert_eq!(dropped(&hosts), before, "{said}");
        }
    }
}

/// A reader that has stopped costs the kernel no more than with TCP and the bound, and misses
/// nothing when it goes on, whichever way the bytes took: it trusts edges and short reads, as
/// netty's and tokio's do.
#[test]
fn a_reader_that_stops_is_bounded_and_misses_nothing() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&listener)]));
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    client.set_nonblocking(true).unwrap();
    server.set_nonblocking(true).unwrap();
    // Of themselves TCP's buffers grow from round to round, beyond what is asserted of the whole.
    let (sends, reads) = (SockRef::from(&client), SockRef::from(&server));
    sends.set_send_buffer_size(TCP_BUFFER_BYTES).unwrap();
    reads.set_recv_buffer_size(TCP_BUFFER_BYTES).unwrap();
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
    epoll.add(&server, EpollEvent::new(interest, 0)).unwrap();
    // TCP's own edge may come before the agent's, which then is not needed.
    for round in 1.. {
        fill_and_drain(
            (&hosts, &agent),
            &mut client,
            &mut server,
            &epoll,
            round == 1,
        );
        if agent.metric("underpass_shortcut_nudges_total").unwrap() > 0.0 {
            break;
        }
        assert!(round < 30, "no reader was nudged");
    }
    // And back, but for what is sent while the agent looks after this very socket.
    let (before, mut again) = (messages(&agent, "shortcut"), [0; 5]);
    eventually("it is on the shortcut again", || {
        client.write_all(b"again").unwrap();
        assert_eq!(ready(&epoll, 1000), 1);
        assert_eq!(server.read(&mut again).unwrap(), 5);
        messages(&agent, "shortcut") == before + 1
    });
}

/// A reader that asks FIONREAD would read a little at each edge, and seem to read on.
#[test]
fn a_spill_is_announced_once() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&listener)]));
    let (client, mut server) = pair(&hosts, &listener, Family::V4);
    client.set_nonblocking(true).unwrap();
    while (&client).write(&[1; 1 << 14]).is_ok() {}
    let past = bytes(&agent, "shortcut") as usize;
    server.read_exact(&mut vec![0; past]).unwrap();
    // By then the agent has looked many times.
    eventually("it has left", || safer(&agent, "reader_stalled") == 1);
    let nudges = agent.metric("underpass_shortcut_nudges_total").unwrap();
    assert_eq!(nudges, 1.0);
}

/// Bytes take TCP, in order, where the host's TCP has no memory to spare.
#[test]
fn on_a_host_that_is_short_of_memory_bytes_take_tcp() {
    let hosts = Hosts::new();
    let (listener, other) = (listen(&hosts, Family::V4), listen(&hosts, Family::V4));
    let policy = shortcut(&[port(&listener)]);
    let agent = hosts.switched("UNDERPASS_TEST_HOOKS=host_pages=0", "", &policy);
    // Somebody has some of it, whoever else is on this host.
    let (holder, _reader) = pair(&hosts, &other, Family::V4);
    holder.set_nonblocking(true).unwrap();
    while (&holder).write(&[0; 1 << 16]).is_ok() {}
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    exchange(&mut client, &mut server);
    assert_eq!(flows(&agent), 1);
    assert_eq!(messages(&agent, "shortcut"), 0);
    assert_eq!(messages(&agent, "host_full"), 200);
    let sent = pattern(0, 4 << 20);
    thread::scope(|scope| {
        scope.spawn(|| client.write_all(&sent).unwrap());
        let mut received = vec![0; sent.len()];
        server.read_exact(&mut received).unwrap();
        assert!(received == sent, "other bytes than were sent");
    });
    assert_eq!(bytes(&agent, "shortcut"), 0);
}

/// Each message costs the kernel more than its bytes.
#[test]
fn short_messages_are_bounded_by_their_number() {
    let hosts = Hosts::new();
    let listener = listen(&hosts, Family::V4);
    let agent = hosts.agent(&shortcut(&[port(&listener)]));
    let (mut client, mut server) = pair(&hosts, &listener, Family::V4);
    // A reader that keeps up is never over the bound, however many there were.
    let mut byte = [0; 1];
    for n in 0..5000_usize {
        client.write_all(&pattern(n, 1)).unwrap();
        server.read_exact(&mut byte).unwrap();
    }
    assert_eq!(messages(&agent, "shortcut"), 5000);
    for n in 5000..15_000_usize {
        client.write_all(&pattern(n, 1)).unwrap();
    }
    let put = messages(&agent, "shortcut") - 5000;
    assert!(
        (FLOW_MESSAGES - 128..=FLOW_MESSAGES + 128).contains(&put),
        "{put}"
    );
    let mut received = vec![0; 10_000];
    server.read_exact(&mut received).unwrap();
    assert!(received == pattern(5000, 10_000));
}
