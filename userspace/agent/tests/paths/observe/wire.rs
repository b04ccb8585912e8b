//! Over a wire that loses, doubles and holds up packets: what TCP heals is counted once, and what
//! the meter could not put in its place is a gap.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
};

use sandbox::{Carried, Faults};

use super::*;

const BAD: Faults = Faults {
    lost: 10,
    doubled: 10,
    held: 20,
    late: 0,
};
const DOUBLED: Faults = Faults {
    lost: 0,
    doubled: 200,
    held: 0,
    late: 0,
};
/// Both directions of a wire without faults.
const CLEAN: [Faults; 2] = [Faults {
    lost: 0,
    doubled: 0,
    held: 0,
    late: 0,
}; 2];
/// Ethernet's header and its largest packet.
const LARGEST_FRAME: usize = 1_514;

/// How a side writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writes {
    /// Each request by itself, as most drivers do.
    Each,
    /// In pieces that end anywhere.
    Anywhere,
    /// A batch of them at once.
    Batches,
}

/// Bytes that a side sends in a turn: pieces, each written at once.
type Pieces = Vec<Vec<u8>>;

fn sealed(version: u8, frame: &[u8]) -> Vec<u8> {
    if version < 5 {
        return frame.to_vec();
    }
    let parts: Vec<_> = frame.chunks(131_071).collect();
    let is_whole = parts.len() == 1;
    let parts = parts
        .into_iter()
        .map(|part| segment(Segments::Plain, is_whole, part));
    parts.collect::<Vec<_>>().concat()
}

fn cut(frames: Vec<Vec<u8>>, writes: Writes, random: &mut Random) -> Pieces {
    match writes {
        Writes::Each => frames,
        Writes::Batches => vec![frames.concat()],
        Writes::Anywhere => {
            let all = frames.concat();
            let mut rest = all.as_slice();
            let mut pieces = Vec::new();
            while !rest.is_empty() {
                let most = [3, 40, 3_000][random.below(3)];
                let (piece, next) = rest.split_at((1 + random.below(most)).min(rest.len()));
                pieces.push(piece.to_vec());
                rest = next;
            }
            pieces
        }
    }
}

/// A flow over the wire, and both its ends.
struct Flow {
    client: TcpStream,
    database: TcpStream,
    version: u8,
    requests: u64,
    /// From the client, and to it.
    bytes: [u64; 2],
}

impl Flow {
    fn open(hosts: &Hosts, family: Family, version: u8, listener: &TcpListener) -> Self {
        let to = listener.local_addr().unwrap();
        let client = hosts.client(|| connect(family, to).unwrap());
        let (database, _) = accept(listener);
        for end in [&client, &database] {
            end.set_nodelay(true).unwrap();
            end.set_read_timeout(Some(3 * PATIENCE)).unwrap();
        }
        let mut flow = Self {
            client,
            database,
            version,
            requests: 1,
            bytes: [0; 2],
        };
        let startup = frame(version, 0, STARTUP, 30);
        flow.turn(&[vec![startup], vec![frame(version | 0x80, 0, READY, 0)]]);
        flow
    }

    /// Asks and is answered; both ends see every byte.
    fn turn(&mut self, [asked, answered]: &[Pieces; 2]) {
        let ways = [
            (&self.client, &self.database, asked),
            (&self.database, &self.client, answered),
        ];
        for ((mut from, mut to, pieces), bytes) in ways.into_iter().zip(&mut self.bytes) {
            thread::scope(|scope| {
                scope.spawn(move || {
                    for piece in pieces {
                        from.write_all(piece).unwrap();
                    }
                });
                let all = pieces.concat();
                let mut received = vec![0; all.len()];
                to.read_exact(&mut received).unwrap();
                assert!(received == all, "TCP did not heal it");
                *bytes += all.len() as u64;
            });
        }
    }

