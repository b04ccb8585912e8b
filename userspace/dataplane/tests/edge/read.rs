//! Frames, read as the standards have it and not as the program does.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::frame::{IP, folded, pseudo_header, sum};

/// A TCP segment in a plain packet in an untagged frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub ttl: u8,
    pub flags: u8,
    /// Whether the checksum of IPv4's header is right; IPv6 has none.
    pub header_is_right: bool,
    /// Whether the segment's checksum is right.
    pub check_is_right: bool,
    /// The field is the pseudo-header's sum: the rest was left to the hardware.
    pub check_is_partial: bool,
    /// Everything behind the TCP header's checksum.
    pub rest: Vec<u8>,
}

/// None: it is something else, or not what its headers say.
pub fn read(frame: &[u8]) -> Option<Read> {
    let packet = frame.get(IP..)?;
    let (from, to, ttl, header_is_right, segment) = match frame.get(12..14)? {
        [0x08, 0x00] => {
            let header = packet.get(..20)?;
            let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
            let cut = u16::from_be_bytes([header[6], header[7]]) & 0x3fff;
            if header[0] != 0x45 || header[9] != 6 || cut != 0 || total < 20 {
                return None;
            }
            let ip = |at: usize| {
                Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3])
            };
            let right = folded(sum(header)) == 0xffff;
            (
                IpAddr::V4(ip(12)),
                IpAddr::V4(ip(16)),
                header[8],
                right,
                packet.get(20..total)?,
            )
        }
        [0x86, 0xdd] => {
            let header = packet.get(..40)?;
            let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
            if header[0] >> 4 != 6 || header[6] != 6 {
                return None;
            }
            let ip = |at: usize| {
                IpAddr::V6(Ipv6Addr::from(
                    <[u8; 16]>::try_from(&header[at..at + 16]).unwrap(),
                ))
            };
            (ip(8), ip(24), header[7], true, packet.get(40..40 + length)?)
        }
        _ => return None,
    };
    let tcp = segment.get(..20)?;
    let header = usize::from(tcp[12] >> 4) * 4;
    if header < 20 || header > segment.len() {
        return None;
    }
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let pseudo = pseudo_header(from, to, 6, segment.len());
    Some(Read {
        from: SocketAddr::new(from, port(0)),
        to: SocketAddr::new(to, port(2)),
        ttl,
        flags: tcp[13],
        header_is_right,
        check_is_right: folded(sum(segment) + u64::from(pseudo)) == 0xffff,
        check_is_partial: port(16) == pseudo,
        rest: segment[18..].to_vec(),
    })
}
