//! Flows that are decoded again after nobody has read them for a while: exactly what begins after
//! the mark is counted, wherever in a frame it came, and whoever carried the flow meanwhile.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use cassandra_protocol::crc::{crc24, crc32};
use serde_json::{Value, json};
use testkit::sandbox::{Agent, Sandbox};

use super::{
    ENRICH,
    common::{BINARY, eventually},
    frames::{RESPONSE, RESULT, frame, query, ready, segment, startup, void},
    operator::Operator,
    spliced::{read, write},
    wire::{Conversation, Host, OPTIONS, SUPPORTED},
};

/// Every way in which a flow is carried while nobody reads it.
const WAYS: [&str; 3] = ["off", "ingress", "egress"];

/// On a busy host the canary may run out of time.
const ATTEMPTS: usize = 5;

/// A host whose agent carries what is not read by `way`, on a kernel that can.
fn odd_host(way: &str, body: impl FnOnce(&Host<'_>, &Operator)) {
    mortal_host(way, |host, operator| body(host, operator));
}

/// One whose agent may be killed.
fn mortal_host(way: &str, body: impl FnOnce(&mut Host<'_>, &Operator)) {
    let sandbox = Sandbox::new().unwrap();
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let mut host = Host {
        agent: agent(&sandbox, way),
        sandbox: &sandbox,
        listener: listener.unwrap().unwrap(),
    };
    for _ in 0..ATTEMPTS {
        if works(&host, way) {
            host.policy(ENRICH);
            let operator = Operator::of(&host);
            body(&mut host, &operator);
            eventually("every flow ends", || {
                host.agent.metric("underpass_flows").unwrap() == 0.0
            });
            return;
        }
        host.agent.kill().unwrap();
        host.agent = agent(&sandbox, way);
    }
    testkit::skip::skip("enriched", "this kernel does not splice");
}

fn agent<'s>(sandbox: &'s Sandbox, way: &str) -> Agent<'s> {
    let settings = format!("workers = 1\nsplice = \"{way}\"");
    let netns = Some(&sandbox.netns);
    Agent::start(BINARY.as_ref(), netns, &sandbox.cgroup, &settings, "").unwrap()
}

fn works(host: &Host<'_>, way: &str) -> bool {
    let engine = format!("underpass_path_available{{path=\"splice_{way}\"");
    let mut works = None;
    eventually("the engine is tried out", || {
        let metrics = host.agent.metrics().unwrap();
        let mut samples = metrics.iter().filter(|(name, _)| name.starts_with(&engine));
        works = samples.next().map(|(_, value)| *value > 0.0);
        way == "off" || works.is_some()
    });
    way == "off" || works == Some(true)
}

