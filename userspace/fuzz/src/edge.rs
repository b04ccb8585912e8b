//! Any frame, as the edge's program sees it, and as the library `etherparse` does.
//!
//! For any input: what the library finds to be TCP the program finds to be, with the same addresses, ports and flags, and odd if
//! something stands between the frame's beginning and the segment that it would not forward; what the program would forward the library finds to be TCP.

use std::net::{IpAddr, Ipv6Addr};

use ebpf::abi;
use etherparse::{LinkExtSlice, NetSlice, SlicedPacket, TransportSlice};

use super::kernel::{Parsed, parse};

/// `KIND_TCP` of `enum kind` in edge/parse.h.
const TCP: u32 = 1;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// The bytes of a TCP header without options.
const TCP_BYTES: usize = 20;

/// The longest frame that is looked at.
const MAX_BYTES: usize = 1 << 16;

/// The type of an Ethernet frame with a VLAN tag that the program does not know: those of old devices.
const OLD_TAG: u16 = 0x9100;

/// A frame. The first two bytes say how long it is beyond the first buffer, which is what follows.
pub fn edge(data: &[u8]) {
    let [low, high, first @ ..] = data else {
        return;
    };
    let others = usize::from(u16::from_le_bytes([*low, *high]));
    let first = &first[..first.len().min(MAX_BYTES)];
    let frame = [first, &vec![0; others]].concat();
    let seen = parse(first, frame.len());
    let found = Found::of(&frame).filter(|found| found.header_end <= first.len());
    let is_plain = seen.kind == TCP && u32::from(seen.oddity) == abi::EDGE_OTHER;
    match found {
        Some(found) => found.holds_for(&seen, is_plain),
        None => assert!(!is_plain, "it would be forwarded: {seen:?}"),
    }
}

/// A TCP segment in a frame.
#[derive(Debug)]
struct Found {
    ends: [IpAddr; 2],
    ports: [u16; 2],
    flags: u8,
    /// Whether nothing stands between the frame's beginning and the segment that the program would not forward.
    is_bare: bool,
    /// The end of the TCP header without its options.
    header_end: usize,
}

impl Found {
    /// Finds the segment. None: there is none, or it is behind something that the program does not look behind.
    fn of(frame: &[u8]) -> Option<Self> {
        let packet = SlicedPacket::from_ethernet(frame).ok()?;
        let TransportSlice::Tcp(tcp) = packet.transport? else {
            return None;
        };
        let tags = packet.link_exts.len();
        if tags > abi::EDGE_TAGS as usize || has_old_tag(frame, tags) {
            return None;
        }
        let is_tag = |ext: &LinkExtSlice<'_>| matches!(ext, LinkExtSlice::Vlan(_));
        if !packet.link_exts.iter().all(is_tag) {
            return None;
        }
        let (ends, is_bare) = match packet.net? {
            NetSlice::Ipv4(ip) if ip.extensions().is_empty() => {
                let header = ip.header();
                let ends = [header.source_addr(), header.destination_addr()];
                (ends.map(IpAddr::V4), header.options().is_empty())
            }
            NetSlice::Ipv6(ip) => {
                let header = ip.header();
                // The library takes what is there, as if a jumbogram's option said so.
                if header.payload_length() == 0 {
                    return None;
                }
                let mut others = ip.extensions().clone().into_iter();
                let count = others.clone().count();
                let is_auth =
                    |ext| matches!(ext, etherparse::Ipv6ExtensionSlice::Authentication(_));
                if count > abi::EDGE_EXTENSIONS as usize || others.any(is_auth) {
                    return None;
                }
                let ends = [header.source_addr(), header.destination_addr()];
                (ends.map(IpAddr::V6), count == 0)
            }
            _ => return None,
        };
        let header = tcp.header_slice();
        let at = header.as_ptr() as usize - frame.as_ptr() as usize;
        Some(Self {
            ends,
            ports: [tcp.source_port(), tcp.destination_port()],
            flags: header[13],
            is_bare: is_bare && tags == 0,
            header_end: at + TCP_BYTES,
        })
    }

    /// Holds what the program sees to what the library has found.
    fn holds_for(&self, seen: &Parsed, is_plain: bool) {
        assert_eq!(seen.kind, TCP, "{self:?}, {seen:?}");
        let tuple = seen.tuple;
        let ports = [tuple.sport_be, tuple.dport_be].map(u16::from_be);
        assert_eq!(
            [tuple.src, tuple.dst].map(address),
            self.ends.map(|end| end.to_canonical())
        );
        assert_eq!((ports, seen.flags), (self.ports, self.flags));
        assert_eq!(seen.is_ipv6 == 1, self.ends[0].is_ipv6());
        let has = |flags| self.flags & flags != 0;
        assert_eq!(seen.opens == 1, has(SYN) && !has(ACK), "{self:?}, {seen:?}");
        let is_one_thing = has(SYN | RST | ACK) && !(has(SYN) && has(FIN | RST));
        assert_eq!(is_plain, self.is_bare && is_one_thing, "{self:?}, {seen:?}");
    }
}

fn has_old_tag(frame: &[u8], tags: usize) -> bool {
    let types = (0..tags).map(|n| u16::from_be_bytes([frame[12 + 4 * n], frame[13 + 4 * n]]));
    types.into_iter().any(|kind| kind == OLD_TAG)
}

/// An address of the tuple, in which one of IPv4 is mapped into IPv6.
fn address(bytes: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
}
