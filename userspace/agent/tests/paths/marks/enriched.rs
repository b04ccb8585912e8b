//! Flows that are decoded again after nobody has read them for a while: exactly what begins after
//! the mark is counted, wherever in a frame it came, and whoever carried the flow meanwhile.

use std::net::TcpListener;

use cassandra_protocol::crc::{crc24, crc32};
use sandbox::{Agent, Netns, Sandbox};
use serde_json::{Value, json};

use super::{
    ENRICH, OPTS_IN,
    spliced::{read, write},
};
use crate::common::{
    BINARY, eventually,
    frames::{RESPONSE, RESULT, frame, query, ready, segment, startup, void},
    operator::Operator,
    wire::{Conversation, Host, INCOMING},
};

/// Every way in which a flow is carried while nobody reads it.
pub(super) const WAYS: [&str; 3] = ["off", "sender", "egress"];

/// Ways of clients on another host.
pub(super) const INCOMING_WAYS: [&str; 1] = ["incoming egress"];

/// The setting by which a flow is carried so, and whether its client is elsewhere.
fn engine(way: &str) -> (&str, bool) {
    match way.strip_prefix("incoming ") {
        Some(engine) => (engine, true),
        None => (way, false),
    }
}

/// On a busy host the canary may run out of time.
const ATTEMPTS: usize = 5;

