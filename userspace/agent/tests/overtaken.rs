//! Data that arrives at the agent's listener although its handshake is done: the kernel finds
//! neither the request nor the accepted socket for a moment. It is not answered, and sent again.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

mod common;

use std::{
    io::Read,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use common::*;
use nix::libc;
use socket2::{Domain, Protocol, Socket, Type};

/// `UP_FRESH_NS`, and as much again.
const NO_LONGER_FRESH: Duration = Duration::from_millis(200);
/// On the loopback an answer is there before the sender is back.
const ANSWER: Duration = Duration::from_millis(20);
/// A busy machine may be too slow for any of them, so that there are some.
const ATTEMPTS: usize = 50;

const IPV4_HEADER_BYTES: usize = 20;
const RST: u8 = 0x04;
const PSH_ACK: u8 = 0x18;

/// One's complement of the sum of words, over RFC 9293's pseudo-header and the segment.
fn checksum(from: Ipv4Addr, to: Ipv4Addr, segment: &[u8]) -> u16 {
    let length = u16::try_from(segment.len()).unwrap();
    let pseudo = [
        &from.octets()[..],
        &to.octets(),
        &[0, 6],
        &length.to_be_bytes(),
    ]
    .concat();
    let sum: u32 = [&pseudo, segment]
        .iter()
        .flat_map(|bytes| bytes.chunks(2))
        .map(|word| {
            u32::from(u16::from_be_bytes([
                word[0],
                word.get(1).copied().unwrap_or(0),
            ]))
        })
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap()
}

/// A segment with one byte of data, and nothing that would be expected in it.
fn segment(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(target)) = (from.ip(), to.ip()) else {
        unreachable!("both are IPv4")
    };
    let mut segment = [
        &from.port().to_be_bytes()[..],
        &to.port().to_be_bytes(),
        &1u32.to_be_bytes(),
        &1u32.to_be_bytes(),
        &[5 << 4, PSH_ACK],
        &u16::MAX.to_be_bytes(),
        &[0; 4],
        b"?",
    ]
    .concat();
    let sum = checksum(source, target, &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    segment
}

/// Whether a reset comes for data from `from`, which has no socket any more.
fn is_reset(raw: &Socket, from: SocketAddr, to: SocketAddr) -> bool {
    raw.send_to(&segment(from, to), &to.into()).unwrap();
    let end = Instant::now() + ANSWER;
    while Instant::now() < end {
        let mut packet = [0; 128];
        if (&mut &*raw).read(&mut packet).is_err() {
            continue;
        }
        let tcp = &packet[IPV4_HEADER_BYTES..];
        let is_to = tcp[2..4] == from.port().to_be_bytes();
        let is_from = tcp[..2] == to.port().to_be_bytes();
        if is_to && is_from && tcp[13] & RST != 0 {
            return true;
        }
    }
    false
}

/// A connection that its client resets at once, and with it the accepted socket; who it was.
fn reset_at_once(hosts: &Hosts, to: SocketAddr) -> SocketAddr {
    hosts.client(|| {
        let client = connect(Family::V4, to).unwrap();
        let linger = socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO));
        linger.unwrap();
        client.local_addr().unwrap()
    })
}

#[test]
fn data_is_not_answered_right_after_its_handshake_and_reset_later() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::Here, Family::V4);
    let to = listener.local_addr().unwrap();
    let agent = hosts.agent(&enrich(&[to.port()]));
    let agents = listens_at(&agent);
    let raw = hosts.direct(|| {
        let raw = Socket::new(
            Domain::IPV4,
            Type::RAW,
            Some(Protocol::from(libc::IPPROTO_TCP)),
        );
        let raw = raw.unwrap();
        raw.set_nonblocking(true).unwrap();
        raw
    });
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let before = cause(&agent, "overtaken");
        let from = reset_at_once(&hosts, to);
        assert_eq!(cause(&agent, "overtaken"), before);
        let reset = is_reset(&raw, from, agents);
        let counted = cause(&agent, "overtaken") - before;
        // Either way, and never both.
        assert_eq!(counted, f64::from(u8::from(!reset)));
        last = (!reset).then_some(from).or(last);
        if last.is_some() {
            break;
        }
    }
    let from = last.expect("one of them is in time");
    std::thread::sleep(NO_LONGER_FRESH);
    let before = cause(&agent, "overtaken");
    assert!(is_reset(&raw, from, agents));
    assert_eq!(cause(&agent, "overtaken"), before);
}
