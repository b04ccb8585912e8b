//! A SYN that waits for the database, and is sent again and again by whoever can write segments of its own.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
};

use nix::sys::signal::Signal;

use crate::{
    common::*,
    raw::{raw_socket, segment},
};

const SYN: u8 = 0x02;

/// An address that nobody has.
const STRANGER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9);

/// Many times what the ring holds.
const REPEATED: usize = 1_000;

#[test]
fn a_syn_that_is_repeated_takes_no_room_of_others() {
    let _turn = crate::turn();
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::Here, Family::V4);
    let to = listener.local_addr().unwrap();
    // Of one page, which is a dozen of them.
    let hook = "UNDERPASS_TEST_HOOKS=ring_bytes=4096";
    let agent = hosts.switched(hook, "", &enrich(&[to.port()]));
    let (agents, raw) = (listens_at(&agent), raw_socket(&hosts));
    agent.signal(Signal::SIGSTOP).unwrap();
    let begin = || {
        let socket = socket(Family::V4);
        socket.set_nonblocking(true).unwrap();
        assert!(socket.connect(&to.into()).is_err());
        TcpStream::from(socket)
    };
    let mut first = hosts.client(begin);
    let from = first.local_addr().unwrap();
    let send = |from| {
        let syn = segment(from, agents, SYN, b"");
        raw.send_to(&syn, &agents.into()).unwrap();
    };
    (0..REPEATED).for_each(|_| send(from));
    // They come to where SYNs are held, and are known there: nobody else's is.
    send(STRANGER);
    let mut other = hosts.client(begin);
    agent.signal(Signal::SIGCONT).unwrap();
    assert_eq!(cause(&agent, "stranger"), 1.0);
    assert_eq!(cause(&agent, "ring_full"), 0.0);
    for client in [&mut first, &mut other] {
        client.set_nonblocking(false).unwrap();
        let (mut server, _) = accept(&listener);
        server.write_all(b"hello").unwrap();
        drop(server);
    }
    for mut client in [first, other] {
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"hello");
    }
}
