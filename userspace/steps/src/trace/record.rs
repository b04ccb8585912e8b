//! The record that a flow's thread hands to the collector's thread, and the span that is made of
//! it.

use std::time::{SystemTime, UNIX_EPOCH};

use cql::{Completed, Consistency, Details, ErrorCode, Fact};
use prost::Message as _;

use super::{
    otlp::{CLIENT, KeyValue, Span, Status},
    sampling::Identity,
};
use crate::{
    Refusal,
    fields::{Fields, put_text},
    tracing_id::uuid,
};

/// A traced request, and its outcome.
pub(super) struct Record<'r> {
    pub(super) identity: Identity,
    pub(super) completed: &'r Completed<'r>,
    pub(super) details: &'r Details,
    /// Whether there was an answer.
    pub(super) is_answered: bool,
    pub(super) by: Option<Refusal>,
    /// The flow's identity, encoded, as is the statement in `what`.
    pub(super) who: &'r [u8],
    pub(super) what: &'r [u8],
}

/// The number that stands for an absent value.
const NONE: u32 = u32::MAX;

/// The number that stands for an ERROR whose code could not be read, or is not a possible one.
const UNREADABLE: u32 = u32::MAX - 1;

/// The flags of a record.
const ANSWERED: u8 = 1;
const HAS_PARENT: u8 = 2;
const TRACED_THERE: u8 = 4;

impl Record<'_> {
    /// Appends the record's bytes. The span ends now.
    pub(super) fn put(&self, to: &mut Vec<u8>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let end_ns = now.unwrap_or_default().as_nanos() as u64;
        let (asked, answered) = (&self.details.asked, &self.details.answered);
        to.extend(
            end_ns
                .saturating_sub(self.completed.latency_ns)
                .to_le_bytes(),
        );
        to.extend(end_ns.to_le_bytes());
        let is = |flag, is| if is { flag } else { 0 };
        to.push(
            is(ANSWERED, self.is_answered)
                | is(HAS_PARENT, self.identity.parent_id.is_some())
                | is(TRACED_THERE, answered.tracing_id.is_some()),
        );
        to.extend(self.identity.trace_id);
        to.extend(self.identity.span_id);
        to.extend(self.identity.parent_id.into_iter().flatten());
        to.extend(answered.tracing_id.unwrap_or_default());
        let error = match self.completed.error {
            None => NONE,
            Some(ErrorCode::Unreadable) => UNREADABLE,
            Some(ErrorCode::Code(code)) => code.cast_unsigned().min(UNREADABLE),
        };
        let parameters = asked.parameters.as_ref();
        let page_size = parameters.and_then(|p| match p.page_size {
            Fact::Is(size) => u32::try_from(size).ok(),
            _ => None,
        });
        for number in [
            self.identity.flags,
            error,
            parameters.map_or(NONE, |p| p.consistency.0.into()),
            page_size.unwrap_or(NONE),
            // By the conventions a single statement is no batch.
            parameters.map_or(1, |p| p.statements.into()),
            answered.rows.unwrap_or(NONE),
        ] {
            to.extend(number.to_le_bytes());
        }
        let state = self.details.trace_state.as_ref();
        let state = state.and_then(|state| state.as_deref().ok());
        put_text(to, state.unwrap_or_default().as_bytes());
        put_text(to, self.by.map_or("", |by| by.step).as_bytes());
        put_text(to, self.who);
        put_text(to, self.what);
    }
}