/// The same; nothing odd is found.
fn host(way: &str, body: impl FnOnce(&Host<'_>, &Operator)) {
    odd_host(way, |host, operator| {
        body(host, operator);
        nothing_odd(host);
    });
}

/// No anomaly, no place that was lost, no flow that was given up.
fn nothing_odd(host: &Host<'_>) {
    let odd = |name: &str| {
        let odd = ["anomalies", "undecodable_flows", "lost\"", "torn"];
        odd.iter().any(|odd| name.contains(odd))
    };
    let metrics = host.agent.metrics().unwrap();
    let odd: Vec<_> = metrics
        .iter()
        .filter(|(name, value)| odd(name) && **value > 0.0)
        .collect();
    assert!(odd.is_empty(), "{odd:?}");
}

/// A flow that is decoded, of a client such as can be spliced.
fn begun(host: &Host<'_>, version: u8) -> Conversation {
    let mut c = host.connect();
    c.client_sends(&startup(version, &[("CQL_VERSION", "3.0.0")]));
    c.server_sends(&ready(version));
    c.in_segments = version >= 5;
    c.client.set_nonblocking(true).unwrap();
    c
}

/// Has it marked, by its number and for as long as the answer takes: there are 64 marks at most.
fn mark(host: &Host<'_>, operator: &Operator, c: &Conversation, action: &str) -> Value {
    let id = host.flow(c)["id"].to_string();
    mark_by_id(operator, &id, action)
}

fn mark_by_id(operator: &Operator, id: &str, action: &str) -> Value {
    let wanted = json!({"target": id, "action": action}).to_string();
    let said = operator.say(&super::post(&wanted));
    let (_, body) = said.split_once("\r\n\r\n").unwrap();
    let marked: Value = serde_json::from_str(body).unwrap_or_else(|e| panic!("{said}: {e}"));
    let number = &marked["mark"]["id"];
    operator.say(&format!("DELETE /marks/{number} HTTP/1.0\r\n\r\n"));
    marked["flows"][0].clone()
}

/// Nobody reads it, and `way` carries it.
fn unread(host: &Host<'_>, operator: &Operator, c: &Conversation, way: &str) {
    let marked = mark(host, operator, c, "bypass");
    assert_eq!(marked["result"], "changed", "{marked}");
    let path = if way == "off" { "relay" } else { "splice" };
    eventually("it is carried", || host.flow(c)["path"] == path);
}

fn read_again(host: &Host<'_>, operator: &Operator, c: &Conversation) {
    let marked = mark(host, operator, c, "enrich");
    assert_eq!(marked["result"], "changed", "{marked}");
    assert_eq!(host.flow(c)["path"], "enrich");
}

fn select(version: u8, stream: i16, table: &str) -> Vec<u8> {
    query(version, stream, &format!("SELECT v FROM ks.{table}"))
}

/// As the client's socket does not block.
fn exchange(c: &mut Conversation, version: u8, table: &str) {
    let (request, response) = (select(version, 1, table), void(version, 1));
    let (request, response) = (c.wrap(&request), c.wrap(&response));
    write(&c.client, &request);
    c.server_gets(&request);
    write(&c.server, &response);
    read(&c.client, &response);
}

/// How often a table was asked for, under which rule.
fn counted(host: &Host<'_>, table: &str) -> Vec<(String, u64)> {
    let rows = host.agent.json("/statements").unwrap();
    let rows = rows.as_array().unwrap().iter();
    rows.filter(|row| row["table"] == table)
        .map(|row| {
            let rule = row["rule"].as_str().unwrap().to_owned();
            (rule, row["count"].as_u64().unwrap())
        })
        .collect()
}

fn by_mark(count: u64) -> Vec<(String, u64)> {
    vec![("mark".to_owned(), count)]
}

/// A part of a frame that no segment holds.
fn part(payload: &[u8]) -> Vec<u8> {
    let header = &(payload.len() as u32).to_le_bytes()[..3];
    let crc = &crc24(header).to_le_bytes()[..3];
    [header, crc, payload, &crc32(payload).to_le_bytes()].concat()
}

/// Frames as their version puts them on the wire.
fn wire(version: u8, frames: &[Vec<u8>]) -> Vec<u8> {
    if version < 5 {
        return frames.concat();
    }
    let mut bytes = Vec::new();
    let mut together = Vec::new();
    for frame in frames {
        if frame.len() + together.len() > 0x1_FFFF && !together.is_empty() {
            bytes.extend(segment(&std::mem::take(&mut together)));
        }
        match frame.len() {
            0..0x2_0000 => together.extend(frame),
            _ => bytes.extend(frame.chunks(0x1_FFFF).flat_map(part)),
        }
    }
    if !together.is_empty() {
        bytes.extend(segment(&together));
    }
    bytes
}

#[test]
fn exactly_what_follows_the_mark_is_counted() {
    for way in WAYS {
        host(way, |host, operator| {
            for version in [3, 4, 5] {
                let tables = ["unread", "read"].map(|t| format!("{t}_{version}"));
                let [unseen, seen] = &tables;
                let mut c = begun(host, version);
                for round in 1..4 {
                    unread(host, operator, &c, way);
                    (0..50).for_each(|_| exchange(&mut c, version, unseen));
                    read_again(host, operator, &c);
                    (0..17).for_each(|_| exchange(&mut c, version, seen));
                    assert_eq!(counted(host, seen), by_mark(17 * round), "{way} v{version}");
                    assert_eq!(counted(host, unseen), [], "{way} v{version}");
                    let again = mark(host, operator, &c, "enrich");
                    assert_eq!(again["result"], "already");
                }
                c.client.set_nonblocking(false).unwrap();
                c.ends();
            }
            let spliced = "underpass_spliced_bytes_total{direction=\"to_database\"}";
            let spliced = host.agent.metric(spliced).unwrap();
            assert_eq!(spliced > 0.0, way != "off", "{spliced} bytes by {way}");
        });
    }
}

/// Nobody has decoded it before: the rule has let it go as soon as its session was known, in v5 with
/// the very frame behind which segments begin.
#[test]
fn a_flow_that_a_session_rule_has_let_go_is_decoded_from_the_mark_on() {
    const RULES: &str = "[[rule]]\nname = \"b\"\nto = [\":PORT\"]\ndriver = [\"d\"]\n\
                         action = \"bypass\"\n[[rule]]\nname = \"r\"\nto = [\":PORT\"]\n\
                         action = \"enrich\"\n";
    for way in WAYS {
        host(way, |host, operator| {
            host.policy(RULES);
            let path = if way == "off" { "relay" } else { "splice" };
            for version in [3, 4, 5] {
                let table = format!("read_{version}");
                let mut c = host.connect();
                c.client.set_nonblocking(true).unwrap();
                let options = [("CQL_VERSION", "3.0.0"), ("DRIVER_NAME", "d")];
                let (startup, ready) = (startup(version, &options), ready(version));
                passes(&c.client, &c.server, &startup);
                passes(&c.server, &c.client, &ready);
                c.in_segments = version >= 5;
                eventually("it is carried", || host.flow(&c)["path"] == path);
                assert_eq!(host.flow(&c)["rule"], "b");
                (0..10).for_each(|_| exchange(&mut c, version, "unread"));
                read_again(host, operator, &c);
                (0..5).for_each(|_| exchange(&mut c, version, &table));
                assert_eq!(counted(host, &table), by_mark(5), "{way} v{version}");
                c.client.set_nonblocking(false).unwrap();
                c.ends();
            }
            assert_eq!(counted(host, "unread"), [], "{way}");
        });
    }
}

/// A request of which a part has passed when the mark comes: its headers, of the frame and, in v5,
/// of each segment, lie behind it, before it, or on both sides.
#[test]
fn a_mark_in_the_middle_of_a_frame_means_the_next_one() {
    for way in WAYS {
        host(way, |host, operator| {
            for version in [4, 5] {
                for (n, cut) in [1, 5, 8, 9, 12, 70_000, 131_075, 131_081, 131_085, 250_000]
                    .into_iter()
                    .enumerate()
                {
                    let (large, table) = (format!("l{version}_{n}"), format!("s{version}_{n}"));
                    let mut c = begun(host, version);
                    unread(host, operator, &c, way);
                    exchange(&mut c, version, "before");
                    let text = format!("SELECT v FROM ks.{large} {}", " ".repeat(300_000));
                    let request = wire(version, &[query(version, 2, &text)]);
                    let rows = [&2_i32.to_be_bytes()[..], &vec![7; 300_000]].concat();
                    let response = frame(RESPONSE | version, 3, RESULT, &rows);
                    let response = wire(version, &[response]);
                    // One is asked and answered, of the other's answer a part has passed.
                    for (from, to, bytes) in [
                        (&c.client, &c.server, &request),
                        (&c.server, &c.client, &response),
                    ] {
                        passes(from, to, &bytes[..cut]);
                    }
                    read_again(host, operator, &c);
                    for (from, to, bytes) in [
                        (&c.client, &c.server, &request),
                        (&c.server, &c.client, &response),
                    ] {
                        passes(from, to, &bytes[cut..]);
                    }
                    passes(&c.server, &c.client, &wire(version, &[void(version, 2)]));
                    (0..3).for_each(|_| exchange(&mut c, version, &table));
                    let case = format!("{way} v{version}, {cut} bytes before the mark");
                    assert_eq!(counted(host, &large), [], "{case}");
                    assert_eq!(counted(host, &table), by_mark(3), "{case}");
                    c.client.set_nonblocking(false).unwrap();
                    c.ends();
                }
            }
        });
    }
}

/// Both ends at once: neither takes it all without the other.
fn passes(from: &std::net::TcpStream, to: &std::net::TcpStream, bytes: &[u8]) {
    std::thread::scope(|scope| {
        scope.spawn(|| write(from, bytes));
        read(to, bytes);
    });
}

/// Requests that are on their way together, with their responses.
fn batch(version: u8, round: usize) -> (Vec<u8>, Vec<u8>) {
    let small = |n: i16| (select(version, n, "t"), void(version, n));
    let tiny = |n: i16| {
        let asked = frame(version, n, OPTIONS, &[]);
        (asked, frame(RESPONSE | version, n, SUPPORTED, &[0, 0]))
    };
    let large = |n: i16| {
        let text = format!("SELECT v FROM ks.t {}", " ".repeat(round * 7919 % 300_000));
        let rows = [
            &2_i32.to_be_bytes()[..],
            &vec![7; round * 104_729 % 300_000],
        ]
        .concat();
        let rows = frame(RESPONSE | version, n, RESULT, &rows);
        (query(version, n, &text), rows)
    };
    let pairs: Vec<_> = match round % 4 {
        0 => (0..40).map(small).collect(),
        1 => (0..5_000).map(tiny).collect(),
        2 => vec![large(1), small(2), large(3), tiny(4)],
        _ => vec![small(1)],
    };
    let (requests, responses): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    (wire(version, &requests), wire(version, &responses))
}

/// How bytes are given to a socket: all at once, or in pieces that mind no frame.
fn in_pieces(bytes: &[u8], round: usize) -> impl Iterator<Item = &[u8]> {
    let size = match round % 3 {
        0 => bytes.len(),
        1 => 1 + round * 31 % 1_500,
        _ => 40_000,
    };
    bytes.chunks(size.max(bytes.len() / 200 + 1))
}

/// Has both ends agree on their last batch, also when a mark did what it should not.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_flow_of_an_agent_before_is_decoded_from_its_next_frame_on() {
    for way in ["ingress", "egress"] {
        mortal_host(way, |host, operator| {
            let versions = [4, 5];
            let mut flows = versions.map(|version| {
                let mut c = begun(host, version);
                unread(host, operator, &c, way);
                exchange(&mut c, version, "before");
                // It ends in the middle of a frame.
                let request = c.wrap(&select(version, 1, "across"));
                let (first, rest) = request.split_at(request.len() / 2);
                write(&c.client, first);
                c.server_gets(first);
                (c, rest.to_vec())
            });
            host.agent.kill().unwrap();
            host.agent.restart().unwrap();
            eventually("they are adopted", || {
                host.agent.metric("underpass_adopted_flows_total").unwrap() == 2.0
            });
            for ((c, rest), version) in flows.iter_mut().zip(versions) {
                read_again(host, operator, c);
                write(&c.client, rest);
                c.server_gets(rest);
                let response = c.wrap(&void(version, 1));
                write(&c.server, &response);
                read(&c.client, &response);
                let table = format!("after_{version}");
                (0..5).for_each(|_| exchange(c, version, &table));
                assert_eq!(counted(host, &table), by_mark(5), "{way} v{version}");
            }
            assert_eq!(counted(host, "across"), []);
            nothing_odd(host);
            for (c, _) in flows {
                c.client.set_nonblocking(false).unwrap();
                c.ends();
            }
        });
    }
}