    /// Exchanges `count` requests with bodies of up to `body` bytes, and their answers.
    fn ask(&mut self, count: usize, body: usize, writes: Writes, random: &mut Random) {
        let turn = [(0, QUERY), (0x80, RESULT)].map(|(side, opcode)| {
            let frames = (0..count).map(|stream| {
                let body = random.below(body + 1);
                let frame = frame(self.version | side, stream as i16, opcode, body);
                sealed(self.version, &frame)
            });
            cut(frames.collect(), writes, random)
        });
        self.turn(&turn);
        self.requests += count as u64;
    }
}

/// Every packet is of the wire's own size, as between hosts.
fn without_segmentation(hosts: &Hosts) {
    for netns in [&hosts.app.netns, &hosts.database] {
        let one = ["link", "set", "veth", "gso_max_segs", "1"];
        netns.ip(&one).unwrap();
    }
}

/// Counts of the meter for a flow.
#[derive(Debug)]
struct Metered {
    requests: u64,
    responses: u64,
    in_flight: i64,
    gaps: [u64; 2],
}

fn metered(agent: &Agent<'_>) -> Metered {
    let flow = flow(agent);
    let number = |name: &str| flow[name].as_u64().unwrap();
    Metered {
        requests: number("requests"),
        responses: number("responses"),
        in_flight: flow["in_flight"].as_i64().unwrap(),
        gaps: by_direction(agent, "gaps"),
    }
}

/// The end of the flow adds a hole that was never filled to the gaps; its bytes are TCP's.
fn end(agent: &Agent<'_>, flow: Flow, bytes: [u64; 2]) -> [u64; 2] {
    drop(flow);
    eventually("the flow has ended", || {
        agent.json("/flows").unwrap().as_array().unwrap().is_empty()
    });
    assert_eq!(by_direction(agent, "bytes"), bytes);
    by_direction(agent, "gaps")
}

#[test]
fn what_comes_twice_is_counted_once() {
    stay_on_one_processor().unwrap();
    let (hosts, wire) = Hosts::with_wire(1);
    without_segmentation(&hosts);
    for (family, version) in [(Family::V4, 4), (Family::V6, 5)] {
        for writes in [Writes::Each, Writes::Anywhere, Writes::Batches] {
            let place = format!("v{version} {family:?} {writes:?}");
            let listener = hosts.listen(Distance::There, family);
            let port = listener.local_addr().unwrap().port();
            let agent = hosts.agent(&rule("observe", &to(&[port])));
            // What the client sends is lost on its way, and sent again past the hook; what comes
            // to it comes twice, the answer to its SYN, too.
            wire.set([BAD, DOUBLED]);
            let mut random = Random::new(9);
            let mut flow = Flow::open(&hosts, family, version, &listener);
            for turn in 0..60 {
                let body = [10, 200, 20_000][turn % 3];
                flow.ask(20, body, writes, &mut random);
            }
            wire.set(CLEAN);
            let seen = metered(&agent);
            assert_eq!(seen.requests, flow.requests, "{place} {seen:?}");
            assert_eq!(seen.responses, flow.requests, "{place} {seen:?}");
            assert_eq!((seen.in_flight, seen.gaps), (0, [0, 0]), "{place}");
            let count = "underpass_observed_seconds_count{rule=\"r\"}";
            assert_eq!(value(&agent, count), flow.requests, "{place}");
            let all = flow.bytes;
            assert_eq!(end(&agent, flow, all), [0, 0], "{place}");
        }
    }
    let [to_database, to_client] = wire.carried();
    eprintln!("{to_database:?} {to_client:?}");
    assert!(to_database.lost > 50 && to_client.doubled > 500);
    assert_eq!(to_client.lost + to_client.held, 0);
    assert!(to_client.largest <= LARGEST_FRAME);
}

