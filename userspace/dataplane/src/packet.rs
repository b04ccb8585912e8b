//! The packets that answer a held SYN, built from the SYN itself. Pure: bytes in, bytes out.
//!
//! A SYN is kept as it was sent over the loopback: IP header with options or extension headers,
//! TCP header with its options, no payload; the TCP checksum not filled in.

use std::net::IpAddr;

use ebpf::abi;

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP_HEADER_MIN: usize = 20;

const PROTO_ICMP: u8 = 1;
const PROTO_TCP: u8 = 6;
const PROTO_ICMPV6: u8 = 58;
const TTL: u8 = 64;

/// A held SYN, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Syn {
    ip: Ip,
    tcp: Vec<u8>,
}

/// The header, with all that is between it and TCP's, and the addresses in it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ip {
    V4 {
        header: Vec<u8>,
        from: [u8; 4],
        to: [u8; 4],
    },
    V6 {
        header: Vec<u8>,
        from: [u8; 16],
        to: [u8; 16],
    },
}

/// ICMP's type and code, for either family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unreachable {
    pub v4: (u8, u8),
    pub v6: (u8, u8),
}

impl Syn {
    /// None when the bytes are not an IP packet of a known version with a TCP header.
    pub(crate) fn parse(event: &abi::Held) -> Option<Self> {
        let bytes = event.syn.get(..event.syn_bytes as usize)?;
        let (header, tcp) = bytes.split_at_checked(event.ip_bytes as usize)?;
        let header = header.to_vec();
        let ip = match header.first()? >> 4 {
            4 if header.len() >= IPV4_HEADER => Ip::V4 {
                from: field(&header, 12)?,
                to: field(&header, 16)?,
                header,
            },
            6 if header.len() >= IPV6_HEADER => Ip::V6 {
                from: field(&header, 8)?,
                to: field(&header, 24)?,
                header,
            },
            _ => return None,
        };
        (tcp.len() >= TCP_HEADER_MIN).then(|| Self {
            ip,
            tcp: tcp.to_vec(),
        })
    }

    /// The SYN itself, fit to be sent again.
    pub(crate) fn again(&self) -> Vec<u8> {
        let mut tcp = self.tcp.clone();
        put(&mut tcp, 16, [0, 0]);
        // A TFO client's payload is not in the copy; it sends it again itself.
        let (mut header, sum) = match &self.ip {
            Ip::V4 { header, from, to } => {
                let mut header = header.clone();
                let bytes = header.len() + tcp.len();
                put(&mut header, 2, total_length(bytes));
                (header, transport_sum(from, to, PROTO_TCP, &tcp))
            }
            Ip::V6 { header, from, to } => {
                let mut header = header.clone();
                let bytes = header.len() - IPV6_HEADER + tcp.len();
                put(&mut header, 4, total_length(bytes));
                (header, transport_sum(from, to, PROTO_TCP, &tcp))
            }
        };
        put(&mut tcp, 16, sum);
        header.append(&mut tcp);
        header
    }

    /// A reset as the database's host sends it when nobody listens there: RST, with the SYN
    /// acknowledged (RFC 9293 §3.5.2).
    pub(crate) fn reset(&self) -> Vec<u8> {
        const RST_ACK: u8 = 0x14;
        const DATA_OFFSET: u8 = 5 << 4;
        let sequence: u32 = field(&self.tcp, 4).map(u32::from_be_bytes).unwrap_or(0);
        let mut tcp = vec![0; TCP_HEADER_MIN];
        put(&mut tcp, 0, field::<2>(&self.tcp, 2).unwrap_or_default());
        put(&mut tcp, 2, field::<2>(&self.tcp, 0).unwrap_or_default());
        put(&mut tcp, 8, sequence.wrapping_add(1).to_be_bytes());
        put(&mut tcp, 12, [DATA_OFFSET, RST_ACK]);
        self.back(PROTO_TCP, tcp, 16)
    }

    /// An ICMP error as a router or our own routing table sends it when there is no route, with the
    /// SYN's headers inside.
    pub(crate) fn unreachable(&self, reason: Unreachable) -> Vec<u8> {
        let (protocol, (kind, code), ip): (_, _, &[u8]) = match &self.ip {
            Ip::V4 { header, .. } => (PROTO_ICMP, reason.v4, header),
            Ip::V6 { header, .. } => (PROTO_ICMPV6, reason.v6, header),
        };
        let message = [&[kind, code, 0, 0, 0, 0, 0, 0], ip, &self.tcp].concat();
        self.back(protocol, message, 2)
    }

