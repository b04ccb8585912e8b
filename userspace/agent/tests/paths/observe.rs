//! Observed flows: nothing is changed for them, and every frame is counted once, however the
//! bytes are cut into packets.

mod wire;

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

use cassandra_protocol::crc;
use dataplane::probe_traffic::Random;
use sandbox::{Agent, stay_on_one_processor};

use crate::common::*;

const ERROR: u8 = 0x00;
const STARTUP: u8 = 0x01;
const READY: u8 = 0x02;
const QUERY: u8 = 0x07;
const RESULT: u8 = 0x08;
const EVENT: u8 = 0x0c;

fn frame(version: u8, stream: i16, opcode: u8, body: usize) -> Vec<u8> {
    let [high, low] = stream.to_be_bytes();
    let mut frame = vec![version, 0, high, low, opcode];
    frame.extend_from_slice(&u32::try_from(body).unwrap().to_be_bytes());
    // What looks like a header must not be taken for one.
    frame.resize(frame.len() + body, 0x04);
    frame
}

fn read_frame(from: &mut impl Read) -> (u8, i16, u8) {
    let mut header = [0; 9];
    from.read_exact(&mut header).unwrap();
    let [version, _, high, low, opcode, a, b, c, d] = header;
    let length = u32::from_be_bytes([a, b, c, d]);
    let mut body = vec![0; length as usize];
    from.read_exact(&mut body).unwrap();
    (version, i16::from_be_bytes([high, low]), opcode)
}

/// In pieces that end anywhere, each a packet of its own.
fn send_in_pieces(to: &mut TcpStream, mut bytes: &[u8], random: &mut Random) {
    to.set_nodelay(true).unwrap();
    while !bytes.is_empty() {
        let most = [3, 40, 3_000, 100_000][random.below(4)];
        let (piece, rest) = bytes.split_at((1 + random.below(most)).min(bytes.len()));
        to.write_all(piece).unwrap();
        bytes = rest;
    }
}

fn value(agent: &Agent<'_>, name: &str) -> u64 {
    agent.metric(name).unwrap() as u64
}

fn requests(agent: &Agent<'_>, opcode: &str) -> u64 {
    value(
        agent,
        &format!("underpass_observed_requests_total{{opcode=\"{opcode}\",rule=\"r\"}}"),
    )
}

fn responses(agent: &Agent<'_>, opcode: &str) -> u64 {
    value(
        agent,
        &format!("underpass_observed_responses_total{{opcode=\"{opcode}\",rule=\"r\"}}"),
    )
}

fn by_direction(agent: &Agent<'_>, what: &str) -> [u64; 2] {
    ["to_database", "to_client"].map(|direction| {
        value(
            agent,
            &format!("underpass_observed_{what}_total{{direction=\"{direction}\",rule=\"r\"}}"),
        )
    })
}

fn flow(agent: &Agent<'_>) -> serde_json::Value {
    let flows = agent.json("/flows").unwrap();
    let flows = flows.as_array().unwrap();
    assert_eq!(flows.len(), 1, "{flows:?}");
    flows[0].clone()
}

/// Answers every request, each seventh with an error, and tells an event now and then. Ends
/// with its client; what it sent.
fn database(mut stream: TcpStream) -> u64 {
    let mut random = Random::new(7);
    let mut sent = 0;
    let mut first = [0; 1];
    while stream.peek(&mut first).unwrap() > 0 {
        let (version, id, _) = read_frame(&mut stream);
        let opcode = if id % 7 == 0 { ERROR } else { RESULT };
        let mut answer = frame(version | 0x80, id, opcode, random.below(2_000));
        if id == 3 {
            answer.extend(frame(version | 0x80, -1, EVENT, 11));
        }
        sent += answer.len() as u64;
        send_in_pieces(&mut stream, &answer, &mut random);
    }
    sent
}

