//! Rules with `trace`: which requests have a span, what it says and what it does not; and that a collector which
//! is not there, hangs or refuses is nobody else's trouble.

pub mod collector;
mod encrypted;

use std::{
    collections::HashSet,
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use collector::{Collector, Says, listen, listen_at, text};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use sandbox::{Agent, Sandbox};

use crate::common::{
    BINARY, eventually,
    frames::{RESPONSE, RESULT, frame, query, ready, startup, void},
    wire::{Conversation, Host, PREPARE, host, rows, set_keyspace},
};

const SELECT: &str = "SELECT v FROM shop.orders WHERE id = 'secret'";
const FINGERPRINT: &str = "SELECT v FROM shop.orders WHERE id = ?";

const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const NOT_SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

/// Requests that are asked at once.
const MANY: u64 = 6_000;

/// One rule, `r`, that traces to this endpoint before other steps. Its flows come to the agent, which is behind by no more
/// than a span.
fn policy(to: SocketAddr, sample: f64, steps: &str) -> String {
    policy_by("inline", to, sample, steps)
}

fn policy_by(path: &str, to: SocketAddr, sample: f64, steps: &str) -> String {
    format!(
        "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\npath = \"{path}\"\naction = \"enrich\"\npipeline = [{{ transform = \"trace\", \
         endpoint = \"http://{to}\", sample = {sample}, service = \"shop\" }}{steps}]\n"
    )
}

/// A host whose agent traces to a collector that says this.
fn traced(sample: f64, steps: &str, says: Says, body: impl FnOnce(&Host<'_>, &Collector)) {
    traced_by("inline", sample, steps, says, body);
}

fn traced_by(
    path: &str,
    sample: f64,
    steps: &str,
    says: Says,
    body: impl FnOnce(&Host<'_>, &Collector),
) {
    host(|host| {
        let listener = listen(host.sandbox);
        host.policy(&policy_by(
            path,
            listener.local_addr().unwrap(),
            sample,
            steps,
        ));
        body(host, &Collector::start(listener, says));
    });
}

fn begin(host: &Host<'_>, version: u8) -> Conversation {
    let mut c = host.connect();
    let options = [("CQL_VERSION", "3.0.0"), ("APPLICATION_NAME", "billing")];
    c.client_sends(&startup(version, &options));
    c.server_sends(&ready(version));
    c.in_segments = version >= 5;
    c
}

/// A request in a trace.
fn within(context: &str, request: Vec<u8>) -> Vec<u8> {
    with_payload(&[("traceparent", context)], request)
}

pub fn with_payload(payload: &[(&str, &str)], mut request: Vec<u8>) -> Vec<u8> {
    let mut entries = (payload.len() as u16).to_be_bytes().to_vec();
    for (key, value) in payload {
        entries.extend((key.len() as u16).to_be_bytes());
        entries.extend(key.as_bytes());
        entries.extend((value.len() as u32).to_be_bytes());
        entries.extend(value.as_bytes());
    }
    let body = u32::from_be_bytes(request[5..9].try_into().unwrap()) + entries.len() as u32;
    request[1] |= 0x04;
    request[5..9].copy_from_slice(&body.to_be_bytes());
    request.splice(9..9, entries);
    request
}

fn asks(c: &mut Conversation, version: u8, request: &[u8]) {
    c.client_sends(request);
    c.server_sends(&void(version, 1));
}

/// When there are so many.
fn wait_for(collector: &Collector, count: usize) -> Vec<Span> {
    eventually("the spans are there", || collector.spans().len() >= count);
    let spans = collector.spans();
    assert_eq!(spans.len(), count, "{spans:#?}");
    spans
}

fn counted(host: &Host<'_>, result: &str) -> u64 {
    host.metric("trace_spans", &format!("result=\"{result}\""))
}

fn said(host: &Host<'_>, text: &str) -> usize {
    host.agent.log().matches(text).count()
}

fn error(version: u8, stream: i16, code: i32) -> Vec<u8> {
    let body = [&code.to_be_bytes()[..], &[0, 1, b'x']].concat();
    frame(RESPONSE | version, stream, 0x00, &body)
}

/// Checks the attributes of a span, without those that this leaves open.
fn says(span: &Span, expected: &[(&str, &str)]) {
    for (key, value) in expected {
        let found = text(&span.attributes, key);
        assert_eq!(found.as_deref(), Some(*value), "{key} of {span:#?}");
    }
}

#[test]
fn a_client_that_traces_decides_and_else_the_fraction() {
    for sample in [0.0, 1.0] {
        traced(sample, "", Says::Thanks, |host, collector| {
            let mut expected = 0;
            for version in [4, 5] {
                let mut c = begin(host, version);
                let select = query(version, 1, SELECT);
                let malformed = SAMPLED.to_uppercase();
                asks(&mut c, version, &within(NOT_SAMPLED, select.clone()));
                asks(&mut c, version, &select);
                asks(&mut c, version, &within(&malformed, select.clone()));
                asks(&mut c, version, &within(SAMPLED, select));
                c.ends();
                expected += if sample == 0.0 { 1 } else { 3 };
            }
            let spans = wait_for(collector, expected);
            let (children, roots): (Vec<_>, Vec<_>) = spans
                .iter()
                .partition(|span| !span.parent_span_id.is_empty());
            assert_eq!(children.len(), 2);
            for child in children {
                let id = 0x0AF7_6519_16CD_43DD_8448_EB21_1C80_319C_u128;
                assert_eq!(child.trace_id, id.to_be_bytes());
                assert_eq!(
                    child.parent_span_id,
                    0xB7AD_6B71_6920_3331_u64.to_be_bytes()
                );
                assert_eq!(child.flags, 0x301);
            }
            let traces: HashSet<_> = roots.iter().map(|root| &root.trace_id).collect();
            assert_eq!(traces.len(), roots.len());
            assert!(traces.iter().all(|id| id.len() == 16 && ***id != [0; 16]));
            assert!(roots.iter().all(|root| root.flags & 1 == 1));
            let spans: HashSet<_> = spans.iter().map(|span| &span.span_id).collect();
            assert_eq!(spans.len(), expected);
            eventually("they are counted", || {
                counted(host, "exported") == expected as u64
            });
            let malformed = host
                .agent
                .metric("underpass_trace_contexts_malformed_total");
            assert_eq!(malformed.unwrap(), 2.0);
        });
    }
}

#[test]
fn what_tracing_systems_tell_each_other_is_passed_on() {
    let state = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE";
    let long = format!("a={}", "b".repeat(511));
    traced(0.0, "", Says::Thanks, |host, collector| {
        for version in [4, 5] {
            let mut c = begin(host, version);
            for state in [state, "Rojo=1", &long, ""] {
                let payload = [("tracestate", state), ("traceparent", SAMPLED)];
                let select = query(version, 1, SELECT);
                asks(&mut c, version, &with_payload(&payload, select));
            }
            c.ends();
        }
        let spans = wait_for(collector, 8);
        let states: Vec<_> = spans.iter().map(|span| &*span.trace_state).collect();
        assert_eq!(states, [state, "", "", "", state, "", "", ""]);
        let malformed = host.agent.metric("underpass_trace_states_malformed_total");
        assert_eq!(malformed.unwrap(), 4.0);
    });
}

const ID: &[u8] = b"0123456789abcdef";

fn prepare(version: u8, text: &str) -> Vec<u8> {
    let mut body = (text.len() as i32).to_be_bytes().to_vec();
    body.extend(text.as_bytes());
    body.extend(if version < 5 { &[][..] } else { &[0; 4] });
    frame(version, 1, PREPARE, &body)
}

/// A RESULT of kind Prepared, as much of it as is read.
fn prepared(version: u8) -> Vec<u8> {
    let body = [&4_i32.to_be_bytes()[..], &[0, 16], ID, &[0; 100]].concat();
    frame(RESPONSE | version, 1, RESULT, &body)
}

/// At LOCAL_ONE, with one value, 100 rows to a page.
fn execute(version: u8) -> Vec<u8> {
    let metadata: &[u8] = if version < 5 { &[] } else { &[0, 1, b'm'] };
    let flags: &[u8] = if version < 5 { &[5] } else { &[0, 0, 0, 5] };
    let value = [&[0, 1, 0, 0, 0, 6][..], b"secret"].concat();
    let page = 100_i32.to_be_bytes();
    let body = [&[0, 16], ID, metadata, &[0, 10], flags, &value, &page].concat();
    frame(version, 1, 0x0A, &body)
}

/// Two texts with values at ONE.
fn batch(version: u8) -> Vec<u8> {
    let text = "DELETE FROM shop.orders WHERE id = 'secret'";
    let length = (text.len() as i32).to_be_bytes();
    let child = [&[0][..], &length, text.as_bytes(), &[0, 0]].concat();
    let parameters: &[u8] = if version < 5 {
        &[0, 1, 0]
    } else {
        &[0, 1, 0, 0, 0, 0]
    };
    let body = [&[1, 0, 2][..], &child, &child, parameters].concat();
    frame(version, 1, 0x0D, &body)
}

/// Two rows, and that the database has traced it.
fn two_rows(version: u8) -> Vec<u8> {
    let head = [2, 4, 1, 2].map(|n: i32| n.to_be_bytes()).concat();
    let tracing_id: Vec<u8> = (0..16).collect();
    let body = [tracing_id, head, vec![0; 8]].concat();
    let mut answer = frame(RESPONSE | version, 1, RESULT, &body);
    answer[1] |= 2;
    answer
}

#[test]
fn a_span_says_what_was_asked_without_its_values() {
    spans_say_what_was_asked("inline");
}

#[test]
fn a_span_of_a_tapped_flow_says_the_same() {
    spans_say_what_was_asked("tap");
}

fn spans_say_what_was_asked(path: &str) {
    traced_by(path, 1.0, "", Says::Thanks, |host, collector| {
        let mut seen = 0;
        for version in [3, 4, 5] {
            let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let mut c = begin(host, version);
            c.client_sends(&prepare(
                version,
                "UPDATE shop.orders SET v = ? WHERE id = 7",
            ));
            c.server_sends(&prepared(version));
            c.client_sends(&execute(version));
            c.server_sends(&two_rows(version));
            c.client_sends(&query(version, 1, SELECT));
            c.server_sends(&error(version, 1, 0x1200));
            asks(&mut c, version, &batch(version));
            c.client_sends(&query(version, 1, "USE shop"));
            c.server_sends(&set_keyspace(version, 1, "shop"));
            let client = c.client.local_addr().unwrap();
            let flow = host.flow(&c);
            c.ends();
            let spans = wait_for(collector, seen + 5).split_off(seen);
            seen += 5;
            let ended = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let names: Vec<&str> = spans.iter().map(|span| &*span.name).collect();
            assert_eq!(
                names,
                [
                    "PREPARE orders",
                    "UPDATE orders",
                    "SELECT orders",
                    "BATCH shop",
                    "USE shop"
                ]
            );
            let database = host.listener.local_addr().unwrap().port().to_string();
            for span in &spans {
                assert!(!format!("{span:?}").contains("secret"), "{span:#?}");
                assert_eq!(span.kind(), SpanKind::Client);
                let (start, end) = (span.start_time_unix_nano, span.end_time_unix_nano);
                assert!(began.as_nanos() <= u128::from(start) && start <= end);
                assert!(u128::from(end) <= ended.as_nanos());
                says(
                    span,
                    &[
                        ("db.system.name", "cassandra"),
                        ("db.namespace", "shop"),
                        ("server.address", "127.0.0.1"),
                        ("server.port", &database),
                        ("network.peer.address", "127.0.0.1"),
                        ("network.peer.port", &database),
                        ("client.address", "127.0.0.1"),
                        ("client.port", &client.port().to_string()),
                        ("underpass.rule", "r"),
                        ("underpass.flow", &flow["id"].to_string()),
                        ("underpass.application", "billing"),
                        ("underpass.process", flow["process"].as_str().unwrap()),
                    ],
                );
            }
            let update = "UPDATE shop.orders SET v = ? WHERE id = ?";
            says(
                &spans[0],
                &[("db.query.text", update), ("db.operation.name", "PREPARE")],
            );
            says(
                &spans[1],
                &[
                    ("db.operation.name", "UPDATE"),
                    ("db.collection.name", "orders"),
                    ("db.query.summary", "UPDATE orders"),
                    ("db.query.text", update),
                    ("cassandra.consistency.level", "local_one"),
                    ("cassandra.page.size", "100"),
                    ("db.response.returned_rows", "2"),
                    (
                        "underpass.tracing_id",
                        "00010203-0405-0607-0809-0a0b0c0d0e0f",
                    ),
                ],
            );
            assert!(spans[1].status.is_none());
            let error = [
                ("db.query.text", FINGERPRINT),
                ("error.type", "0x1200"),
                ("db.response.status_code", "0x1200"),
            ];
            says(&spans[2], &error);
            let status = spans[2].status.as_ref().unwrap();
            assert_eq!(
                (status.code(), &*status.message),
                (StatusCode::Error, "read_timeout")
            );
            says(
                &spans[3],
                &[
                    ("db.operation.name", "BATCH"),
                    ("db.operation.batch.size", "2"),
                ],
            );
            assert_eq!(text(&spans[3].attributes, "db.collection.name"), None);
            assert_eq!(text(&spans[2].attributes, "db.operation.batch.size"), None);
        }
        assert_eq!(collector.services(), vec!["shop"; seen]);
    });
}

#[test]
fn what_was_never_answered_ends_with_its_flow() {
    traced(1.0, "", Says::Thanks, |host, collector| {
        for (version, expected) in [(4, 1), (5, 2)] {
            let mut c = begin(host, version);
            c.client_sends(&query(version, 2, SELECT));
            c.ends();
            let span = wait_for(collector, expected).pop().unwrap();
            assert_eq!(span.status.as_ref().unwrap().code(), StatusCode::Error);
            says(
                &span,
                &[("error.type", "unanswered"), ("db.query.text", FINGERPRINT)],
            );
        }
    });
}

#[test]
fn what_a_transform_answers_has_a_span_that_says_so() {
    let guard = ", { transform = \"guard\", refuse = [\"truncate\"] }";
    traced(1.0, guard, Says::Thanks, |host, collector| {
        let mut c = begin(host, 4);
        let refused = query(4, 7, "TRUNCATE shop.orders");
        c.client.write_all(&refused).unwrap();
        assert!(c.client.read(&mut [0; 512]).unwrap() > 0);
        c.server_gets_nothing();
        let span = wait_for(collector, 1).pop().unwrap();
        let expected = [("underpass.answered_by", "guard"), ("error.type", "0x2200")];
        says(&span, &expected);
        assert_eq!(span.name, "TRUNCATE orders");
        c.ends();
    });
}

#[test]
fn a_collector_that_is_not_there_yet_gets_what_has_waited() {
    host(|host| {
        let at = listen(host.sandbox).local_addr().unwrap();
        host.policy(&policy(at, 1.0, ""));
        let mut c = begin(host, 4);
        let select = query(4, 1, SELECT);
        asks(&mut c, 4, &select);
        let fails = "a collector takes no spans";
        host.agent.wait_for_log(fails).unwrap();
        asks(&mut c, 4, &select);
        let unreachable = || {
            host.metric(
                "otlp_exports_failed",
                "signal=\"spans\",why=\"unreachable\"",
            )
        };
        eventually("it is tried again", || unreachable() > 1);
        let collector = Collector::start(listen_at(host.sandbox, at), Says::Thanks);
        wait_for(&collector, 2);
        host.agent
            .wait_for_log("a collector takes spans again")
            .unwrap();
        // It goes away, and comes back.
        drop(collector);
        asks(&mut c, 4, &select);
        eventually("that is noticed", || said(host, fails) == 2);
        let collector = Collector::start(listen_at(host.sandbox, at), Says::Thanks);
        wait_for(&collector, 1);
        asks(&mut c, 4, &select);
        wait_for(&collector, 2);
        eventually("they are counted", || counted(host, "exported") == 4);
        // Once for each time that it changed, however often it was tried.
        assert_eq!((said(host, fails), said(host, "takes spans again")), (2, 2));
        c.ends();
    });
}

/// Many requests at once, and their answers.
fn asks_much(c: &mut Conversation) {
    let (mut to, mut from) = (c.client.try_clone().unwrap(), c.server.try_clone().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for n in 0..MANY {
                to.write_all(&query(4, n as i16, SELECT)).unwrap();
            }
        });
        scope.spawn(move || {
            for n in 0..MANY {
                let mut got = query(4, n as i16, SELECT);
                let asked = got.clone();
                from.read_exact(&mut got).unwrap();
                assert_eq!(got, asked);
                from.write_all(&void(4, n as i16)).unwrap();
            }
        });
        for n in 0..MANY {
            let mut answer = void(4, n as i16);
            c.client.read_exact(&mut answer).unwrap();
            assert_eq!(answer, void(4, n as i16));
        }
    });
}