    /// Wraps `payload` into a packet from the SYN's destination to its source, with the
    /// checksum at `sum_at`.
    fn back(&self, protocol: u8, mut payload: Vec<u8>, sum_at: usize) -> Vec<u8> {
        match &self.ip {
            Ip::V4 { from, to, .. } => {
                let sum = if protocol == PROTO_ICMP {
                    checksum(&[&payload])
                } else {
                    transport_sum(to, from, protocol, &payload)
                };
                put(&mut payload, sum_at, sum);
                let mut header = [0; IPV4_HEADER];
                put(&mut header, 0, [0x45]);
                put(&mut header, 2, total_length(IPV4_HEADER + payload.len()));
                put(&mut header, 8, [TTL, protocol]);
                put(&mut header, 12, *to);
                put(&mut header, 16, *from);
                [header.as_slice(), &payload].concat()
            }
            Ip::V6 { from, to, .. } => {
                let sum = transport_sum(to, from, protocol, &payload);
                put(&mut payload, sum_at, sum);
                let mut header = [0; IPV6_HEADER];
                put(&mut header, 0, [0x60]);
                put(&mut header, 4, total_length(payload.len()));
                put(&mut header, 6, [protocol, TTL]);
                put(&mut header, 8, *to);
                put(&mut header, 24, *from);
                [header.as_slice(), &payload].concat()
            }
        }
    }