#[test]
fn every_frame_is_counted_once_however_it_is_cut() {
    const ROUNDS: usize = 150;
    const STREAMS: i16 = 20;
    // In order: on a busy machine packets overtake each other even on the loopback.
    stay_on_one_processor().unwrap();
    let hosts = Hosts::new();
    for distance in [Distance::Here, Distance::There] {
        for family in FAMILIES {
            let listener = hosts.listen(distance, family);
            let port = listener.local_addr().unwrap().port();
            let to_database = family.dialled(hosts.database_ip(distance, family), port);
            let agent = hosts.agent(&rule("observe", &to(&[port])));
            let server = thread::spawn(move || database(accept(&listener).0));
            let (client, sent) = hosts.client(|| {
                let mut client = connect(family, to_database).unwrap();
                let mut random = Random::new(5);
                let mut sent = 0;
                for round in 0..ROUNDS {
                    let bodies = [0, 50, 3_000, 60_000][round % 4] + 1;
                    let mut batch = Vec::new();
                    for stream in 0..STREAMS {
                        batch.extend(frame(4, stream, QUERY, random.below(bodies)));
                    }
                    sent += batch.len() as u64;
                    let mut writer = client.try_clone().unwrap();
                    thread::scope(|scope| {
                        scope.spawn(|| send_in_pieces(&mut writer, &batch, &mut random));
                        let mut answered = 0;
                        while answered < STREAMS {
                            let (_, _, opcode) = read_frame(&mut client);
                            answered += i16::from(opcode != EVENT);
                        }
                    });
                }
                (client, sent)
            });
            let place = format!("{distance:?} {family:?}");
            let all = ROUNDS as u64 * STREAMS as u64;
            let errors = ROUNDS as u64 * 3;
            let live = flow(&agent);
            assert_eq!(live["requests"], all, "{place} {live}");
            assert_eq!(live["path"], "untouched", "{live}");
            assert_eq!(live["action"], "observe", "{live}");
            assert_eq!(live["errors"], errors, "{live}");
            assert_eq!(live["in_flight"], 0, "{live}");
            let local = client.local_addr().unwrap();
            let local = std::net::SocketAddr::new(local.ip().to_canonical(), local.port());
            assert_eq!(live["client"], local.to_string(), "{live}");
            let check = |when: &str| {
                let place = format!("{place} {when}");
                assert_eq!(requests(&agent, "query"), all, "{place}");
                assert_eq!(responses(&agent, "result"), all - errors, "{place}");
                assert_eq!(responses(&agent, "error"), errors, "{place}");
                assert_eq!(responses(&agent, "event"), ROUNDS as u64, "{place}");
                assert_eq!(by_direction(&agent, "gaps"), [0, 0], "{place}");
                let count = "underpass_observed_seconds_count{rule=\"r\"}";
                assert_eq!(value(&agent, count), all, "{place}");
                assert_eq!(by_direction(&agent, "bytes")[0], sent, "{place}");
            };
            check("while it is open");
            drop(client);
            let answered = server.join().unwrap();
            eventually("the flow has ended", || {
                agent.json("/flows").unwrap().as_array().unwrap().is_empty()
            });
            check("when it has ended");
            assert_eq!(by_direction(&agent, "bytes")[1], answered, "{place}");
            let untouched = "underpass_connections_total{outcome=\"untouched\",rule=\"r\"}";
            assert_eq!(value(&agent, untouched), 1);
        }
    }
}

/// On a kernel that cannot have the meter (`bpf_loop` is of 5.17).
#[test]
fn without_the_meter_flows_are_left_alone_and_counted() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::Here, Family::V4);
    let port = listener.local_addr().unwrap().port();
    let bypass = rule("bypass", &to(&[port]));
    let observe = rule("observe", &to(&[port]));
    let reason = "UNDERPASS_TEST_HOOKS names it";
    let off = format!("underpass_path_available{{path=\"observe\",reason=\"{reason}\"}}");
    let safer = "underpass_safer_path_total{cause=\"observe_off\"}";
    // The start is not refused, and neither is a reload.
    for first in [&observe, &bypass] {
        let agent = hosts.switched("UNDERPASS_TEST_HOOKS=without=observe", "", first);
        if first == &bypass {
            agent.write_policy(&observe).unwrap();
            agent.signal(nix::sys::signal::Signal::SIGHUP).unwrap();
            agent.wait_for_log("policy reloaded").unwrap();
        }
        eventually("it is said", || {
            agent.metrics().unwrap().get(&off) == Some(&0.0)
        });
        let said = agent.wait_for_log("path=\"observe\"").unwrap();
        assert!(said.contains("path is off"), "{said}");
        for n in 1..=2 {
            drop(conversation(
                &hosts,
                &listener,
                &[(frame(4, 0, QUERY, 10), frame(0x84, 0, RESULT, 10))],
            ));
            assert_eq!(value(&agent, safer), n);
        }
        let untouched = "underpass_connections_total{outcome=\"untouched\",rule=\"r\"}";
        assert_eq!(value(&agent, untouched), 2);
        // No rule observes any more: nobody misses it.
        agent.write_policy(&bypass).unwrap();
        agent.signal(nix::sys::signal::Signal::SIGHUP).unwrap();
        eventually("it is read", || {
            agent.log().matches("policy reloaded").count() == 1 + usize::from(first == &bypass)
        });
        drop(conversation(
            &hosts,
            &listener,
            &[(frame(4, 0, QUERY, 10), frame(0x84, 0, RESULT, 10))],
        ));
        assert_eq!(value(&agent, safer), 2);
    }
}