#[test]
fn a_collector_that_hangs_costs_spans_and_nothing_else() {
    hangs("inline");
}

#[test]
fn a_collector_that_hangs_costs_spans_of_tapped_flows_and_nothing_else() {
    hangs("tap");
}

fn hangs(path: &str) {
    host(|host| {
        // It accepts, and says nothing.
        let hangs = listen(host.sandbox);
        let at = hangs.local_addr().unwrap();
        host.policy(&policy_by(path, at, 1.0, ""));
        let mut c = begin(host, 4);
        asks_much(&mut c);
        // Of some the answer may have passed on two processors at once, and not been read.
        eventually("all are read", || {
            let rows = host.agent.json("/statements").unwrap();
            let mut rows = rows.as_array().unwrap().iter();
            let row = rows.find(|row| row["table"] == "orders");
            let answered = row.map_or(0, |row| row["count"].as_u64().unwrap());
            let abandoned = "underpass_tap_abandoned_total{rule=\"r\"}";
            let unanswered = host.agent.metric(abandoned).unwrap_or(0.0);
            answered + unanswered as u64 == MANY
        });
        let full = counted(host, "full");
        assert!(0 < full && full < MANY, "{full} of {MANY} were dropped");
        assert_eq!(counted(host, "exported"), 0);
        drop(hangs);
        let collector = Collector::start(listen_at(host.sandbox, at), Says::Thanks);
        // It may have hung for longer than a batch is tried.
        let lost = || counted(host, "lost");
        eventually("what has waited is sent", || {
            counted(host, "exported") + lost() == MANY - full
        });
        let sent = MANY - full - lost();
        assert!(sent > 0, "nothing has waited");
        assert_eq!(collector.spans().len() as u64, sent);
        asks(&mut c, 4, &query(4, 1, SELECT));
        wait_for(&collector, sent as usize + 1);
        c.ends();
    });
}

