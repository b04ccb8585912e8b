//! What a packet costs at the edge, by BPF_PROG_TEST_RUN. By hand, on a host that is quiet:
//! `cargo test -p underpass-dataplane --release --test edge costs -- --ignored --nocapture`.

use std::net::SocketAddr;

use crate::{
    DROP, PASS, REDIRECT,
    frame::{ACK, SYN, Segment},
    lone::{CLIENT, DEVICE, VIP4, forwarding, host, with_gateway},
    packets, rule,
};
use aya::{
    Ebpf,
    programs::{TestRun, TestRunOptions, Xdp},
};
use dataplane::{
    Edge,
    edge::{Fate, Forward, WantedMode},
    policy::{Action, Rule},
};

const RULES: u32 = 1_000;
const CONNECTIONS: u32 = 1_000_000;
const TIMES: u32 = 1_000_000;
const TURNS: usize = 5;

/// Each with a network of clients of its own; a few with ports and virtual addresses of their own.
fn rules(forwarded: Vec<Rule>) -> Vec<Rule> {
    let few = RULES - forwarded.len() as u32;
    let own = (0..few).map(|n| {
        let [_, _, high, low] = n.to_be_bytes();
        let from = format!("172.{}.{low}.0/24", 16 + high);
        let from6 = format!("fd00:{n:x}::/32");
        let to = [
            ":9042".to_owned(),
            format!("10.8.{high}.{low}:{}", 7000 + n % 50),
        ];
        rule(
            &format!("r{n}"),
            &[&from, &from6],
            &[&to[(n % 4 == 0) as usize]],
            Action::Deny,
        )
    });
    own.chain(forwarded).collect()
}

/// What a program that does nothing costs, in ns: a part of every other figure.
fn idle() -> u128 {
    let mut object = Ebpf::load(ebpf::IDLE_OBJECT).unwrap();
    let program: &mut Xdp = object.program_mut("idle").unwrap().try_into().unwrap();
    program.load().unwrap();
    let frame = Segment::new("10.0.0.1:1", "10.0.0.2:2", SYN).frame();
    let mut turns: Vec<_> = (0..TURNS)
        .map(|_| {
            let options = TestRunOptions {
                data_in: Some(&frame),
                repeat: TIMES,
                ..TestRunOptions::new()
            };
            program.test_run(options).unwrap().duration.as_nanos()
        })
        .collect();
    turns.sort_unstable();
    turns[TURNS / 2]
}

/// The median of some turns, in ns.
fn costs(edge: &mut Edge, what: &str, segment: &Segment, action: u32) {
    let frame = segment.frame();
    let mut turns: Vec<_> = (0..TURNS)
        .map(|_| {
            let tried = edge.try_out(DEVICE, &frame, TIMES).unwrap();
            assert_eq!(tried.action, action, "{what}");
            tried.took.as_nanos()
        })
        .collect();
    turns.sort_unstable();
    let median = turns[TURNS / 2];
    println!("{what}: {median} ns ({turns:?}), nothing: {} ns", idle());
}

#[test]
#[ignore = "measures, for which the host must be quiet"]
fn deny_with_a_thousand_rules() {
    with_gateway(
        (Forward::Snat, WantedMode::Native),
        1024,
        rules(forwarding(2)),
        |edge| {
            for (what, from, to, flags, action) in [
                (
                    "deny, IPv4, SYN",
                    "172.18.77.1:40000",
                    "10.0.0.1:9042",
                    SYN,
                    DROP,
                ),
                (
                    "deny, IPv4, ACK",
                    "172.18.77.1:40000",
                    "10.0.0.1:9042",
                    ACK,
                    DROP,
                ),
                (
                    "deny, IPv6, SYN",
                    "[fd00:77::1]:40000",
                    "[fd00::1]:9042",
                    SYN,
                    DROP,
                ),
                (
                    "pass, no rule, IPv4, SYN",
                    "192.168.1.1:40000",
                    "10.0.0.1:9042",
                    SYN,
                    PASS,
                ),
                (
                    "pass, other port, IPv4, ACK",
                    "192.168.1.1:40000",
                    "10.0.0.1:443",
                    ACK,
                    PASS,
                ),
            ] {
                costs(edge, what, &Segment::new(from, to, flags), action);
            }
        },
    );
    // Where nothing is forwarded, nothing is looked up among the forwarded.
    with_gateway(
        (Forward::Off, WantedMode::Native),
        1024,
        rules(vec![]),
        |edge| {
            let segment = |flags| Segment::new("172.18.77.1:40000", "10.0.0.1:9042", flags);
            costs(edge, "deny, no forwarding, IPv4, SYN", &segment(SYN), DROP);
            costs(edge, "deny, no forwarding, IPv4, ACK", &segment(ACK), DROP);
            let v6 = Segment::new("[fd00:77::1]:40000", "[fd00::1]:9042", SYN);
            costs(edge, "deny, no forwarding, IPv6, SYN", &v6, DROP);
        },
    );
}