/// v5 without compression, or with it: then each segment says whether it is compressed.
#[derive(Clone, Copy)]
enum Segments {
    Plain,
    Lz4 { is_compressed: bool },
}

fn segment(kind: Segments, is_self_contained: bool, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u64;
    let flag = u64::from(is_self_contained);
    let (head, bytes) = match kind {
        Segments::Plain => (length | flag << 17, 3),
        Segments::Lz4 { is_compressed } => {
            let uncompressed = if is_compressed { 2 * length } else { 0 };
            (length | uncompressed << 17 | flag << 34, 5)
        }
    };
    let head = &head.to_le_bytes()[..bytes];
    let mut segment = head.to_vec();
    segment.extend_from_slice(&crc::crc24(head).to_le_bytes()[..3]);
    segment.extend_from_slice(payload);
    segment.extend_from_slice(&crc::crc32(payload).to_le_bytes());
    segment
}

/// Both sides' bytes of one flow, in turns; each side sends in pieces.
fn conversation(hosts: &Hosts, listener: &TcpListener, turns: &[(Vec<u8>, Vec<u8>)]) -> TcpStream {
    let port = listener.local_addr().unwrap().port();
    let to_database = Family::V4.dialled(hosts.database_ip(Distance::Here, Family::V4), port);
    let client = hosts.client(|| connect(Family::V4, to_database).unwrap());
    let (database, _) = accept(listener);
    let mut random = Random::new(3);
    for (asked, answered) in turns {
        for (from, to, bytes) in [(&client, &database, asked), (&database, &client, answered)] {
            let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            thread::scope(|scope| {
                scope.spawn(|| send_in_pieces(&mut from, bytes, &mut random));
                let mut received = vec![0; bytes.len()];
                to.read_exact(&mut received).unwrap();
                assert_eq!(received, *bytes);
            });
        }
    }
    client
}

/// A handshake, requests in segments of three, and a frame that takes several segments.
fn version_5(kind: Segments) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut turns = vec![(frame(5, 0, STARTUP, 30), frame(0x85, 0, READY, 0))];
    for turn in 0..40_i16 {
        let frames = |version, opcode| {
            let each = |n: i16| frame(version, 3 * turn + n, opcode, (turn as usize) * 9);
            [each(0), each(1), each(2)].concat()
        };
        turns.push((
            segment(kind, true, &frames(5, QUERY)),
            segment(kind, true, &frames(0x85, RESULT)),
        ));
    }
    let large = frame(5, 300, QUERY, 300_000);
    let parts: Vec<_> = large.chunks(131_071).collect();
    let large = parts.iter().flat_map(|part| segment(kind, false, part));
    turns.push((
        large.collect(),
        segment(kind, true, &frame(0x85, 300, RESULT, 0)),
    ));
    turns
}

#[test]
fn version_5_is_read_in_segments() {
    let hosts = Hosts::new();
    for kind in [
        Segments::Plain,
        Segments::Lz4 {
            is_compressed: false,
        },
    ] {
        let listener = hosts.listen(Distance::Here, Family::V4);
        let agent = hosts.agent(&rule(
            "observe",
            &to(&[listener.local_addr().unwrap().port()]),
        ));
        let client = conversation(&hosts, &listener, &version_5(kind));
        assert_eq!(requests(&agent, "startup"), 1);
        assert_eq!(requests(&agent, "query"), 121);
        assert_eq!(responses(&agent, "result"), 121);
        assert_eq!(by_direction(&agent, "gaps"), [0, 0]);
        assert_eq!(by_direction(&agent, "compressed_segments"), [0, 0]);
        assert_eq!(flow(&agent)["in_flight"], 0);
        drop(client);
    }
}

#[test]
fn compressed_segments_are_passed_over_and_counted() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::Here, Family::V4);
    let agent = hosts.agent(&rule(
        "observe",
        &to(&[listener.local_addr().unwrap().port()]),
    ));
    let (plain, compressed) = (
        Segments::Lz4 {
            is_compressed: false,
        },
        Segments::Lz4 {
            is_compressed: true,
        },
    );
    let readable = (
        segment(plain, true, &frame(5, 1, QUERY, 10)),
        segment(plain, true, &frame(0x85, 1, RESULT, 10)),
    );
    let mut turns = version_5(plain)[..1].to_vec();
    turns.push(readable.clone());
    turns.push((
        segment(compressed, true, &[4; 5_000]),
        segment(compressed, true, &[0x84; 70]),
    ));
    turns.push(readable);
    let client = conversation(&hosts, &listener, &turns);
    assert_eq!(requests(&agent, "query"), 2);
    assert_eq!(responses(&agent, "result"), 2);
    assert_eq!(by_direction(&agent, "compressed_segments"), [1, 1]);
    assert_eq!(by_direction(&agent, "gaps"), [0, 0]);
    drop(client);
}

