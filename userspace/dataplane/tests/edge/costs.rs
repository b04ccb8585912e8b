//! What a packet costs at the edge, by BPF_PROG_TEST_RUN, and what is dropped in a second. By hand, on a
//! host that is quiet: `UPDATE_RESULTS=1 cargo test -p underpass-dataplane --release --test edge --
//! --ignored` keeps it ([`super::results`]).

use std::net::SocketAddr;

use crate::{
    DROP, PASS, REDIRECT, drops,
    frame::{ACK, SYN, Segment},
    lone::{CLIENT, DEVICE, VIP4, forwarding, host, with_gateway},
    packets,
    results::{Bar, Cost, Results},
    rule,
};
use aya::{
    Ebpf,
    programs::{TestRun, TestRunOptions, Xdp},
};
use dataplane::{
    Edge,
    edge::{EdgeVerdict, Forward, WantedMode},
};
use policy::{Action, Rule};

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
fn nothing_ns() -> u64 {
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
            program.test_run(options).unwrap().duration.as_nanos() as u64
        })
        .collect();
    turns.sort_unstable();
    turns[TURNS / 2]
}

fn cost(edge: &mut Edge, (what, bar): (&str, Option<Bar>), segment: &Segment, action: u32) -> Cost {
    let frame = segment.frame();
    let turns = (0..TURNS).map(|_| {
        let tried = edge.try_out(DEVICE, &frame, TIMES).unwrap();
        assert_eq!(tried.action, action, "{what}");
        tried.took.as_nanos() as u64
    });
    Cost::of(what, family(segment), turns.collect(), bar)
}

fn family(segment: &Segment) -> &'static str {
    match segment.from.is_ipv4() {
        true => "IPv4",
        false => "IPv6",
    }
}

#[test]
#[ignore = "measures, for which the host must be quiet"]
fn a_packet_at_the_edge() {
    let costs = [denied(), forwarded()].into_iter().flatten();
    let costs = costs.collect();
    Results::new(nothing_ns(), (RULES, CONNECTIONS), costs, drops::measure()).write();
}

/// And what passes.
fn denied() -> Vec<Cost> {
    let mut found = Vec::new();
    with_gateway(
        (Forward::Snat, WantedMode::Native),
        1024,
        rules(forwarding(2)),
        |edge| {
            let (denied, v6) = ("172.18.77.1:40000", "[fd00:77::1]:40000");
            let (here, here6) = ("10.0.0.1:9042", "[fd00::1]:9042");
            let stranger = "192.168.1.1:40000";
            for (what, bar, from, to, flags, action) in [
                ("denied, SYN", Some(Bar::Deny), denied, here, SYN, DROP),
                ("denied, SYN", Some(Bar::Deny), v6, here6, SYN, DROP),
                ("denied, ACK", Some(Bar::Deny), denied, here, ACK, DROP),
                ("no rule's, SYN", None, stranger, here, SYN, PASS),
                ("no rule's, ACK", None, stranger, "10.0.0.1:443", ACK, PASS),
            ] {
                let segment = Segment::new(from, to, flags);
                found.push(cost(edge, (what, bar), &segment, action));
            }
        },
    );
    // Where nothing is forwarded, nothing is looked up among the forwarded.
    with_gateway(
        (Forward::Off, WantedMode::Native),
        1024,
        rules(vec![]),
        |edge| {
            for (what, from, to, flags) in [
                ("SYN", "172.18.77.1:40000", "10.0.0.1:9042", SYN),
                ("SYN", "[fd00:77::1]:40000", "[fd00::1]:9042", SYN),
                ("ACK", "172.18.77.1:40000", "10.0.0.1:9042", ACK),
            ] {
                let what = format!("denied, {what}; nothing is forwarded");
                let segment = Segment::new(from, to, flags);
                found.push(cost(edge, (&what, Some(Bar::Deny)), &segment, DROP));
            }
        },
    );
    found
}

/// Runs on one frame follow each other, so each finds what the one before has made of it: two
/// virtual addresses that are each other's backend keep it going until its time to live ends.
const HOPS: u32 = 250;
/// Each hop takes a port of the gateway's, of which there are 31,744 towards either address. With more
/// turns within the seconds that a port is kept, a hop is left without one: each begins where the last
/// one has led to, so that their ports are no even choice as those of clients are.
const TURNS_OF_HOPS: u16 = 20;
/// Between two turns the counters are read, and the processor's caches forget the connections: these
/// follow at once.
const AT_ONCE: usize = 20;

fn forwarded() -> Vec<Cost> {
    let mut found = Vec::new();
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
            assert_eq!(
                packets(edge, EdgeVerdict::ToBackend),
                u64::from(CONNECTIONS)
            );
            for is_ipv4 in [true, false] {
                for (flags, payload) in [(SYN, 0), (ACK, 0), (ACK, 1400)] {
                    let mut again = Vec::new();
                    let turns: Vec<_> = (0..TURNS_OF_HOPS)
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
                            let before = packets(edge, EdgeVerdict::ToBackend);
                            let tried = edge.try_out(DEVICE, &segment.frame(), HOPS).unwrap();
                            let went = packets(edge, EdgeVerdict::ToBackend) - before;
                            assert_eq!((tried.action, went), (REDIRECT, u64::from(HOPS)));
                            if flags == ACK {
                                let frame = segment.frame();
                                again.extend((0..AT_ONCE).map(|_| {
                                    let tried = edge.try_out(DEVICE, &frame, HOPS).unwrap();
                                    tried.took.as_nanos() as u64
                                }));
                            }
                            tried.took.as_nanos() as u64
                        })
                        .collect();
                    let family = if is_ipv4 { "IPv4" } else { "IPv6" };
                    let size = format!("{payload} bytes");
                    if flags == SYN {
                        found.push(Cost::of("forwarded, opens", family, turns, None));
                        continue;
                    }
                    let what = format!("forwarded, goes on, {size}");
                    found.push(Cost::of(&what, family, turns, Some(Bar::Forward)));
                    let what = format!("forwarded, goes on, {size}, once more");
                    found.push(Cost::of(&what, family, again, Some(Bar::Forward)));
                }
            }
        },
    );
    found
}