#[test]
fn marks_that_flip_every_few_milliseconds_lose_nothing_and_find_nothing_odd() {
    const FLIPS: usize = 60;
    for way in WAYS {
        host(way, |host, operator| {
            let flows = [4, 5, 4, 5].map(|version| (version, begun(host, version)));
            let done = AtomicBool::new(false);
            let rounds = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for (version, c) in &flows {
                    // The last batch is agreed on by both ends.
                    let (done, rounds, version) = (&done, &rounds, *version);
                    let last = AtomicUsize::new(usize::MAX);
                    let last = std::sync::Arc::new(last);
                    let servers = last.clone();
                    scope.spawn(move || {
                        for round in 0.. {
                            if done.load(Relaxed) {
                                last.store(round, Relaxed);
                            }
                            let (requests, responses) = batch(version, round);
                            in_pieces(&requests, round).for_each(|p| write(&c.client, p));
                            read(&c.client, &responses);
                            rounds.fetch_add(1, Relaxed);
                            if last.load(Relaxed) == round {
                                return;
                            }
                        }
                    });
                    scope.spawn(move || {
                        for round in 0.. {
                            let (requests, responses) = batch(version, round);
                            read(&c.server, &requests);
                            in_pieces(&responses, round + 1).for_each(|p| write(&c.server, p));
                            if servers.load(Relaxed) == round {
                                return;
                            }
                        }
                    });
                }
                let _done = Ends(&done);
                let ids: Vec<String> = flows
                    .iter()
                    .map(|(_, c)| host.flow(c)["id"].to_string())
                    .collect();
                for _ in 0..FLIPS {
                    for action in ["bypass", "enrich"] {
                        for id in &ids {
                            let marked = mark_by_id(operator, id, action);
                            assert_eq!(marked["result"], "changed", "{way}: {marked}");
                        }
                        let so_far = rounds.load(Relaxed);
                        let deadline = Instant::now() + Duration::from_millis(3);
                        while rounds.load(Relaxed) == so_far && Instant::now() < deadline {
                            std::thread::yield_now();
                        }
                    }
                }
            });
            nothing_odd(host);
            let seen: u64 = counted(host, "t").iter().map(|(_, count)| count).sum();
            assert!(seen > 0, "nothing was read between two marks");
            // They end enriched, and are read as ever.
            for (n, (version, mut c)) in flows.into_iter().enumerate() {
                let table = format!("after_{n}");
                (0..5).for_each(|_| exchange(&mut c, version, &table));
                assert_eq!(counted(host, &table), by_mark(5), "{way} v{version}");
                c.client.set_nonblocking(false).unwrap();
                c.ends();
            }
            let spliced = "underpass_spliced_bytes_total{direction=\"to_client\"}";
            let spliced = host.agent.metric(spliced).unwrap();
            assert_eq!(spliced > 0.0, way != "off", "{spliced} bytes by {way}");
        });
    }
}

