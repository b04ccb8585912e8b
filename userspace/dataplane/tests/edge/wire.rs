//! The packets of `random.rs` and odd ones on a wire: sent by a host, counted at a gateway's edge, and what
//! comes back looked at.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use crate::{
    TestPins, all_packets,
    frame::{ACK, IP, SYN, Segment},
    interface,
    lone::{CLIENT, DEVICE, VIP4, VIP6, forwarding, gateway_of, host},
    packets, policy,
    random::{Random, denying, number_of_packets, of_them},
    read::read,
};
use dataplane::{
    Edge,
    edge::{Fate, Forward, Interface, WantedMode},
    policy::Rule,
};
use nix::{
    errno::Errno,
    ifaddrs::getifaddrs,
    libc,
    sys::socket::{
        AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recvfrom, send,
        socket,
    },
};
use testkit::sandbox::{Netns, run_in};

/// A veth's queue has room for 256.
const AT_ONCE: usize = 64;
const MODES: [WantedMode; 2] = [WantedMode::Native, WantedMode::Generic];
const PATIENCE: Duration = Duration::from_secs(10);
/// Room for whatever is done to a good packet.
const MTU: &str = "2000";

/// A host that sends frames as they are, and the gateway at the other end of its wire.
struct Line {
    _sender: Netns,
    _gateway: Netns,
    _pins: [TestPins; 2],
    _receiver: Edge,
    wire: OwnedFd,
    edge: Edge,
    sent: u64,
}

impl Line {
    fn new(mode: WantedMode, rules: Vec<Rule>) -> Self {
        let known = policy(rules);
        let (gateway, sender) = gateway_of(&known);
        gateway.ip(&["link", "set", DEVICE, "mtu", MTU]).unwrap();
        sender.ip(&["link", "set", "veth", "mtu", MTU]).unwrap();
        let pins = [TestPins::new(), TestPins::new()];
        let (wire, receiver) = run_in(Some(&sender), None, || {
            let mut receiver = pins[0].open();
            receiver.guard(&[interface("veth", Forward::Off)]).unwrap();
            (packet_socket(), receiver)
        })
        .unwrap();
        let edge = run_in(Some(&gateway), None, || {
            let mut edge = pins[1].open();
            edge.install(&known).unwrap();
            let own = Interface {
                mode,
                ..interface(DEVICE, Forward::Snat)
            };
            edge.guard(&[own]).unwrap();
            edge
        })
        .unwrap();
        Self {
            _sender: sender,
            _gateway: gateway,
            _pins: pins,
            _receiver: receiver,
            wire,
            edge,
            sent: 0,
        }
    }

    /// Puts frames onto the wire, and waits until all are counted.
    fn send(&mut self, frames: &[Vec<u8>]) {
        for frame in frames {
            let bytes = send(self.wire.as_raw_fd(), frame, MsgFlags::empty()).unwrap();
            assert_eq!(bytes, frame.len());
        }
        self.sent += frames.len() as u64;
        let began = Instant::now();
        while all_packets(&self.edge) < self.sent {
            assert!(began.elapsed() < PATIENCE, "some are not counted");
            thread::yield_now();
        }
        assert_eq!(all_packets(&self.edge), self.sent, "each is counted once");
    }

