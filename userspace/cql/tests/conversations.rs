//! Conversations, and what is told about them.

use crate::support::*;
use cassandra_protocol::consistency::Consistency;
use cassandra_protocol::frame::message_batch::BodyReqBatch;
use cassandra_protocol::frame::message_batch::{BatchQuery, BatchQuerySubj, BatchType};
use cassandra_protocol::frame::message_execute::BodyReqExecuteOwned;
use cassandra_protocol::frame::message_prepare::BodyReqPrepare;
use cassandra_protocol::frame::message_query::BodyReqQuery;
use cassandra_protocol::frame::{Serialize, Version};
use cassandra_protocol::query::{QueryParams, QueryValues};
use cassandra_protocol::types::{CBytes, CBytesShort};
use cql::ErrorCode;
use proptest::prelude::*;

#[test]
fn responses_in_any_order_find_their_requests() {
    let mut flow = Flow::started(4);
    for (stream, table) in [(1, "a"), (2, "b"), (300, "c")] {
        flow.request(
            stream,
            QUERY,
            &query(4, &format!("SELECT x FROM ks.{table}"), None),
        );
    }
    assert_eq!(flow.decoder.in_flight(), 3);
    flow.response(300, RESULT, &[0, 0, 0, 2]);
    flow.response(1, ERROR, &0x1200_i32.to_be_bytes());
    flow.response(2, RESULT, &[0, 0, 0, 1]);
    let read_timeout = Some(ErrorCode::Code(0x1200));
    let bytes = 9 + 4 + "SELECT x FROM ks.a".len() as u64 + 3;
    assert_eq!(
        flow.recorder.told,
        [
            Told::Completed(300, "select ks c".into(), None, bytes, 13),
            Told::Completed(1, "select ks a".into(), read_timeout, bytes, 13),
            Told::Completed(2, "select ks b".into(), None, bytes, 13),
        ]
    );
    assert_eq!(flow.decoder.in_flight(), 0);
}

#[test]
fn latency_runs_from_the_requests_header_to_the_responses_end() {
    let mut flow = Flow::started(4);
    let Flow {
        decoder, recorder, ..
    } = &mut flow;
    let request = frame(4, 0, 1, OPTIONS, b"body");
    let response = frame(0x84, 0, 1, 6, b"body");
    recorder.latencies_ns.clear();
    decoder.requests(100, &request[..8], recorder);
    decoder.requests(1000, &request[8..10], recorder);
    decoder.requests(2000, &request[10..], recorder);
    decoder.responses(5000, &response[..12], recorder);
    assert_eq!(decoder.in_flight(), 1, "half answered is not answered");
    decoder.responses(7000, &response[12..], recorder);
    assert_eq!(recorder.latencies_ns, [6000]);
}

#[test]
fn the_flows_keyspace_qualifies() {
    for version in [3, 4, 5] {
        let mut flow = Flow::started(version);
        let select = query(version, "SELECT a FROM t", None);
        assert_eq!(flow.ask(QUERY, &select), "select - t");
        // A USE counts once the server says so.
        flow.request(3, QUERY, &query(version, "USE ks", None));
        assert_eq!(flow.ask(QUERY, &select), "select - t");
        flow.response(3, RESULT, &set_keyspace("ks"));
        assert_eq!(flow.decoder.keyspace(), Some("ks"));
        assert_eq!(flow.ask(QUERY, &select), "select ks t");
        assert_eq!(
            flow.prepare(b"id", "INSERT INTO t (a) VALUES (?)"),
            "prepare ks t"
        );
        flow.use_keyspace("Other");
        assert_eq!(flow.ask(QUERY, &select), "select Other t");
        assert_eq!(
            flow.ask(EXECUTE, &execute(b"id")),
            "insert ks t",
            "as prepared"
        );
        assert_eq!(
            flow.ask(QUERY, &query(version, "DROP TYPE x", None)),
            "drop - -"
        );
        assert_eq!(flow.recorder.anomalies(), []);
    }
}

