//! Requests with values, and what a flow that is rewritten makes of them.

use cassandra_protocol::frame::message_request::RequestBody;
use cassandra_protocol::query::{QueryParams, QueryValues};
use cassandra_protocol::types::value::Value;

use super::edit::*;
use super::*;

pub const NOW_US: i64 = 1_700_000_000_000_000;

pub fn rewrite(kind: Kind, settings: &str) -> Edits {
    let mut flow = Edits::of(kind, &format!("transform = \"rewrite\"\n{settings}"));
    flow.editor.set_time(NOW_US);
    flow
}

pub fn ttl(seconds: i32) -> Value {
    Value::Some(seconds.to_be_bytes().to_vec())
}

pub fn timestamp(us: i64) -> Value {
    Value::Some(us.to_be_bytes().to_vec())
}

pub fn wire(value: &Value) -> Vec<u8> {
    match value {
        Value::Some(bytes) => [&(bytes.len() as i32).to_be_bytes()[..], bytes].concat(),
        Value::Null => (-1_i32).to_be_bytes().to_vec(),
        Value::NotSet => (-2_i32).to_be_bytes().to_vec(),
    }
}

/// `<n><values>`, by name or not.
pub fn values(values: &[Value], names: Option<&[&str]>) -> Vec<u8> {
    let mut body = (values.len() as u16).to_be_bytes().to_vec();
    for (n, value) in values.iter().enumerate() {
        if let Some(names) = names {
            body.extend(string(names[n]));
        }
        body.extend(wire(value));
    }
    body
}

/// The parameters of a QUERY or EXECUTE at ONE, with 100 rows to a page.
pub fn parameters(
    version: u8,
    bound: &[Value],
    names: Option<&[&str]>,
    timestamp: Option<i64>,
) -> Vec<u8> {
    let names_flag = if names.is_some() { 0x40 } else { 0 };
    let timestamp_flag = if timestamp.is_some() { 0x20 } else { 0 };
    let flags = u32::to_be_bytes(0x01 | 0x04 | names_flag | timestamp_flag);
    let mut body = vec![0, 1];
    body.extend(if version == 5 {
        &flags[..]
    } else {
        &flags[3..]
    });
    body.extend(values(bound, names));
    body.extend(100_i32.to_be_bytes());
    body.extend(timestamp.iter().flat_map(|us| us.to_be_bytes()));
    body
}

pub fn execute_with(version: u8, id: &[u8], parameters: Vec<u8>) -> Vec<u8> {
    let mut body = short_bytes(id);
    if version == 5 {
        body.extend(short_bytes(b"of the metadata"));
    }
    [body, parameters].concat()
}

/// A batch with one statement of two values, at ONE.
pub fn batch_of(
    version: u8,
    child: &Child<'_>,
    bound: &[Value],
    timestamp: Option<i64>,
) -> Vec<u8> {
    let mut body = vec![0, 0, 1];
    match child {
        Child::Text(text) => {
            body.push(0);
            body.extend(long_string(text));
        }
        Child::Id(id) => {
            body.push(1);
            body.extend(short_bytes(id));
        }
    }
    body.extend(values(bound, None));
    body.extend([0, 1]);
    let flags = u32::to_be_bytes(if timestamp.is_some() { 0x20 } else { 0 });
    body.extend(if version == 5 {
        &flags[..]
    } else {
        &flags[3..]
    });
    body.extend(timestamp.iter().flat_map(|us| us.to_be_bytes()));
    body
}

/// The text and the parameters that the database gets.
pub fn queried(flow: &mut Edits, body: &[u8]) -> (String, QueryParams) {
    match flow.changed(QUERY, body) {
        RequestBody::Query(query) => (query.query, query.query_params),
        other => panic!("{other:?}"),
    }
}

pub fn bound(parameters: &QueryParams) -> Vec<Value> {
    match parameters.values.clone() {
        Some(QueryValues::SimpleValues(values)) => values,
        other => panic!("{other:?}"),
    }
}

/// The code and the message of a refusal.
pub fn refusal(flow: &mut Edits, opcode: u8, body: &[u8]) -> (i32, String) {
    let kind = flow.kind;
    // Another one may be out on stream 7.
    flow.frees(8);
    let passed = flow.requests(&kind.sent(0, 8, opcode, body));
    assert_eq!(kind.read(&passed).len(), 0, "{kind:?}");
    let told = kind.read(&flow.editor.answers().expect("an answer"));
    let code = i32::from_be_bytes(told[0][9..13].try_into().unwrap());
    (code, String::from_utf8_lossy(&told[0][15..]).into_owned())
}

/// A statement is prepared; gives the text that the database gets.
pub fn prepares(flow: &mut Edits, text: &str, id: &[u8]) -> String {
    let kind = flow.kind;
    let passed = flow.changed(PREPARE, &prepare(kind.version, text, None));
    let answer = kind.sent(0x80, 7, RESULT, &prepared(id));
    flow.responses(&answer);
    match passed {
        RequestBody::Prepare(prepare) => prepare.query,
        other => panic!("{other:?}"),
    }
}
