//! Details of requests and results that cassandra-protocol has written, and of garbage.

use cassandra_protocol::consistency::Consistency as Level;
use cassandra_protocol::frame::Serialize;
use cassandra_protocol::frame::message_batch::{
    BatchQuery, BatchQuerySubj, BatchType, BodyReqBatch,
};
use cassandra_protocol::frame::message_execute::BodyReqExecuteOwned;
use cassandra_protocol::frame::message_query::BodyReqQuery;
use cassandra_protocol::query::{QueryParams, QueryValues};
use cassandra_protocol::types::{CBytes, CBytesShort};
use cql::{Anomaly, Answered, Consistency, Fact, Parameters};
use proptest::prelude::*;

use super::flow::Flow;
use super::rows::{rows_body, version};
use crate::support::*;

/// Parameters in every combination, written by cassandra-protocol, and how many values.
fn parameters() -> impl Strategy<Value = (QueryParams, u32)> {
    let values = prop_oneof![
        Just((None, 0)),
        (0..5_u32).prop_map(|n| {
            let values = (0..n)
                .map(|n| "x".repeat(n as usize * 100).into())
                .collect();
            (Some(QueryValues::SimpleValues(values)), n)
        }),
        (1..4_u32).prop_map(|n| {
            let values = (0..n).map(|n| (format!("n{n}"), 7_i64.into())).collect();
            (Some(QueryValues::NamedValues(values)), n)
        }),
    ];
    let optional = (any::<[bool; 6]>(), values);
    optional.prop_map(
        |([page, state, serial, timestamp, keyspace, now], (values, bound))| {
            let parameters = QueryParams {
                consistency: Level::LocalQuorum,
                with_names: matches!(values, Some(QueryValues::NamedValues(_))),
                values,
                page_size: page.then_some(100),
                paging_state: state.then(|| CBytes::new(vec![1, 2, 3])),
                serial_consistency: serial.then_some(Level::LocalSerial),
                timestamp: timestamp.then_some(5),
                keyspace: keyspace.then(|| "own".into()),
                now_in_seconds: now.then_some(1),
            };
            (parameters, bound)
        },
    )
}

/// `Fact::Is` if there is one.
fn fact<T>(value: Option<T>) -> Fact<T> {
    value.map_or(Fact::Absent, Fact::Is)
}

fn expected(params: &QueryParams, values: u32) -> Parameters {
    Parameters {
        consistency: Consistency(6),
        serial_consistency: fact(params.serial_consistency.map(|_| Consistency(9))),
        statements: 1,
        values,
        page_size: fact(params.page_size),
        paging_state: params.paging_state.is_some(),
    }
}

proptest! {
    #[test]
    fn parameters_are_read_as_cassandra_protocol_writes_them(
        (mut params, values) in parameters(),
        number in 3..6_u8,
        piece in prop_oneof![Just(usize::MAX), 1..200_usize],
        prepared_child: bool,
    ) {
        if number < 5 {
            params.keyspace = None;
            params.now_in_seconds = None;
        }
        let version = version(number);
        let mut flow = Flow::started(number);
        flow.piece = piece;
        let expected = expected(&params, values);

        let text = "SELECT a FROM t".to_string();
        let body = BodyReqQuery { query: text, query_params: params.clone() };
        let body = body.serialize_to_vec(version);
        let asked = flow.ask(QUERY, &body);
        prop_assert_eq!(asked.body_bytes as usize, body.len());
        prop_assert_eq!(asked.parameters.as_ref(), Some(&expected));

        let id = CBytesShort::new(b"id".to_vec());
        let metadata = (number >= 5).then(|| CBytesShort::new(b"metadata".to_vec()));
        let body = BodyReqExecuteOwned::new(id.clone(), metadata, params.clone());
        let asked = flow.ask(EXECUTE, &body.serialize_to_vec(version));
        prop_assert_eq!(asked.parameters.as_ref(), Some(&expected));

        let bound = QueryValues::SimpleValues(vec![1_i32.into(), "x".into()]);
        let subject = |prepared| match prepared {
            true => BatchQuerySubj::PreparedId(id.clone()),
            false => BatchQuerySubj::QueryString("UPDATE t SET a = ?".into()),
        };
        let child = |prepared| BatchQuery::new(subject(prepared), bound.clone());
        let body = BodyReqBatch::new(
            BatchType::Logged,
            vec![child(prepared_child), child(true), child(false)],
            Level::Any,
            params.serial_consistency,
            params.timestamp,
            params.keyspace.clone(),
            params.now_in_seconds,
        );
        let asked = flow.ask(BATCH, &body.serialize_to_vec(version));
        prop_assert_eq!(asked.parameters, Some(Parameters {
            consistency: Consistency(0),
            statements: 3,
            values: 6,
            page_size: Fact::Absent,
            paging_state: false,
            ..expected
        }));
        prop_assert!(flow.sink.anomalies.iter().all(|a| *a == Anomaly::UnknownPreparedId));
    }

    #[test]
    fn rows_are_counted(
        number in 3..6_u8,
        piece in prop_oneof![Just(usize::MAX), 1..200_usize],
        rows in 0..5_i32,
        metadata in prop_oneof![Just(true), Just(false)],
        global: bool,
        more: bool,
        changed: bool,
    ) {
        let body = rows_body(version(number), rows, metadata, global, more, changed && number == 5);
        let mut flow = Flow::started(number);
        flow.piece = piece;
        let answered = flow.answer(0, RESULT, &body);
        prop_assert_eq!(answered, Answered {
            body_bytes: body.len() as u32,
            tracing_id: None,
            warnings: Some(0),
            rows: Some(rows as u32),
            more_pages: more,
            accepts: false,
        });
    }

    /// Garbage tells no more than it is, and the same at any cut.
    #[test]
    fn survives_garbage_bodies(
        number in 3..6_u8,
        frames in prop::collection::vec(
            (any::<bool>(), 0..4_i16, 0..17_u8, 0..32_u8, any::<Vec<u8>>()), 1..30,
        ),
        piece in 1..50_usize,
    ) {
        let tell = |piece: usize| {
            let mut flow = Flow::started(number);
            flow.piece = piece;
            for (is_request, stream, opcode, flags, body) in &frames {
                match is_request {
                    true => flow.request(*flags, *stream, *opcode, body),
                    false => flow.response(*flags, *stream, *opcode, body),
                }
            }
            flow.sink
        };
        prop_assert_eq!(tell(piece), tell(usize::MAX));
    }
}

/// Beyond the part of a body that is read, some is known and some is not.
#[test]
fn behind_large_values() {
    for number in [4, 5] {
        let mut flow = Flow::started(number);
        let params = QueryParams {
            consistency: Level::LocalQuorum,
            values: Some(QueryValues::SimpleValues(vec!["x".repeat(200_000).into()])),
            page_size: Some(100),
            serial_consistency: Some(Level::LocalSerial),
            ..QueryParams::default()
        };
        let id = CBytesShort::new(b"id".to_vec());
        let metadata = (number >= 5).then(|| CBytesShort::new(b"metadata".to_vec()));
        let body = BodyReqExecuteOwned::new(id, metadata, params.clone());
        let asked = flow.ask(EXECUTE, &body.serialize_to_vec(version(number)));
        let expected = Parameters {
            serial_consistency: Fact::Open,
            page_size: Fact::Open,
            ..expected(&params, 1)
        };
        assert_eq!(asked.parameters, Some(expected));
    }
}