    /// What has come back so far.
    fn received(&self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match recvfrom::<LinkAddr>(self.wire.as_raw_fd(), &mut buffer) {
                Ok((bytes, from)) => {
                    let is_own = from.is_some_and(|from| from.pkttype() == libc::PACKET_OUTGOING);
                    if !is_own {
                        frames.push(buffer[..bytes].to_vec());
                    }
                }
                Err(Errno::EAGAIN) => return frames,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn packet_socket() -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let wire = socket(
        AddressFamily::Packet,
        SockType::Raw,
        flags,
        SockProtocol::EthAll,
    )
    .unwrap();
    let mut devices = getifaddrs().unwrap().filter(|d| d.interface_name == "veth");
    let own = devices.find_map(|device| device.address?.as_link_addr().copied());
    bind(wire.as_raw_fd(), &own.unwrap()).unwrap();
    wire
}

/// What the edge sends on, or the gateway's stack answers, is well formed.
fn is_whole(frame: &[u8]) {
    let (protocol, at) = match frame[12..14] {
        [0x08, 0x00] => (frame[IP + 9], IP + 20),
        [0x86, 0xdd] => (frame[IP + 6], IP + 40),
        // The stack looks for neighbours.
        _ => return,
    };
    if protocol != 6 {
        return;
    }
    let is = read(frame).unwrap_or_else(|| panic!("malformed, and sent on: {frame:02x?}"));
    assert!(is.header_is_right && frame.len() >= at + 20, "{frame:02x?}");
}

#[test]
fn packets_at_random_are_all_counted_and_nothing_malformed_comes_back() {
    for mode in MODES {
        let mut line = Line::new(mode, denying(forwarding(2)));
        let mut random = Random::new();
        let wanted = number_of_packets() / MODES.len();
        let mut received = 0;
        for first in (0..wanted).step_by(AT_ONCE) {
            let frames: Vec<_> = (first..wanted.min(first + AT_ONCE))
                .map(|n| of_them(&mut random, n))
                .collect();
            line.send(&frames);
            for frame in line.received() {
                is_whole(&frame);
                random.note(&frame);
                received += 1;
            }
        }
        println!(
            "{mode:?}: {received} came back, {:?}",
            line.edge.counters().unwrap().packets
        );
        for fate in [
            Fate::ToBackend,
            Fate::ToClient,
            Fate::IcmpError,
            Fate::Denied,
            Fate::Fragment,
            Fate::Malformed,
            Fate::Vlan,
            Fate::IpOptions,
            Fate::ExtensionHeader,
            Fate::Ttl,
        ] {
            assert!(packets(&line.edge, fate) > 0, "{mode:?}: none is {fate:?}");
        }
    }
}

#[test]
fn odd_packets_are_counted_by_cause_on_the_wire_too() {
    for mode in MODES {
        let mut line = Line::new(mode, forwarding(1));
        for (vip, is_ipv4) in [(VIP4, true), (VIP6, false)] {
            let client = |port: u16| std::net::SocketAddr::new(host(CLIENT, is_ipv4), port);
            let opens = |port| Segment::between(client(port), vip.parse().unwrap(), SYN);
            let good = opens(40_000);
            let goes_on = Segment {
                flags: ACK,
                ..good.clone()
            };
            line.send(&[good.frame(), goes_on.frame()]);
            let mut odd = vec![(1, 0, Fate::Vlan), (2, 0, Fate::Vlan)];
            odd.extend(if is_ipv4 {
                vec![(0, 4, Fate::IpOptions), (0, 40, Fate::IpOptions)]
            } else {
                vec![]
            });
            let chains = [
                (vec![60], Fate::ExtensionHeader),
                (vec![0, 60, 43], Fate::ExtensionHeader),
                (vec![44], Fate::Fragment),
            ];
            let mut all: Vec<(Segment, Fate)> = Vec::new();
            for segment in [opens(40_001), goes_on] {
                all.extend(odd.iter().map(|(tags, options, fate)| {
                    let segment = Segment {
                        tags: *tags,
                        options: *options,
                        ..segment.clone()
                    };
                    (segment, *fate)
                }));
                if is_ipv4 {
                    let cut = Segment {
                        fragment: 0x2000,
                        ..segment
                    };
                    all.push((cut, Fate::Fragment));
                } else {
                    all.extend(chains.iter().map(|(extensions, fate)| {
                        let segment = Segment {
                            extensions: extensions.clone(),
                            ..segment.clone()
                        };
                        (segment, *fate)
                    }));
                }
            }
            for (segment, fate) in all {
                let before = packets(&line.edge, fate);
                line.send(&[segment.frame()]);
                let counted = packets(&line.edge, fate) - before;
                assert_eq!(counted, 1, "{mode:?}: {segment:?}");
            }
        }
        assert_eq!(packets(&line.edge, Fate::ToBackend), 4, "the good ones");
    }
}