#[test]
fn a_request_of_v5_may_name_its_keyspace() {
    let mut flow = Flow::started(5);
    flow.use_keyspace("ks");
    let select = "SELECT a FROM t";
    assert_eq!(
        flow.ask(QUERY, &query(5, select, Some("own"))),
        "select own t"
    );
    assert_eq!(
        flow.ask(QUERY, &query(5, "UPDATE q.t", Some("own"))),
        "update q t"
    );
    let children = [
        Child::Text("UPDATE t SET a = ?"),
        Child::Id(b"x"),
        Child::Text("y"),
    ];
    assert_eq!(
        flow.ask(BATCH, &batch(5, &children, Some("own"))),
        "batch own t"
    );
    assert_eq!(flow.ask(BATCH, &batch(5, &children, None)), "batch ks t");
    flow.request(2, PREPARE, &prepare(5, select, Some("own")));
    flow.response(2, RESULT, &prepared(b"id"));
    assert_eq!(flow.ask(EXECUTE, &execute(b"id")), "select own t");
    assert_eq!(flow.recorder.anomalies(), []);
}

#[test]
fn batches_take_the_first_child_that_is_known() {
    let mut flow = Flow::started(4);
    flow.prepare(b"use", "USE x");
    flow.prepare(b"id", "INSERT INTO ks.t (a) VALUES (?)");
    let mut ask = |children: &[Child<'_>]| flow.ask(BATCH, &batch(4, children, None));
    assert_eq!(ask(&[]), "batch - -");
    assert_eq!(ask(&[Child::Id(b"id")]), "batch ks t");
    assert_eq!(
        ask(&[Child::Text("?"), Child::Id(b"use"), Child::Id(b"id")]),
        "batch ks t"
    );
    assert_eq!(
        ask(&[Child::Text("UPDATE u SET"), Child::Id(b"id")]),
        "batch - u"
    );
    // Of many, only the first 64 are looked at.
    for (others, expected) in [(63, "batch ks t"), (64, "batch - -")] {
        let mut children: Vec<_> = (0..others).map(|_| Child::Id(b"use")).collect();
        children.push(Child::Id(b"id"));
        assert_eq!(ask(&children), expected);
    }
    assert_eq!(flow.recorder.anomalies(), []);
}

#[test]
fn a_failed_prepare_is_not_remembered() {
    let mut flow = Flow::started(4);
    flow.request(1, PREPARE, &prepare(4, "SELECT a FROM t", None));
    flow.response(1, ERROR, &[0, 0, 0x22, 0, 0, 2, b'i', b'd']);
    assert_eq!(flow.ask(EXECUTE, &execute(b"id")), "execute - -");
    flow.request(1, QUERY, &query(4, "SELECT a FROM t", None));
    flow.response(1, RESULT, &prepared(b"id"));
    assert_eq!(
        flow.ask(EXECUTE, &execute(b"id")),
        "execute - -",
        "only a PREPARE prepares"
    );
}

#[test]
fn flags_put_things_in_front_of_bodies() {
    let payload = [&[0, 1][..], &string("key"), &[0, 0, 0, 2, 1, 2]].concat();
    let warnings = [&[0, 2][..], &string("careful"), &string("again")].concat();
    let mut flow = Flow::started(4);
    let text = query(4, "USE ks", None);
    // Requests: the tracing flag adds nothing, a custom payload comes first.
    flow.requests(&frame(4, 0x06, 1, QUERY, &[&payload[..], &text].concat()));
    let body = [&[9; 16][..], &warnings, &payload, &set_keyspace("ks")].concat();
    flow.responses(&frame(0x84, 0x0E, 1, RESULT, &body));
    assert_eq!(flow.decoder.keyspace(), Some("ks"));
    assert_eq!(flow.recorder.statements(), ["use ks -"]);
    assert_eq!(flow.recorder.anomalies(), []);
}

#[test]
fn v5_turns_to_segments_within_a_chunk() {
    let mut flow = Flow::new(5);
    flow.requests(&startup(5, &[]));
    let event = segment(true, &frame(0x85, 0, -1, EVENT, b"event"));
    flow.responses(&[frame(0x85, 0, 0, AUTHENTICATE, &string("a")), event].concat());
    flow.version = 5;
    flow.request(0, 0x0F, b"token");
    flow.response(0, 0x10, b"");
    assert_eq!(
        flow.recorder.statements(),
        ["startup - -", "auth_response - -"]
    );
    assert_eq!(flow.recorder.anomalies(), []);
}

#[test]
fn a_frame_of_256_mib_streams_through() {
    let mut flow = Flow::started(4);
    let mut header = frame(4, 0, 1, QUERY, &[]);
    header[5..].copy_from_slice(&(256_i32 << 20).to_be_bytes());
    flow.requests(&header);
    let text = "INSERT INTO ks.t (a) VALUES ('";
    flow.requests(&[&(200_i32 << 20).to_be_bytes()[..], text.as_bytes()].concat());
    let mut left = (256 << 20) - 4 - text.len();
    let piece = vec![b'x'; 1 << 20];
    while left > 0 {
        let len = left.min(piece.len());
        flow.requests(&piece[..len]);
        left -= len;
    }
    flow.decoder.requests_end(&mut flow.recorder);
    flow.response(1, RESULT, &[0, 0, 0, 1]);
    let bytes = (256 << 20) + 9;
    assert_eq!(
        flow.recorder.told,
        [Told::Completed(1, "insert ks t".into(), None, bytes, 13)]
    );
}

/// Parameters in every combination, written by cassandra-protocol.
fn parameters() -> impl Strategy<Value = QueryParams> {
    let values = prop_oneof![
        Just(None),
        Just(Some(QueryValues::SimpleValues(vec![
            1_i32.into(),
            "x".into()
        ]))),
        Just(Some(QueryValues::NamedValues(
            [("n".into(), 7_i64.into())].into()
        ))),
    ];
    let optional = (any::<[bool; 6]>(), values);
    optional.prop_map(
        |([page, state, serial, timestamp, keyspace, now], values)| QueryParams {
            consistency: Consistency::Quorum,
            with_names: matches!(values, Some(QueryValues::NamedValues(_))),
            values,
            page_size: page.then_some(100),
            paging_state: state.then(|| CBytes::new(vec![1, 2, 3])),
            serial_consistency: serial.then_some(Consistency::LocalSerial),
            timestamp: timestamp.then_some(5),
            keyspace: keyspace.then(|| "own".into()),
            now_in_seconds: now.then_some(1),
        },
    )
}

proptest! {
    #[test]
    fn reads_what_cassandra_protocol_writes(parameters in parameters(), prepared_child: bool) {
        let mut flow = Flow::started(5);
        flow.use_keyspace("ks");
        let keyspace = parameters.keyspace.clone();
        let name = keyspace.as_deref().unwrap_or("ks");

        let text = "SELECT a FROM t".to_string();
        let body = BodyReqPrepare::new(text.clone(), keyspace.clone());
        flow.request(1, PREPARE, &body.serialize_to_vec(Version::V5));
        flow.response(1, RESULT, &prepared(b"id"));

        let id = CBytesShort::new(b"id".to_vec());
        let metadata = Some(CBytesShort::new(b"metadata".to_vec()));
        let body = BodyReqExecuteOwned::new(id.clone(), metadata, parameters.clone());
        let told = flow.ask(EXECUTE, &body.serialize_to_vec(Version::V5));
        prop_assert_eq!(told, format!("select {name} t"));

        let body = BodyReqQuery { query: text.clone(), query_params: parameters.clone() };
        let told = flow.ask(QUERY, &body.serialize_to_vec(Version::V5));
        prop_assert_eq!(told, format!("select {name} t"));

        let values = QueryValues::SimpleValues(vec![1_i32.into(), "x".into()]);
        let subject = |prepared| match prepared {
            true => BatchQuerySubj::PreparedId(id.clone()),
            false => BatchQuerySubj::QueryString("UPDATE t SET a = ?".into()),
        };
        let child = |prepared| BatchQuery::new(subject(prepared), values.clone());
        let body = BodyReqBatch::new(
            BatchType::Logged,
            vec![child(prepared_child), child(true), child(false)],
            Consistency::One,
            parameters.serial_consistency,
            parameters.timestamp,
            keyspace.clone(),
            parameters.now_in_seconds,
        );
        let told = flow.ask(BATCH, &body.serialize_to_vec(Version::V5));
        prop_assert_eq!(told, format!("batch {name} t"));
        prop_assert_eq!(flow.recorder.anomalies(), []);
    }
}