    /// The destination of a packet that was made here: the address in its own header.
    pub(crate) fn destination(&self, packet: &[u8]) -> Option<IpAddr> {
        match self.ip {
            Ip::V4 { .. } => field::<4>(packet, 16).map(IpAddr::from),
            Ip::V6 { .. } => field::<16>(packet, 24).map(IpAddr::from),
        }
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// Every offset here lies within the header that it is put into.
fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(to) = bytes.get_mut(at..at + N) {
        to.copy_from_slice(&value);
    }
}

/// Headers only: never near 64 KiB.
fn total_length(bytes: usize) -> [u8; 2] {
    (bytes as u16).to_be_bytes()
}

/// RFC 9293 §3.1, RFC 8200 §8.1: with the pseudo-header. The two families' pseudo-headers
/// sum to the same, because the zero bytes between do not count.
fn transport_sum(from: &[u8], to: &[u8], protocol: u8, payload: &[u8]) -> [u8; 2] {
    let length = (payload.len() as u16).to_be_bytes();
    checksum(&[from, to, &[0, protocol], &length, payload])
}

/// RFC 1071. Every part but the last has an even length.
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let mut sum: u32 = 0;
    for part in parts {
        for pair in part.chunks(2) {
            let [high, low] = [pair.first(), pair.get(1)].map(|b| b.copied().unwrap_or(0));
            sum += u32::from(u16::from_be_bytes([high, low]));
        }
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    (!(sum as u16)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 127.0.0.1:40000 → 127.86.0.1:9, sequence 1, one MSS option.
    fn syn4() -> Syn {
        let mut bytes = vec![
            0x45, 0, 0, 44, 0, 1, 0x40, 0, 64, 6, 0, 0, 127, 0, 0, 1, 127, 86, 0, 1,
        ];
        bytes.extend([
            0x9c,
            0x40,
            0,
            9,
            0,
            0,
            0,
            1,
            0,
            0,
            0,
            0,
            6 << 4,
            2,
            0xff,
            0xff,
            7,
            7,
            0,
            0,
        ]);
        bytes.extend([2, 4, 0xff, 0xd7]);
        parsed(&bytes, IPV4_HEADER)
    }

    /// With four no-operations behind the IP header.
    fn syn4_with_options() -> Syn {
        let syn = syn4().again();
        let (header, tcp) = syn.split_at(IPV4_HEADER);
        let mut header = [header, &[1; 4]].concat();
        put(&mut header, 0, [0x46]);
        put(&mut header, 2, total_length(IPV4_HEADER + 4 + tcp.len()));
        parsed(&[&header, tcp].concat(), IPV4_HEADER + 4)
    }

    /// With a header of options for the destination.
    fn syn6_with_extension() -> Syn {
        let syn = syn6().again();
        let (header, tcp) = syn.split_at(IPV6_HEADER);
        let mut header = [header, &[PROTO_TCP, 0, 1, 4, 0, 0, 0, 0]].concat();
        put(&mut header, 4, total_length(8 + tcp.len()));
        put(&mut header, 6, [60]);
        parsed(&[&header, tcp].concat(), IPV6_HEADER + 8)
    }

    fn syn6() -> Syn {
        let mut bytes = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
        bytes.extend([[0; 15].as_slice(), &[1], &[0; 15], &[1]].concat());
        bytes.extend([
            0x9c,
            0x40,
            0,
            9,
            255,
            255,
            255,
            255,
            0,
            0,
            0,
            0,
            5 << 4,
            2,
            1,
            1,
            0,
            0,
            0,
            0,
        ]);
        parsed(&bytes, IPV6_HEADER)
    }

    fn parsed(bytes: &[u8], ip_bytes: usize) -> Syn {
        let mut syn = [0; abi::SYN_BYTES as usize];
        syn[..bytes.len()].copy_from_slice(bytes);
        Syn::parse(&held(syn, bytes.len(), ip_bytes)).unwrap()
    }

    fn held(syn: [u8; abi::SYN_BYTES as usize], bytes: usize, ip_bytes: usize) -> abi::Held {
        let endpoint = abi::Endpoint {
            addr: [0; 16],
            port_be: 0,
            family: 4,
            pad: 0,
        };
        let connect = abi::Connect {
            opener: abi::Opener {
                start_ns: 0,
                execs: 0,
                cgroup_id: 0,
                netns_cookie: 0,
                orig_dst: endpoint,
                tgid: 0,
                uid: 0,
                gid: 0,
                comm: [0; 16],
            },
            cookie: 0,
            slot: 0,
            forgets: 0,
            bound: 0,
            bound_port: 0,
            held: 0,
            generation: 0,
            taps: 0,
            unlimited: 0,
            group: 0,
            pad: [0; 1],
            holder_cgroup_id: 0,
        };
        abi::Held {
            connect,
            key: abi::ConnectKey {
                listener: 0,
                client: endpoint,
                pad: 0,
            },
            syn_bytes: bytes as u32,
            ip_bytes: ip_bytes as u32,
            syn,
        }
    }

    /// A receiver adds everything up, checksum included, and must get zero.
    fn sums_to_zero(packet: &[u8]) -> bool {
        let (addresses, protocol, payload) = match (packet[0] >> 4, packet[6]) {
            (4, _) => (
                &packet[12..20],
                packet[9],
                &packet[4 * usize::from(packet[0] & 0xf)..],
            ),
            (_, 60) => (&packet[8..40], packet[40], &packet[48..]),
            (_, protocol) => (&packet[8..40], protocol, &packet[40..]),
        };
        if protocol == PROTO_ICMP {
            return checksum(&[payload]) == [0, 0];
        }
        let length = (payload.len() as u16).to_be_bytes();
        checksum(&[addresses, &[0, protocol], &length, payload]) == [0, 0]
    }

    #[test]
    fn the_syn_sent_again_is_the_syn_with_a_checksum() {
        for syn in [syn4(), syn6(), syn4_with_options(), syn6_with_extension()] {
            let again = syn.again();
            assert!(sums_to_zero(&again));
            let length = |at: usize| usize::from(u16::from_be_bytes([again[at], again[at + 1]]));
            match &syn.ip {
                Ip::V4 { header, .. } => {
                    assert_eq!(length(2), again.len());
                    assert_eq!(again[20..header.len()], header[20..]);
                }
                Ip::V6 { header, .. } => {
                    assert_eq!(length(4), again.len() - IPV6_HEADER);
                    assert_eq!(again[40..header.len()], header[40..]);
                }
            }
            let tcp = &again[again.len() - syn.tcp.len()..];
            assert_eq!((&tcp[..16], &tcp[18..]), (&syn.tcp[..16], &syn.tcp[18..]));
        }
    }

    #[test]
    fn a_reset_acknowledges_the_syn_and_turns_the_addresses_round() {
        let reset = syn4().reset();
        assert!(sums_to_zero(&reset));
        assert_eq!(&reset[12..20], &[127, 86, 0, 1, 127, 0, 0, 1]);
        assert_eq!(&reset[20..24], &[0, 9, 0x9c, 0x40]);
        assert_eq!(&reset[28..34], &[0, 0, 0, 2, 0x50, 0x14]);
        let wrapped = syn6().reset();
        assert!(sums_to_zero(&wrapped));
        assert_eq!(&wrapped[48..52], &[0; 4], "the sequence number wraps");
    }

    #[test]
    fn unreachable_carries_the_headers_of_the_syn() {
        let reason = Unreachable {
            v4: (3, 1),
            v6: (1, 3),
        };
        let v4 = syn4().unreachable(reason);
        assert!(sums_to_zero(&v4));
        assert_eq!((v4[9], &v4[20..22]), (PROTO_ICMP, [3, 1].as_slice()));
        assert_eq!(v4[28..48], syn4().again()[..20], "the inner IP header");
        let v6 = syn6().unreachable(reason);
        assert!(sums_to_zero(&v6));
        assert_eq!((v6[6], &v6[40..42]), (PROTO_ICMPV6, [1, 3].as_slice()));
        let with_options = syn4_with_options();
        let quoting = with_options.unreachable(reason);
        assert!(sums_to_zero(&quoting));
        assert_eq!(quoting[28..52], with_options.again()[..24]);
        let with_extension = syn6_with_extension();
        let quoting = with_extension.unreachable(reason);
        assert!(sums_to_zero(&quoting));
        assert_eq!(quoting[48..96], with_extension.again()[..48]);
    }

    #[test]
    fn what_is_no_syn_is_not_parsed() {
        for (first, bytes, ip_bytes) in [
            (0x45, 39, 20),
            (0x45, 60, 19),
            (0x60, 59, 40),
            (0x60, 80, 39),
            (0x15, 60, 20),
            (0x45, 0, 0),
            (0x45, 40, 41),
            (0x45, abi::SYN_BYTES as usize + 1, 20),
        ] {
            let mut syn = [0; abi::SYN_BYTES as usize];
            syn[0] = first;
            assert_eq!(Syn::parse(&held(syn, bytes, ip_bytes)), None);
        }
    }
}
