//! Frames, byte by byte.

use std::net::{IpAddr, SocketAddr};

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

/// Where the IP header begins in a frame without tags.
pub const IP: usize = 14;

/// A segment, with whatever is odd about it.
#[derive(Clone, Debug)]
pub struct Segment {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub flags: u8,
    pub ttl: u8,
    pub payload: Vec<u8>,
    /// 802.1Q tags.
    pub tags: usize,
    /// Bytes of no-operations behind the IPv4 header.
    pub options: usize,
    /// Extension headers behind the IPv6 header: their numbers.
    pub extensions: Vec<u8>,
    /// The fragment field of IPv4's header.
    pub fragment: u16,
}

impl Segment {
    pub fn new(from: &str, to: &str, flags: u8) -> Self {
        Self::between(from.parse().unwrap(), to.parse().unwrap(), flags)
    }

    pub fn between(from: SocketAddr, to: SocketAddr, flags: u8) -> Self {
        Self {
            from,
            to,
            flags,
            ttl: 64,
            payload: Vec::new(),
            tags: 0,
            options: 0,
            extensions: Vec::new(),
            fragment: 0,
        }
    }

    /// The whole frame, with right checksums.
    pub fn frame(&self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for _ in 0..self.tags {
            frame.extend([0x81, 0x00, 0x00, 0x07]);
        }
        let tcp = self.tcp();
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let header = 20 + self.options;
                frame.extend([0x08, 0x00]);
                let mut ip = vec![0x40 | (header / 4) as u8, 0];
                ip.extend(((header + tcp.len()) as u16).to_be_bytes());
                ip.extend([0, 1]);
                ip.extend(self.fragment.to_be_bytes());
                ip.extend([self.ttl, 6, 0, 0]);
                ip.extend(from.octets());
                ip.extend(to.octets());
                ip.extend(vec![1; self.options]);
                let check = !folded(sum(&ip));
                ip[10..12].copy_from_slice(&check.to_be_bytes());
                frame.extend(ip);
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend([0x86, 0xdd]);
                let mut chain = self.extensions.clone();
                chain.push(6);
                frame.extend([0x60, 0, 0, 0]);
                let length = tcp.len() + 8 * self.extensions.len();
                frame.extend((length as u16).to_be_bytes());
                frame.extend([chain[0], self.ttl]);
                frame.extend(from.octets());
                frame.extend(to.octets());
                for next in &chain[1..] {
                    frame.extend([*next, 0, 0, 0, 0, 0, 0, 0]);
                }
            }
            _ => panic!("two families"),
        }
        frame.extend(tcp);
        frame
    }

    fn tcp(&self) -> Vec<u8> {
        let mut tcp = self.from.port().to_be_bytes().to_vec();
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend([0, 0, 0, 1, 0, 0, 0, 0]);
        tcp.extend([5 << 4, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(&self.payload);
        let pseudo = pseudo_header(self.from.ip(), self.to.ip(), 6, tcp.len());
        let check = !folded(sum(&tcp) + u64::from(pseudo));
        tcp[16..18].copy_from_slice(&check.to_be_bytes());
        tcp
    }
}

/// The sum over the pseudo-header.
pub fn pseudo_header(from: IpAddr, to: IpAddr, protocol: u8, length: usize) -> u16 {
    let bytes = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    folded(sum(&bytes(from)) + sum(&bytes(to)) + u64::from(protocol) + length as u64)
}

pub fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(2);
    words
        .map(|w| u64::from(w[0]) << 8 | u64::from(w.get(1).copied().unwrap_or(0)))
        .sum()
}

pub fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
