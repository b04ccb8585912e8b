//! Packets at random, and good ones that were tampered with, through the edge's program: 200,000, or as
//! many as `UNDERPASS_EDGE_PACKETS` says: `cargo xtask soak` has a million.

use std::{collections::VecDeque, net::SocketAddr};

use crate::{
    DROP, PASS, REDIRECT, all_packets,
    frame::{ACK, FIN, IP, RST, SYN, Segment},
    lone::{CLIENT, DEVICE, OWN4, OWN6, ROUTER, VIP4, VIP6, forwarding, host, with_gateway},
    packets,
    quote::complaint,
    read::read,
    rule,
};
use dataplane::{
    Edge,
    edge::{EdgeVerdict, Forward, WantedMode},
};
use policy::{Action, Rule};

const PACKETS: usize = 200_000;
/// Change it to look elsewhere; a failure prints the frame.
const SEED: u64 = 20_261_122;

pub struct Random {
    state: u64,
    /// What the edge has made of clients' tuples, the latest last: backends answer there.
    seen: VecDeque<(SocketAddr, SocketAddr)>,
    /// What was sent on last: routers complain about it.
    last: Vec<u8>,
}

/// More than are forwarded between two answers.
const SEEN: usize = 64;

impl Random {
    pub fn new() -> Self {
        Self {
            state: SEED,
            seen: VecDeque::new(),
            last: Vec::new(),
        }
    }

