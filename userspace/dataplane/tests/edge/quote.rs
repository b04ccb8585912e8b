//! ICMP errors that quote a packet.

use std::net::IpAddr;

use super::frame::{IP, folded, pseudo_header, sum};

const ICMP_BYTES: usize = 8;

/// A router's complaint that the packet in `frame` is too large, of which it quotes so many bytes; to whoever
/// the packet says it is from.
pub fn complaint(router: IpAddr, frame: &[u8], bytes: usize) -> Vec<u8> {
    complaint_of(too_big(router), router, frame, bytes)
}

/// Fragmentation needed, and packet too big: type and code.
pub fn too_big(router: IpAddr) -> [u8; 2] {
    if router.is_ipv4() { [3, 4] } else { [2, 0] }
}

/// An ICMP error of any type and code about a frame.
pub fn complaint_of(kind: [u8; 2], router: IpAddr, frame: &[u8], bytes: usize) -> Vec<u8> {
    let packet = &frame[IP..];
    let quoted = &packet[..bytes.min(packet.len())];
    // With an MTU of 1,280, where there is one.
    let mut icmp = vec![kind[0], kind[1], 0, 0, 0, 0, 5, 0];
    icmp.extend(quoted);
    let mut ip = match router {
        IpAddr::V4(v4) => {
            let mut ip = vec![0x45, 0];
            ip.extend((20 + icmp.len() as u16).to_be_bytes());
            ip.extend([0, 2, 0, 0, 64, 1, 0, 0]);
            ip.extend(v4.octets());
            ip.extend(&packet[12..16]);
            let check = !folded(sum(&ip));
            ip[10..12].copy_from_slice(&check.to_be_bytes());
            ip
        }
        IpAddr::V6(v6) => {
            let mut ip = vec![0x60, 0, 0, 0];
            ip.extend((icmp.len() as u16).to_be_bytes());
            ip.extend([58, 64]);
            ip.extend(v6.octets());
            ip.extend(&packet[8..24]);
            ip
        }
    };
    let check = !icmp_sum(&ip, &icmp);
    icmp[2..4].copy_from_slice(&check.to_be_bytes());
    ip.extend(icmp);
    let mut complaint = frame[..IP].to_vec();
    complaint.extend(ip);
    complaint
}

fn icmp_sum(ip: &[u8], icmp: &[u8]) -> u16 {
    let address = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap());
    let pseudo = match ip[0] >> 4 {
        4 => 0,
        _ => pseudo_header(address(8), address(24), 58, icmp.len()),
    };
    folded(sum(icmp) + u64::from(pseudo))
}

/// Addressee of a complaint, and the packet that it quotes, in a frame; its checksums are right.
pub fn quoted(frame: &[u8]) -> (IpAddr, Vec<u8>) {
    let packet = &frame[IP..];
    let (header, to): (usize, IpAddr) = match packet[0] >> 4 {
        4 => (20, <[u8; 4]>::try_from(&packet[16..20]).unwrap().into()),
        _ => (40, <[u8; 16]>::try_from(&packet[24..40]).unwrap().into()),
    };
    let (ip, icmp) = packet.split_at(header);
    if header == 20 {
        assert_eq!(folded(sum(ip)), 0xffff, "the outer header's checksum");
    }
    assert_eq!(icmp_sum(ip, icmp), 0xffff, "the message's checksum");
    let mut inner = frame[..IP].to_vec();
    inner.extend(&icmp[ICMP_BYTES..]);
    (to, inner)
}
