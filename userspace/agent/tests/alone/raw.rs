//! Segments that no socket of the kernel's sends.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use nix::libc;
use socket2::{Domain, Protocol, Socket, Type};

use crate::common::*;

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

/// A segment of a connection that has these ends.
pub fn segment(from: SocketAddr, to: SocketAddr, flags: u8, data: &[u8]) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(target)) = (from.ip(), to.ip()) else {
        unreachable!("both are IPv4")
    };
    let mut segment = [
        &from.port().to_be_bytes()[..],
        &to.port().to_be_bytes(),
        &1u32.to_be_bytes(),
        &1u32.to_be_bytes(),
        &[5 << 4, flags],
        &u16::MAX.to_be_bytes(),
        &[0; 4],
        data,
    ]
    .concat();
    let sum = checksum(source, target, &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    segment
}

pub fn raw_socket(hosts: &Hosts) -> Socket {
    hosts.direct(|| {
        let tcp = Some(Protocol::from(libc::IPPROTO_TCP));
        let raw = Socket::new(Domain::IPV4, Type::RAW, tcp).unwrap();
        raw.set_nonblocking(true).unwrap();
        raw
    })
}