/// Makes an encoded span of a record. None: the record is malformed.
pub(super) fn span(record: &[u8]) -> Option<Vec<u8>> {
    let mut from = Fields(record);
    let (start_time_unix_nano, end_time_unix_nano) = (from.long()?, from.long()?);
    let &[has] = from.take(1)? else {
        return None;
    };
    let has = |flag| has & flag != 0;
    let (trace_id, span_id) = (from.take(16)?, from.take(8)?);
    let parent = from.take(if has(HAS_PARENT) { 8 } else { 0 })?;
    let tracing_id: [u8; 16] = from.take(16)?.try_into().ok()?;
    let (flags, error) = (from.number()?, from.number()?);
    let (level, page_size) = (from.number()?, from.number()?);
    let (statements, rows) = (from.number()?, from.number()?);
    let trace_state = std::str::from_utf8(from.text()?).ok()?;
    let (by, who, what) = (from.text()?, from.text()?, from.text()?);

    let mut attributes = Vec::new();
    let mut text = |key, value: &str| attributes.push(KeyValue::text(key, value));
    if level != NONE {
        text(
            "cassandra.consistency.level",
            Consistency(level as u16).as_str(),
        );
    }
    if !by.is_empty() {
        text("underpass.answered_by", std::str::from_utf8(by).ok()?);
    }
    if has(TRACED_THERE) {
        text("underpass.tracing_id", &uuid(tracing_id));
    }
    let mut status = None;
    if error != NONE {
        let (code, name) = match error {
            UNREADABLE => (None, ErrorCode::Unreadable.as_str()),
            error => (
                Some(format!("0x{error:04x}")),
                ErrorCode::Code(error.cast_signed()).as_str(),
            ),
        };
        status = Some(Status::error(name));
        text("error.type", code.as_deref().unwrap_or(name));
        if let Some(code) = &code {
            text("db.response.status_code", code);
        }
    } else if !has(ANSWERED) {
        status = Some(Status::error("the flow ended before an answer"));
        text("error.type", "unanswered");
    }
    for (key, value) in [
        ("cassandra.page.size", page_size),
        ("db.response.returned_rows", rows),
        (
            "db.operation.batch.size",
            if statements == 1 { NONE } else { statements },
        ),
    ] {
        if value != NONE {
            attributes.push(KeyValue::number(key, value.into()));
        }
    }
    let span = Span {
        trace_id: trace_id.to_vec(),
        span_id: span_id.to_vec(),
        parent_span_id: parent.to_vec(),
        trace_state: trace_state.to_owned(),
        kind: CLIENT,
        start_time_unix_nano,
        end_time_unix_nano,
        attributes,
        status,
        flags,
        ..Span::default()
    };
    let mut encoded = span.encode_to_vec();
    encoded.extend_from_slice(who);
    encoded.extend_from_slice(what);
    Some(encoded)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cql::{Statement, StatementKind, StreamId};

    use super::*;

    fn bytes(error: Option<ErrorCode>, is_answered: bool) -> Vec<u8> {
        let statement = Arc::new(Statement {
            kind: StatementKind::Select,
            keyspace: None,
            table: Some("t".into()),
        });
        let completed = Completed {
            statement: &statement,
            latency_ns: 1_234,
            error,
            request_bytes: 0,
            response_bytes: 0,
            stream: StreamId(1),
        };
        let mut details = Details::default();
        details.answered.tracing_id = Some([0x11; 16]);
        details.trace_state = Some(Ok("a=b,c=d".into()));
        let mut bytes = Vec::new();
        Record {
            identity: Identity {
                trace_id: [1; 16],
                span_id: [2; 8],
                parent_id: Some([3; 8]),
                flags: 0x301,
            },
            completed: &completed,
            details: &details,
            is_answered,
            by: None,
            who: &Span {
                attributes: vec![KeyValue::text("who", "x")],
                ..Span::default()
            }
            .encode_to_vec(),
            what: &crate::trace::parts::what(&statement, None),
        }
        .put(&mut bytes);
        bytes
    }

    #[test]
    fn a_record_is_a_span() {
        let bytes = bytes(None, true);
        let span = Span::decode(&*span(&bytes).unwrap()).unwrap();
        assert_eq!(span.trace_id, [1; 16]);
        assert_eq!(span.span_id, [2; 8]);
        assert_eq!(span.parent_span_id, [3; 8]);
        assert_eq!(span.trace_state, "a=b,c=d");
        assert_eq!((&*span.name, span.kind, span.flags), ("SELECT t", 3, 0x301));
        let took = span.end_time_unix_nano - span.start_time_unix_nano;
        assert_eq!(took, 1_234);
        assert_eq!(span.status, None);
        let expected = [
            KeyValue::text(
                "underpass.tracing_id",
                "11111111-1111-1111-1111-111111111111",
            ),
            KeyValue::text("who", "x"),
            KeyValue::text("db.operation.name", "SELECT"),
        ];
        for attribute in expected {
            assert!(span.attributes.contains(&attribute), "{span:?}");
        }
    }

    #[test]
    fn what_fails_says_so() {
        for (error, is_answered, kind, message) in [
            (
                Some(ErrorCode::Code(0x1100)),
                true,
                "0x1100",
                "write_timeout",
            ),
            (Some(ErrorCode::Code(10)), true, "0x000a", "protocol_error"),
            (
                Some(ErrorCode::Unreadable),
                true,
                "unreadable",
                "unreadable",
            ),
            (None, false, "unanswered", "the flow ended before an answer"),
        ] {
            let bytes = bytes(error, is_answered);
            let span = Span::decode(&*span(&bytes).unwrap()).unwrap();
            assert_eq!(span.status, Some(Status::error(message)));
            let kind = KeyValue::text("error.type", kind);
            assert!(span.attributes.contains(&kind), "{span:?}");
        }
    }

    #[test]
    fn what_is_cut_short_is_none() {
        let bytes = bytes(None, true);
        for end in 0..bytes.len() {
            assert_eq!(span(&bytes[..end]), None);
        }
    }
}
