//! What a processor remembers of forwarded connections ends in time: with the connection, with the
//! policy, and within a second or two with the host's own routes and neighbours.

use std::{
    net::SocketAddr,
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    DROP, REDIRECT,
    frame::{ACK, RST, SYN, Segment},
    lone::{CLIENT, DEVICE, VIP4, VIP6, forwarding, host, with_gateway},
    packets, policy,
    read::read,
    rule,
};
use dataplane::{
    Edge,
    edge::{EdgeVerdict, Forward, WantedMode},
};
use policy::Action;
use sandbox::stay_on_one_processor;

/// Far more than a way lasts.
const PATIENCE: Duration = Duration::from_secs(20);

/// A way is one processor's.
fn on_one_processor() {
    stay_on_one_processor().unwrap();
}

fn request(is_ipv4: bool, flags: u8) -> Segment {
    let vip: SocketAddr = if is_ipv4 { VIP4 } else { VIP6 }.parse().unwrap();
    Segment::between(SocketAddr::new(host(CLIENT, is_ipv4), 40_000), vip, flags)
}

fn sent(edge: &mut Edge, segment: &Segment) -> Vec<u8> {
    let tried = edge.try_out(DEVICE, &segment.frame(), 1).unwrap();
    assert_eq!(tried.action, REDIRECT);
    tried.frame
}

fn backend(edge: &mut Edge, segment: &Segment) -> SocketAddr {
    read(&sent(edge, segment)).unwrap().to
}

#[test]
fn a_new_connection_from_where_one_was_goes_its_own_way_at_once() {
    for is_ipv4 in [true, false] {
        let rules = forwarding(2);
        let rule = rules[usize::from(!is_ipv4)].clone();
        with_gateway((Forward::Snat, WantedMode::Auto), 1024, rules, |edge| {
            on_one_processor();
            let only = |n: usize| {
                let backends = rule.backends.iter().enumerate();
                let weights = backends.map(|(at, backend)| (*backend, (at == n).into()));
                weights.collect::<Vec<_>>()
            };
            // Each second one finds what the one before has left.
            for n in [0, 1, 0, 1, 1, 0] {
                edge.set_backends(&rule.name, &only(n)).unwrap();
                let wanted = rule.backends[n];
                assert_eq!(backend(edge, &request(is_ipv4, SYN)), wanted);
                let read = read(&sent(edge, &request(is_ipv4, ACK))).unwrap();
                let answer = Segment::between(read.to, read.from, ACK);
                for _ in 0..3 {
                    assert_eq!(backend(edge, &request(is_ipv4, ACK)), wanted);
                    assert_eq!(
                        backend(edge, &answer),
                        SocketAddr::new(host(CLIENT, is_ipv4), 40_000)
                    );
                }
                sent(edge, &request(is_ipv4, RST));
            }
        });
    }
}

#[test]
fn a_denied_client_is_not_remembered() {
    with_gateway(
        (Forward::Snat, WantedMode::Auto),
        1024,
        forwarding(1),
        |edge| {
            on_one_processor();
            sent(edge, &request(true, SYN));
            for _ in 0..3 {
                sent(edge, &request(true, ACK));
            }
            let mut rules = forwarding(1);
            let from = format!("{}/32", host(CLIENT, true));
            rules.insert(0, rule("no", &[&from], &[":9042"], Action::Deny));
            edge.install(&policy(rules)).unwrap();
            for _ in 0..3 {
                let frame = request(true, ACK).frame();
                assert_eq!(edge.try_out(DEVICE, &frame, 1).unwrap().action, DROP);
            }
        },
    );
}

#[test]
fn a_backend_that_moves_to_another_mac_is_followed() {
    for is_ipv4 in [true, false] {
        with_gateway(
            (Forward::Snat, WantedMode::Auto),
            1024,
            forwarding(1),
            |edge| {
                on_one_processor();
                let to = backend(edge, &request(is_ipv4, SYN)).ip().to_string();
                let old = sent(edge, &request(is_ipv4, ACK))[..6].to_vec();
                let new = [2, 0, 0, 0, 9, 9];
                let moved = Command::new("ip")
                    .args(["neigh", "replace", &to, "dev", DEVICE])
                    .args(["lladdr", "02:00:00:00:09:09"])
                    .status();
                assert!(moved.unwrap().success());
                let began = Instant::now();
                loop {
                    let frame = sent(edge, &request(is_ipv4, ACK));
                    if frame[..6] == new {
                        break;
                    }
                    assert_eq!(frame[..6], old);
                    assert!(began.elapsed() < PATIENCE, "still to {old:?}");
                }
            },
        );
    }
}

#[test]
fn a_packet_that_is_larger_than_the_next_mtu_is_not_sent_on_like_the_others() {
    with_gateway(
        (Forward::Snat, WantedMode::Auto),
        1024,
        forwarding(1),
        |edge| {
            on_one_processor();
            sent(edge, &request(true, SYN));
            for (payload, goes) in [(0, true), (1460, true), (1461, false), (1460, true)] {
                let segment = Segment {
                    payload: vec![7; payload],
                    ..request(true, ACK)
                };
                let before = packets(edge, EdgeVerdict::TooBig);
                sent(edge, &segment);
                let went = packets(edge, EdgeVerdict::TooBig) == before;
                assert_eq!(went, goes, "{payload} bytes");
            }
        },
    );
}