#[test]
fn after_a_gap_it_is_in_step_again() {
    stay_on_one_processor().unwrap();
    let (hosts, wire) = Hosts::with_wire(2);
    without_segmentation(&hosts);
    let (mut gaps, mut missed) = (0, 0);
    for (family, version) in [(Family::V4, 4), (Family::V6, 5)] {
        for writes in [Writes::Each, Writes::Anywhere, Writes::Batches] {
            let place = format!("v{version} {family:?} {writes:?}");
            let listener = hosts.listen(Distance::There, family);
            let port = listener.local_addr().unwrap().port();
            let agent = hosts.agent(&rule("observe", &to(&[port])));
            let mut random = Random::new(10);
            let mut flow = Flow::open(&hosts, family, version, &listener);
            wire.set([BAD, BAD]);
            for turn in 0..60 {
                let body = [10, 200, 3_000][turn % 3];
                flow.ask(20, body, writes, &mut random);
            }
            wire.set(CLEAN);
            // What leaves this host is in order, whatever becomes of it.
            let before = metered(&agent);
            assert_eq!(before.requests, flow.requests, "{place} {before:?}");
            assert_eq!(before.gaps[0], 0, "{place} {before:?}");
            assert!(before.responses <= flow.requests, "{place} {before:?}");
            let missing = flow.requests - before.responses;
            assert_eq!(before.in_flight, missing as i64, "{place} {before:?}");

            // One answer in a packet of its own, and all that follow are counted.
            flow.ask(1, 10, Writes::Each, &mut random);
            let in_step = metered(&agent).responses;
            for _ in 0..20 {
                flow.ask(20, 2_000, Writes::Anywhere, &mut random);
            }
            let after = metered(&agent);
            assert_eq!(after.responses, in_step + 400, "{place} {after:?}");
            assert_eq!(after.requests, flow.requests, "{place} {after:?}");
            assert_eq!(after.gaps, before.gaps, "{place} {after:?}");

            let all = flow.bytes;
            let counted = value(&agent, "underpass_observed_seconds_count{rule=\"r\"}");
            let unmatched = "underpass_observed_unmatched_responses_total{rule=\"r\"}";
            let unmatched = value(&agent, unmatched);
            assert_eq!(counted + unmatched, after.responses, "{place}");
            let sum = agent
                .metric("underpass_observed_seconds_sum{rule=\"r\"}")
                .unwrap();
            // Whole turns take seconds at the worst (a timeout of TCP's and another).
            assert!(sum < counted as f64 * 3.0, "{place} {sum}");
            let [_, at_end] = end(&agent, flow, all);
            // What is missing is explained by gaps, and no gap is without something missing.
            eprintln!("{place}: {missing} missing, {at_end} gaps");
            assert_eq!(missing > 0, at_end > 0, "{place}");
            gaps += at_end;
            missed += missing;
        }
    }
    let [to_database, to_client] = wire.carried();
    eprintln!("{to_database:?} {to_client:?}: {gaps} gaps, {missed} missed");
    assert!(to_client.lost > 50 && to_client.held > 100 && to_client.doubled > 50);
    // Most of what was late has been put in its place.
    assert!(gaps > 0 && gaps < (to_client.lost + to_client.held) / 2);
}

#[test]
fn super_packets_and_frames_over_many_are_counted_once() {
    stay_on_one_processor().unwrap();
    let (hosts, wire) = Hosts::with_wire(3);
    for (family, version) in [
        (Family::V4, 4),
        (Family::V4, 5),
        (Family::V6, 4),
        (Family::V6, 5),
    ] {
        let place = format!("v{version} {family:?}");
        let listener = hosts.listen(Distance::There, family);
        let port = listener.local_addr().unwrap().port();
        let agent = hosts.agent(&rule("observe", &to(&[port])));
        let mut random = Random::new(11);
        let mut flow = Flow::open(&hosts, family, version, &listener);
        for _ in 0..10 {
            // Thousands of frames in a packet, and one over dozens of packets.
            flow.ask(5_000, 3, Writes::Batches, &mut random);
            flow.ask(3, 1_000_000, Writes::Batches, &mut random);
        }
        let seen = metered(&agent);
        assert_eq!(seen.requests, flow.requests, "{place} {seen:?}");
        assert_eq!(seen.responses, flow.requests, "{place} {seen:?}");
        assert_eq!((seen.in_flight, seen.gaps), (0, [0, 0]), "{place}");
        let all = flow.bytes;
        assert_eq!(end(&agent, flow, all), [0, 0], "{place}");
    }
    let is_super = |carried: Carried| carried.largest > 40_000;
    assert!(
        wire.carried().into_iter().all(is_super),
        "{:?}",
        wire.carried()
    );
}