    /// What the edge has sent on: it is answered, and complained about.
    pub fn note(&mut self, sent_on: &[u8]) {
        let Some(is) = read(sent_on) else {
            return;
        };
        self.last = sent_on.to_vec();
        let request = Some(is).filter(|is| is.to.port() == 9042);
        self.seen.extend(request.map(|is| (is.to, is.from)));
        self.seen.truncate(SEEN);
        if self.below(SEEN) == 0 {
            self.seen.pop_front();
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % limit
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A good packet, from either side, or a complaint about one; the edge knows some of the
/// connections.
fn good(random: &mut Random) -> Vec<u8> {
    let is_ipv4 = random.below(2) == 0;
    let client = SocketAddr::new(
        host(random.one_of(&[CLIENT, 3, 4]), is_ipv4),
        40_000 + random.below(50) as u16,
    );
    let vip: SocketAddr = if is_ipv4 { VIP4 } else { VIP6 }.parse().unwrap();
    let own = if is_ipv4 { OWN4 } else { OWN6 }.parse().unwrap();
    let own = SocketAddr::new(own, 1024 + random.below(31_744) as u16);
    let backend = SocketAddr::new(host(100 + random.below(2) as u8, is_ipv4), 9042);
    let known = random.below(SEEN);
    let answered = random.seen.get(known).copied().unwrap_or((backend, own));
    let (from, to) = random.one_of(&[
        (client, vip),
        (client, vip),
        (client, vip),
        answered,
        answered,
        (client, own),
    ]);
    let is_ipv4 = from.is_ipv4();
    let flags = random.one_of(&[SYN, SYN, SYN | ACK, ACK, ACK, ACK | FIN, RST]);
    let segment = Segment {
        payload: vec![random.below(256) as u8; random.one_of(&[0, 0, 1, 60, 1400])],
        ttl: random.one_of(&[64, 64, 64, 1, 255]),
        tags: random.one_of(&[0, 0, 0, 0, 1, 3]),
        options: if is_ipv4 {
            random.one_of(&[0, 0, 0, 4, 40])
        } else {
            0
        },
        extensions: if is_ipv4 {
            vec![]
        } else {
            random
                .one_of(&[&[][..], &[], &[], &[0], &[60, 43], &[44]])
                .to_vec()
        },
        fragment: random.one_of(&[0, 0, 0, 0, 0x4000, 0x2000, 0x0010]),
        ..Segment::between(from, to, flags)
    };
    let frame = segment.frame();
    let bytes = random.one_of(&[28, 40, 48, 60, 200]);
    if segment.tags == 0 && random.below(6) == 0 {
        let about = read(&random.last).map(|last| (last.from.is_ipv4(), &random.last));
        let (is_ipv4, about) = about.unwrap_or((is_ipv4, &frame));
        return complaint(host(ROUTER, is_ipv4), about, bytes);
    }
    frame
}

fn tampered(random: &mut Random) -> Vec<u8> {
    let mut frame = good(random);
    for _ in 0..random.below(4) {
        let headers = frame.len().min(100);
        let at = random.below(headers);
        frame[at] = match random.below(3) {
            0 => random.below(256) as u8,
            1 => frame[at] ^ 1 << random.below(8),
            _ => random.one_of(&[0, 0xff, 6, 0x45]),
        };
    }
    match random.below(6) {
        0 => frame.truncate(IP.max(random.below(frame.len() + 1))),
        1 => frame.extend(vec![0; random.below(40)]),
        2 => frame
            .iter_mut()
            .skip(random.below(60))
            .for_each(|byte| *byte = random.below(256) as u8),
        _ => {}
    }
    frame
}

fn check(edge: &mut Edge, frame: &[u8], random: &mut Random) -> u32 {
    let tried = edge.try_out(DEVICE, frame, 1).unwrap();
    match tried.action {
        PASS | DROP => assert!(
            tried.frame == frame,
            "changed, and not sent on: {frame:02x?}"
        ),
        REDIRECT => {
            sent_on(frame, &tried.frame);
            random.note(&tried.frame);
        }
        other => panic!("{other}: {frame:02x?}"),
    }
    tried.action
}

/// Nothing malformed is sent on, and what is wrong stays wrong.
fn sent_on(before: &[u8], after: &[u8]) {
    assert_eq!(before.len(), after.len(), "{before:02x?}");
    let is_icmp = match before[12..14] {
        [0x08, 0x00] => before[IP + 9] == 1,
        _ => before[IP + 6] == 58,
    };
    if is_icmp {
        return;
    }
    let was = read(before).unwrap_or_else(|| panic!("malformed, and sent on: {before:02x?}"));
    let is = read(after).unwrap_or_else(|| panic!("made malformed: {before:02x?} {after:02x?}"));
    assert!(was.header_is_right && is.header_is_right, "{before:02x?}");
    assert!(was.ttl > 1 && is.ttl == was.ttl - 1, "{before:02x?}");
    let ends = [SYN | FIN, SYN | RST]
        .iter()
        .any(|both| was.flags & both == *both);
    assert!(!ends && was.flags & (SYN | RST | ACK) != 0, "{before:02x?}");
    assert_eq!(
        (is.flags, &is.rest),
        (was.flags, &was.rest),
        "{before:02x?}"
    );
    let becomes_right = was.check_is_right || was.check_is_partial;
    assert_eq!(
        is.check_is_right, becomes_right,
        "{before:02x?} {after:02x?}"
    );
}

pub fn number_of_packets() -> usize {
    let wanted = std::env::var("UNDERPASS_EDGE_PACKETS").ok();
    wanted.and_then(|n| n.parse().ok()).unwrap_or(PACKETS)
}

/// One of the clients is denied.
pub fn denying(forwarding: Vec<Rule>) -> Vec<Rule> {
    let from = ["10.0.0.4/32", "fd00::4/128"];
    let mut rules = vec![rule("no", &from, &[":9042"], Action::Deny)];
    rules.extend(forwarding);
    rules
}

/// The `n`th packet.
pub fn of_them(random: &mut Random, n: usize) -> Vec<u8> {
    match n % 8 {
        0 => (0..14 + random.below(100))
            .map(|_| random.below(256) as u8)
            .collect(),
        1..=3 => good(random),
        _ => tampered(random),
    }
}

#[test]
fn nothing_malformed_is_sent_on_and_every_packet_is_counted_once() {
    let wanted = number_of_packets();
    let rules = denying(forwarding(2));
    with_gateway((Forward::Snat, WantedMode::Native), 1024, rules, |edge| {
        let mut random = Random::new();
        let mut actions = [0_u64; 5];
        for n in 0..wanted {
            let frame = of_them(&mut random, n);
            let action = check(edge, &frame, &mut random);
            actions[action as usize] += 1;
        }
        assert_eq!(all_packets(edge), wanted as u64, "each is counted once");
        let sent = [
            EdgeVerdict::ToBackend,
            EdgeVerdict::ToClient,
            EdgeVerdict::IcmpError,
        ]
        .map(|fate| packets(edge, fate));
        assert_eq!(sent.iter().sum::<u64>(), actions[REDIRECT as usize]);
        let dropped = packets(edge, EdgeVerdict::Denied) + packets(edge, EdgeVerdict::NoNeighbour);
        // Of a backend's packets, what cannot be sent on is dropped.
        assert!(actions[DROP as usize] >= dropped, "{actions:?}");
        println!("{actions:?} {:?}", edge.counters().unwrap().packets);
        for fate in [
            EdgeVerdict::ToBackend,
            EdgeVerdict::Denied,
            EdgeVerdict::Fragment,
            EdgeVerdict::Malformed,
            EdgeVerdict::Vlan,
        ] {
            assert!(packets(edge, fate) > 0, "none is {fate:?}");
        }
    });
}
