//! The packets of `random.rs` and odd ones on a wire: sent by a host, counted at a gateway's edge, and what
//! comes back looked at.

use std::{
    net::SocketAddr,
    os::fd::{AsRawFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
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
    rule,
};
use dataplane::{
    Edge,
    edge::{EdgeVerdict, Forward, Interface, WantedMode},
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
use policy::{Action, Policy, Rule};
use sandbox::{Netns, run_in};

/// A veth's queue has room for 256.
const AT_ONCE: usize = 64;
const MODES: [WantedMode; 2] = [WantedMode::Native, WantedMode::Generic];
const PATIENCE: Duration = Duration::from_secs(10);
/// Room for whatever is done to a good packet.
const MTU: &str = "2000";

/// A host that sends frames as they are, and the gateway at the other end of its wire.
struct Line {
    _sender: Netns,
    gateway: Netns,
    pins: [TestPins; 2],
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
        let edge = run_in(Some(&gateway), None, || guarding(&pins[1], mode, &known)).unwrap();
        Self {
            _sender: sender,
            gateway,
            pins,
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
        received_on(&self.wire)
    }
}

/// The edge of a gateway's interface; the policy is in force before a packet meets it.
fn guarding(pins: &TestPins, mode: WantedMode, known: &Policy) -> Edge {
    let mut edge = pins.open();
    edge.install(known).unwrap();
    let own = Interface {
        mode,
        ..interface(DEVICE, Forward::Snat)
    };
    edge.guard(&[own]).unwrap();
    edge
}

fn received_on(wire: &OwnedFd) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match recvfrom::<LinkAddr>(wire.as_raw_fd(), &mut buffer) {
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
            EdgeVerdict::ToBackend,
            EdgeVerdict::ToClient,
            EdgeVerdict::IcmpError,
            EdgeVerdict::Denied,
            EdgeVerdict::Fragment,
            EdgeVerdict::Malformed,
            EdgeVerdict::Vlan,
            EdgeVerdict::IpOptions,
            EdgeVerdict::ExtensionHeader,
            EdgeVerdict::Ttl,
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
            let client = |port: u16| SocketAddr::new(host(CLIENT, is_ipv4), port);
            let opens = |port| Segment::between(client(port), vip.parse().unwrap(), SYN);
            let good = opens(40_000);
            let goes_on = Segment {
                flags: ACK,
                ..good.clone()
            };
            line.send(&[good.frame(), goes_on.frame()]);
            let mut odd = vec![(1, 0, EdgeVerdict::Vlan), (2, 0, EdgeVerdict::Vlan)];
            odd.extend(if is_ipv4 {
                vec![
                    (0, 4, EdgeVerdict::IpOptions),
                    (0, 40, EdgeVerdict::IpOptions),
                ]
            } else {
                vec![]
            });
            let chains = [
                (vec![60], EdgeVerdict::ExtensionHeader),
                (vec![0, 60, 43], EdgeVerdict::ExtensionHeader),
                (vec![44], EdgeVerdict::Fragment),
            ];
            let mut all: Vec<(Segment, EdgeVerdict)> = Vec::new();
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
                    all.push((cut, EdgeVerdict::Fragment));
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
        assert_eq!(
            packets(&line.edge, EdgeVerdict::ToBackend),
            4,
            "the good ones"
        );
    }
}

/// Policies one after the other: fewer backends, another virtual address, somebody who is denied, nobody
/// who is forwarded.
fn policies() -> [Policy; 4] {
    let more = Rule {
        backends: forwarding(2)[0].backends.clone(),
        ..rule("more", &[], &["10.9.0.11:9042"], Action::Bypass)
    };
    let another = [vec![more], forwarding(2)].concat();
    [forwarding(1), another, denying(forwarding(2)), vec![]].map(policy)
}

/// A packet of an established connection, and from where to where it is sent on.
type Established = (Vec<u8>, (SocketAddr, SocketAddr));

/// Puts them onto the wire, a few at a time, until there have been enough changes; each has to come back, and
/// to go where it always went. Returns how many there were.
fn keep_sending(wire: &OwnedFd, frames: &[Established], done: &AtomicBool) -> u64 {
    let mut sent = 0;
    while !done.load(Relaxed) {
        for _ in 0..AT_ONCE / frames.len() {
            for (frame, _) in frames {
                let bytes = send(wire.as_raw_fd(), frame, MsgFlags::empty()).unwrap();
                assert_eq!(bytes, frame.len());
                sent += 1;
            }
        }
        let mut missing = AT_ONCE / frames.len() * frames.len();
        let began = Instant::now();
        while missing > 0 {
            assert!(
                began.elapsed() < PATIENCE,
                "{missing} after {sent} are lost"
            );
            let back = received_on(wire);
            let back = back.iter().filter_map(|frame| read(frame));
            for is in back.filter(|is| is.flags == ACK) {
                let ends = (is.from, is.to);
                assert!(frames.iter().any(|(_, known)| *known == ends), "{is:?}");
                missing -= 1;
            }
            thread::yield_now();
        }
    }
    sent
}

/// Rules, backends, virtual addresses, and agents: packets of what is established neither stop nor stray.
#[test]
fn no_packet_is_lost_while_everything_changes() {
    const CHANGES: usize = 40;
    for mode in MODES {
        let mut line = Line::new(mode, forwarding(2));
        let clients: Vec<SocketAddr> = (0..4_u16)
            .flat_map(|n| [true, false].map(|v4| SocketAddr::new(host(CLIENT, v4), 40_000 + n)))
            .collect();
        let segment = |client: &SocketAddr, flags| {
            let vip = if client.is_ipv4() { VIP4 } else { VIP6 };
            Segment::between(*client, vip.parse().unwrap(), flags).frame()
        };
        let opened: Vec<_> = clients.iter().map(|c| segment(c, SYN)).collect();
        line.send(&opened);
        let mut frames = Vec::new();
        for client in &clients {
            let frame = segment(client, ACK);
            line.send(std::slice::from_ref(&frame));
            let began = Instant::now();
            let ends = loop {
                let back = line.received();
                let mut back = back.iter().filter_map(|frame| read(frame));
                if let Some(is) = back.find(|is| is.flags == ACK) {
                    break (is.from, is.to);
                }
                assert!(began.elapsed() < PATIENCE, "{client} is not forwarded");
            };
            frames.push((frame, ends));
        }
        let done = AtomicBool::new(false);
        let flown = thread::scope(|scope| {
            let sending = scope.spawn(|| keep_sending(&line.wire, &frames, &done));
            let changes = scope.spawn(|| {
                let done = Done(&done);
                let change = || {
                    let policies = policies();
                    let mut edge = guarding(&line.pins[1], mode, &policies[0]);
                    for n in 0..CHANGES {
                        let known = &policies[n % policies.len()];
                        edge.install(known).unwrap();
                        for rule in known.rules.iter().filter(|rule| !rule.backends.is_empty()) {
                            let weights = rule.backends.iter().enumerate();
                            let weights: Vec<_> = weights
                                .map(|(at, backend)| (*backend, ((n + at) % 2) as u8))
                                .collect();
                            edge.set_backends(&rule.name, &weights).unwrap();
                        }
                        if n % 8 == 0 {
                            // The next agent.
                            edge = guarding(&line.pins[1], mode, known);
                        }
                    }
                };
                run_in(Some(&line.gateway), None, change).unwrap();
                drop(done);
            });
            changes.join().unwrap();
            sending.join().unwrap()
        });
        println!("{mode:?}: {flown} packets during {CHANGES} changes");
        assert_eq!(all_packets(&line.edge), line.sent + flown, "{mode:?}");
        let forwarded = packets(&line.edge, EdgeVerdict::ToBackend);
        assert_eq!(forwarded, line.sent + flown, "{mode:?}");
    }
}

/// Whoever sends ends, also when the changes fail.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