#[test]
fn what_a_collector_does_not_want_is_counted() {
    for (to_be, is_refused) in [(Says::NotThatOne, false), (Says::No, true)] {
        traced(1.0, "", to_be, |host, _collector| {
            let mut c = begin(host, 4);
            let both = [query(4, 1, SELECT), query(4, 2, SELECT)].concat();
            c.client_sends(&both);
            c.server_sends(&[void(4, 1), void(4, 2)].concat());
            let all = || ["exported", "rejected", "lost"].map(|result| counted(host, result));
            eventually("they are counted", || all().iter().sum::<u64>() == 2);
            match (is_refused, all()) {
                // In one batch, or on a slow machine in two.
                (false, [1, 1, 0] | [0, 2, 0]) | (true, [0, 0, 2]) => {}
                (_, all) => panic!("{all:?}"),
            }
            assert_eq!(
                said(host, "a collector takes no spans"),
                usize::from(is_refused)
            );
            c.ends();
        });
    }
}

#[test]
fn a_batch_that_never_passes_is_given_up() {
    traced(1.0, "", Says::Later, |host, _collector| {
        let mut c = begin(host, 4);
        asks(&mut c, 4, &query(4, 1, SELECT));
        eventually("it is given up", || counted(host, "lost") == 1);
        assert_eq!(
            host.metric("otlp_exports_failed", "signal=\"spans\",why=\"refused\""),
            5
        );
        assert_eq!(said(host, "a collector takes no spans"), 1);
        c.ends();
    });
}

#[test]
fn an_agent_that_ends_sends_what_was_said() {
    let sandbox = Sandbox::new().unwrap();
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let netns = Some(&sandbox.netns);
    let agent = Agent::start(Path::new(BINARY), netns, &sandbox.cgroup, "workers = 1", "");
    let mut host = Host {
        sandbox: &sandbox,
        agent: agent.unwrap(),
        listener: listener.unwrap().unwrap(),
        clients: None,
    };
    let listener = listen(&sandbox);
    host.policy(&policy(listener.local_addr().unwrap(), 1.0, ""));
    let collector = Collector::start(listener, Says::Thanks);
    let mut c = begin(&host, 4);
    c.client_sends(&query(4, 1, SELECT));
    c.server_sends(&rows(4, 1));
    host.agent.stop().unwrap();
    assert_eq!(collector.spans().len(), 1);
}