/// Runs on one frame follow each other, so each finds what the one before has made of it: two
/// virtual addresses that are each other's backend keep it going until its time to live ends.
const HOPS: u32 = 250;
/// Each hop takes a port of the gateway's, of which there are 31,744 towards either address.
const TURNS_OF_HOPS: u16 = 50;
/// Between two turns the counters are read, and the processor's caches forget the connections: these
/// follow at once.
const AT_ONCE: usize = 20;

#[test]
#[ignore = "measures, for which the host must be quiet"]
fn forward_with_a_thousand_rules_and_a_million_connections() {
    let mut forwarded = forwarding(64);
    for is_ipv4 in [true, false] {
        let ends = [101, 102].map(|n| SocketAddr::new(host(n, is_ipv4), 9042));
        for (to, backend) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            let mut rule = rule(
                &format!("hop-{to}"),
                &[],
                &[&to.to_string()],
                Action::Bypass,
            );
            rule.backends = vec![backend];
            forwarded.push(rule);
        }
    }
    with_gateway(
        (Forward::Snat, WantedMode::Native),
        CONNECTIONS + 65_536,
        rules(forwarded),
        |edge| {
            let vip: SocketAddr = VIP4.parse().unwrap();
            for n in 0..CONNECTIONS {
                let ip = (0x0a40_0000 + n / 50_000).to_be_bytes();
                let from = SocketAddr::new(ip.into(), (n % 50_000 + 10_000) as u16);
                let frame = Segment::between(from, vip, SYN).frame();
                assert_eq!(edge.try_out(DEVICE, &frame, 1).unwrap().action, REDIRECT);
            }
            assert_eq!(packets(edge, Fate::ToBackend), u64::from(CONNECTIONS));
            for is_ipv4 in [true, false] {
                for (what, flags, payload) in [
                    ("opens", SYN, 0),
                    ("goes on", ACK, 0),
                    ("goes on", ACK, 1400),
                ] {
                    let mut again = Vec::new();
                    let mut turns: Vec<_> = (0..TURNS_OF_HOPS)
                        .map(|turn| {
                            // Every SYN is another connection's; what goes on is the last of them.
                            let port = if flags == SYN {
                                40_000 + turn
                            } else {
                                40_000 + TURNS_OF_HOPS - 1
                            };
                            let from = SocketAddr::new(host(CLIENT, is_ipv4), port);
                            let to = SocketAddr::new(host(101, is_ipv4), 9042);
                            let segment = Segment {
                                payload: vec![7; payload],
                                ttl: 255,
                                ..Segment::between(from, to, flags)
                            };
                            let before = packets(edge, Fate::ToBackend);
                            let tried = edge.try_out(DEVICE, &segment.frame(), HOPS).unwrap();
                            let went = packets(edge, Fate::ToBackend) - before;
                            assert_eq!((tried.action, went), (REDIRECT, u64::from(HOPS)));
                            if flags == ACK {
                                let frame = segment.frame();
                                again.extend((0..AT_ONCE).map(|_| {
                                    let tried = edge.try_out(DEVICE, &frame, HOPS).unwrap();
                                    tried.took.as_nanos()
                                }));
                            }
                            tried.took.as_nanos()
                        })
                        .collect();
                    turns.sort_unstable();
                    again.sort_unstable();
                    let [low, median, high] = [5, 25, 45].map(|at: usize| turns[at]);
                    let family = if is_ipv4 { "IPv4" } else { "IPv6" };
                    println!(
                        "{family}, {what}, {payload} bytes: {median} ns ({low} to {high}), \
                         at once again: {:?} ns, nothing: {} ns",
                        again.get(again.len() / 2),
                        idle()
                    );
                }
            }
        },
    );
}