/// A host whose agent carries what is not read by `way`, on a kernel that can.
fn odd_host(way: &str, body: impl FnOnce(&Host<'_>, &Operator)) {
    mortal_host(way, |host, operator| body(host, operator));
}

/// One whose agent may be killed.
fn mortal_host(way: &str, body: impl FnOnce(&mut Host<'_>, &Operator)) {
    let sandbox = Sandbox::new().unwrap();
    let (setting, is_incoming) = engine(way);
    let clients = is_incoming.then(|| {
        let clients = Netns::new().unwrap();
        let (own, others) = (["192.0.2.2/24"], ["192.0.2.1/24"]);
        sandbox.netns.join(&clients, &own, &others).unwrap();
        clients
    });
    let at = if is_incoming {
        "192.0.2.2:0"
    } else {
        "127.0.0.1:0"
    };
    let listener = sandbox.server(|| TcpListener::bind(at));
    let mut host = Host {
        agent: agent(&sandbox, way),
        sandbox: &sandbox,
        listener: listener.unwrap().unwrap(),
        clients,
    };
    for _ in 0..ATTEMPTS {
        if works(&host, setting) {
            host.policy(ENRICH);
            // A database that no hook of the agent saw begin to listen is known within a second.
            eventually("the database is known", || {
                let c = host.connect();
                let flows = host.agent.json("/flows").unwrap();
                drop(c);
                flows != json!([])
            });
            eventually("that flow ends", || {
                host.agent.json("/flows").unwrap() == json!([])
            });
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
    sandbox::skip::skip("enriched", "this kernel does not splice");
}

fn agent<'s>(sandbox: &'s Sandbox, way: &str) -> Agent<'s> {
    let (setting, is_incoming) = engine(way);
    let settings = format!("workers = 1\nsplice = \"{setting}\"");
    let incoming = if is_incoming { INCOMING } else { "" };
    let policy = format!("{incoming}{OPTS_IN}");
    let netns = Some(&sandbox.netns);
    Agent::start(BINARY.as_ref(), netns, &sandbox.cgroup, &settings, &policy).unwrap()
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

/// Runs `body` on a host of this way, and checks that nothing odd is found.
pub(super) fn host(way: &str, body: impl FnOnce(&Host<'_>, &Operator)) {
    odd_host(way, |host, operator| {
        body(host, operator);
        nothing_odd(host);
    });
}

/// No anomaly, no place that was lost, no flow that was given up.
pub(super) fn nothing_odd(host: &Host<'_>) {
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
pub(super) fn begun(host: &Host<'_>, version: u8) -> Conversation {
    let mut c = host.connect();
    greeted(&mut c, version);
    c.client.set_nonblocking(true).unwrap();
    c.server.set_nonblocking(true).unwrap();
    c
}

/// A flow that is decoded, whose legs are short while it is.
pub(super) fn begun_short(host: &Host<'_>, version: u8) -> Conversation {
    let mut c = host.connect();
    c.client.set_nonblocking(true).unwrap();
    c.server.set_nonblocking(true).unwrap();
    greeted(&mut c, version);
    c
}

fn greeted(c: &mut Conversation, version: u8) {
    c.client_sends(&startup(version, &[("CQL_VERSION", "3.0.0")]));
    c.server_sends(&ready(version));
    c.in_segments = version >= 5;
}

/// Makes a conversation's sockets block again: it is read to its end.
fn may_block(c: &Conversation) {
    for end in [&c.client, &c.server] {
        end.set_nonblocking(false).unwrap();
    }
}

/// Marks a flow, by its number and for as long as the answer takes: there are 64 marks at most.
fn mark(host: &Host<'_>, operator: &Operator, c: &Conversation, action: &str) -> Value {
    let id = host.flow(c)["id"].to_string();
    mark_by_id(operator, &id, action)
}

pub(super) fn mark_by_id(operator: &Operator, id: &str, action: &str) -> Value {
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

pub(super) fn select(version: u8, stream: i16, table: &str) -> Vec<u8> {
    query(version, stream, &format!("SELECT v FROM ks.{table}"))
}

/// Exchanges a request and its answer with a client whose socket does not block.
pub(super) fn exchange(c: &mut Conversation, version: u8, table: &str) {
    let (request, response) = (select(version, 1, table), void(version, 1));
    let (request, response) = (c.wrap(&request), c.wrap(&response));
    write(&c.client, &request);
    c.server_gets(&request);
    write(&c.server, &response);
    read(&c.client, &response);
}

/// How often a table was asked for, under which rule.
pub(super) fn counted(host: &Host<'_>, table: &str) -> Vec<(String, u64)> {
    let rows = host.agent.json("/statements").unwrap();
    let rows = rows.as_array().unwrap().iter();
    rows.filter(|row| row["table"] == table)
        .map(|row| {
            let rule = row["rule"].as_str().unwrap().to_owned();
            (rule, row["count"].as_u64().unwrap())
        })
        .collect()
}

pub(super) fn by_mark(count: u64) -> Vec<(String, u64)> {
    vec![("mark".to_owned(), count)]
}

/// A part of a frame that no segment holds.
fn part(payload: &[u8]) -> Vec<u8> {
    let header = &(payload.len() as u32).to_le_bytes()[..3];
    let crc = &crc24(header).to_le_bytes()[..3];
    [header, crc, payload, &crc32(payload).to_le_bytes()].concat()
}

/// Frames as their version puts them on the wire.
pub(super) fn wire(version: u8, frames: &[Vec<u8>]) -> Vec<u8> {
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
                may_block(&c);
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
                c.server.set_nonblocking(true).unwrap();
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
                may_block(&c);
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
                    may_block(&c);
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

#[test]
fn a_flow_of_an_agent_before_is_decoded_from_its_next_frame_on() {
    for way in ["sender", "egress"] {
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
                may_block(&c);
                c.ends();
            }
        });
    }
}

#[test]
fn what_is_no_cql_any_more_cannot_be_decoded_and_is_carried_all_the_same() {
    for way in ["sender", "egress"] {
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
                may_block(&c);
                c.ends();
            }
            let lost = "underpass_safer_path_total{cause=\"splice_position_lost\"}";
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
                startup(5, &[("COMPRESSION", "zstd")]),
                ready(5),
                "its segments are compressed in a way that is not known",
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
        // One that is understood, but not found again.
        let mut c = host.connect();
        c.client_sends(&startup(5, &[("COMPRESSION", "lz4")]));
        c.server_sends(&ready(5));
        assert_eq!(mark(host, operator, &c, "enrich")["result"], "already");
        assert_eq!(mark(host, operator, &c, "bypass")["result"], "changed");
        let marked = mark(host, operator, &c, "enrich");
        assert_eq!(marked["result"], "could_not", "{marked}");
        let why = "nobody knows where in a frame it is: its segments are compressed";
        assert_eq!(marked["why"], why);
        c.ends();
    });
}
