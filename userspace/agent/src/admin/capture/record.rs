//! [`record`]: the line of a request.

use std::time::{Duration, Instant};

use ::capture::{Asked, Op, Outcome, Record, Request, Statement, Unread, Value, masked};
use cql::{ErrorCode, Opcode, PreparedAt};
use steps::{What, capture::Captured};

/// The line of a request.
pub(super) fn record(
    captured: &Captured,
    began: Instant,
    prepared: &PreparedAt,
    values: bool,
) -> Record {
    let passed = captured.done.checked_sub(captured.latency);
    let at = passed.map_or(Duration::ZERO, |at| at.saturating_duration_since(began));
    let text = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
    let (outcome, error_code) = match (captured.what, captured.error) {
        (What::Refused(_), _) => (Outcome::Refused, None),
        (What::Unanswered, _) => (Outcome::Unanswered, None),
        (What::Answered, Some(ErrorCode::Code(code))) => (Outcome::Error, Some(code)),
        (What::Answered, Some(ErrorCode::Unreadable)) => (Outcome::Error, None),
        (What::Answered, None) => (Outcome::Ok, None),
    };
    let mut record = Record {
        at_us: at.as_micros() as u64,
        flow: captured.flow,
        stream: captured.stream.0,
        op: None,
        kind: captured.statement.kind.as_str().to_owned(),
        keyspace: text(&captured.statement.keyspace),
        table: text(&captured.statement.table),
        unread: None,
        statements: Vec::new(),
        names: Vec::new(),
        batch: None,
        consistency: None,
        serial_consistency: None,
        page_size: None,
        later_page: false,
        timestamp_us: None,
        outcome,
        error_code,
        error: captured.error.map(|error| error.as_str().to_owned()),
        rows: captured.rows,
        more_pages: captured.more_pages,
        latency_us: captured.latency.as_micros() as u64,
        request_bytes: captured.bytes[0],
        response_bytes: captured.bytes[1],
    };
    let Some(whole) = captured.whole.as_deref() else {
        record.unread = Some(Unread::NotKept);
        return record;
    };
    record.op = match whole.header.opcode {
        Some(Opcode::Query) => Some(Op::Query),
        Some(Opcode::Prepare) => Some(Op::Prepare),
        Some(Opcode::Execute) => Some(Op::Execute),
        Some(Opcode::Batch) => Some(Op::Batch),
        _ => None,
    };
    let Some(request) = Request::read(whole) else {
        record.unread = Some(Unread::Malformed);
        return record;
    };
    let level = |level: cql::Consistency| level.as_str().to_owned();
    record.names = request.names.iter().map(|&name| name.to_owned()).collect();
    record.batch = request.batch;
    record.consistency = request.consistency.map(level);
    record.serial_consistency = request.serial_consistency.map(level);
    record.page_size = request.page_size;
    record.later_page = request.later_page;
    record.timestamp_us = request.timestamp_us;
    if let Some(keyspace) = request.keyspace {
        record.keyspace.get_or_insert_with(|| keyspace.to_owned());
    }
    let statements = request.statements.into_iter();
    record.statements = statements
        .map(|(asked, bound)| statement(asked, bound, prepared, values))
        .collect();
    record
}

/// A statement as it is told, with its values or without.
fn statement(
    asked: Asked<'_>,
    bound: Vec<Value>,
    prepared: &PreparedAt,
    values: bool,
) -> Statement {
    let text = match asked {
        Asked::Text(text) => Ok(text.into()),
        Asked::Prepared(id) => prepared.text(id).ok_or(Unread::Unprepared),
    };
    let text = text.and_then(|text| match values {
        // Not masked either: a mask says how long it is.
        _ if !steps::may_be_shown(&text) => Err(Unread::Secret),
        true => Ok(text.to_string()),
        false => masked(&text).ok_or(Unread::NotUnderstood),
    });
    // Which values are bound to a text that is not shown, nobody knows.
    let shows_values = values && text.is_ok();
    Statement {
        unread: text.as_ref().err().copied(),
        text: text.ok(),
        values: match shows_values {
            true => bound,
            false => bound.iter().map(Value::masked).collect(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_value_is_in_what_is_told_without_values() {
        let prepared = PreparedAt::default();
        prepared.learn(b"id", Some("ks"), b"SELECT a FROM t WHERE k = ? AND n = 77");
        let bound = || vec![Value::Bytes(b"secret".into()), Value::Null];
        let told = |asked, values| statement(asked, bound(), &prepared, values);
        let masked = told(Asked::Prepared(b"id"), false);
        assert_eq!(
            masked.text.as_deref(),
            Some("SELECT a FROM t WHERE k = ? AND n = 11")
        );
        assert_eq!(masked.values, [Value::Length(6), Value::Null]);
        let shown = told(Asked::Prepared(b"id"), true);
        assert_eq!(
            shown.text.as_deref(),
            Some("SELECT a FROM t WHERE k = ? AND n = 77")
        );
        assert_eq!(shown.values, bound());
        let role = "CREATE ROLE r WITH PASSWORD = 'p'";
        let typo = "ALTER USER u WITH PASWORD hunter2";
        for (asked, values, unread) in [
            (Asked::Prepared(b"other"), true, Unread::Unprepared),
            (Asked::Text("no statement"), false, Unread::NotUnderstood),
            (Asked::Text(role), true, Unread::Secret),
            (Asked::Text(role), false, Unread::Secret),
            (Asked::Text(typo), false, Unread::Secret),
        ] {
            let told = told(asked, values);
            assert_eq!((told.text, told.unread), (None, Some(unread)));
            assert_eq!(told.values, masked.values);
        }
    }
}