#[test]
fn what_is_no_cql_is_counted_as_lost_and_passes() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::Here, Family::V4);
    let agent = hosts.agent(&rule(
        "observe",
        &to(&[listener.local_addr().unwrap().port()]),
    ));
    // A TLS hello, and back to CQL: a proxy in between that speaks another protocol first.
    let turns = [
        (vec![0x16; 200], vec![0x16; 3_000]),
        (frame(4, 1, QUERY, 10), frame(0x84, 1, RESULT, 10)),
    ];
    let client = conversation(&hosts, &listener, &turns);
    let [asked, answered] = by_direction(&agent, "gaps");
    assert!(asked > 0 && answered > 0, "{asked} {answered}");
    assert_eq!(by_direction(&agent, "bytes"), [219, 3_019]);
    drop(client);
}

#[test]
fn latency_is_what_the_database_took() {
    const TAKES: Duration = Duration::from_millis(20);
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::Here, Family::V4);
    let port = listener.local_addr().unwrap().port();
    let agent = hosts.agent(&rule("observe", &to(&[port])));
    let to_database = Family::V4.dialled(hosts.database_ip(Distance::Here, Family::V4), port);
    let mut client = hosts.client(|| connect(Family::V4, to_database).unwrap());
    let (mut database, _) = accept(&listener);
    for _ in 0..20 {
        client.write_all(&options(1)).unwrap();
        read_frame(&mut database);
        thread::sleep(TAKES);
        database.write_all(&supported(1)).unwrap();
        read_frame(&mut client);
    }
    let p50_us = flow(&agent)["p50_us"].as_f64().unwrap();
    // To a bucket's half, and the machine's mood.
    assert!((19_400.0..30_000.0).contains(&p50_us), "{p50_us}");
    let sum = agent.metric("underpass_observed_seconds_sum{rule=\"r\"}");
    let sum = sum.unwrap();
    assert!((0.4..0.6).contains(&sum), "{sum}");
}

/// Requests on their way, of each flow and of its rule; a request that ends unanswered is not on
/// its way for ever.
#[test]
fn what_is_not_answered_yet_is_in_flight() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::Here, Family::V4);
    let port = listener.local_addr().unwrap().port();
    let agent = hosts.agent(&rule("observe", &to(&[port])));
    let of_rule = || agent.metric("underpass_observed_in_flight{rule=\"r\"}");
    let ask = |streams: &[i16]| {
        let bytes = |version, opcode, streams: &[i16]| {
            let frames = streams.iter().map(|n| frame(version, *n, opcode, 3));
            frames.collect::<Vec<_>>().concat()
        };
        let answered = bytes(0x83, RESULT, &streams[..1]);
        conversation(&hosts, &listener, &[(bytes(3, QUERY, streams), answered)])
    };
    let one = ask(&[1, 2, 3]);
    assert_eq!(flow(&agent)["in_flight"], 2);
    assert_eq!(of_rule().unwrap(), 2.0);
    let other = ask(&[1, 2]);
    assert_eq!(of_rule().unwrap(), 3.0);
    drop(one);
    eventually("the first has ended", || of_rule().unwrap() == 1.0);
    assert_eq!(flow(&agent)["in_flight"], 1);
    drop(other);
    eventually("both have ended", || of_rule().unwrap() == 0.0);
}

#[test]
fn without_a_rule_that_observes_nothing_is_read() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::Here, Family::V4);
    let port = listener.local_addr().unwrap().port();
    let agent = hosts.agent(&rule("observe", &to(&[port])));
    let turn = [(options(1).to_vec(), supported(1).to_vec())];
    let mut old = conversation(&hosts, &listener, &turn);
    assert_eq!(requests(&agent, "options"), 1);
    agent.write_policy(&rule("bypass", &to(&[port]))).unwrap();
    agent.wait_for_log("policy reloaded").unwrap();
    // The hooks are gone: not even a flow that was observed is read on.
    old.write_all(&options(2)).unwrap();
    let new = conversation(&hosts, &listener, &turn);
    assert_eq!(requests(&agent, "options"), 1);
    agent.write_policy(&rule("observe", &to(&[port]))).unwrap();
    eventually("it is observed again", || {
        drop(conversation(&hosts, &listener, &turn));
        requests(&agent, "options") > 1
    });
    drop((old, new));
}