#[test]
fn what_is_no_cql_any_more_cannot_be_decoded_and_is_carried_all_the_same() {
    for way in ["ingress", "egress"] {
        odd_host(way, |host, operator| {
            for garbage_from_client in [true, false] {
                let mut c = begun(host, 4);
                unread(host, operator, &c, way);
                exchange(&mut c, 4, "t");
                let garbage = [0x42; 5_000];
                for n in 0..20 {
                    let (from, to) = match garbage_from_client {
                        true => (&c.client, &c.server),
                        false => (&c.server, &c.client),
                    };
                    passes(from, to, &garbage[n..]);
                }
                let marked = mark(host, operator, &c, "enrich");
                assert_eq!(marked["result"], "could_not", "{marked}");
                let why = marked["why"].as_str().unwrap();
                assert!(why.contains("could not be cut into frames"), "{why}");
                passes(&c.client, &c.server, &garbage);
                c.client.set_nonblocking(false).unwrap();
                c.ends();
            }
            let lost = "underpass_safer_path_total{cause=\"splice_place_lost\"}";
            assert!(host.agent.metric(lost).unwrap() > 0.0);
        });
    }
}

#[test]
fn a_flow_that_was_never_understood_says_why_it_cannot_be() {
    odd_host("off", |host, operator| {
        let cases = [
            (b"\x16\x03\x01\x00\x05hello".to_vec(), vec![], "it is TLS"),
            (b"GET / HTTP/1.1".to_vec(), vec![], "it is no CQL"),
            (
                startup(5, &[("COMPRESSION", "lz4")]),
                ready(5),
                "its segments are compressed",
            ),
        ];
        for (client, server, why) in cases {
            let mut c = host.connect();
            c.client_sends(&client);
            c.server_sends(&server);
            let marked = mark(host, operator, &c, "enrich");
            assert_eq!(marked["result"], "could_not", "{marked}");
            assert!(marked["why"].as_str().unwrap().contains(why), "{marked}");
            c.ends();
        }
    });
}
