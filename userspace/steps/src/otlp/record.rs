//! The record that a flow's thread hands to the collector's thread, and the span or log record that is made of
//! it.

use std::time::{SystemTime, UNIX_EPOCH};

use cql::{Completed, Consistency, Details, ErrorCode, Fact};
use prost::Message as _;

use super::messages::{CLIENT, KeyValue, LogRecord, Span, Status};
use crate::{
    Refusal,
    fields::{Fields, put_text},
    tracing_id::uuid,
};

/// The kinds of telemetry that are made of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A span of `trace`.
    Span = 0,
    /// A log record of `audit`.
    Audit = 1,
    /// A log record of `slowlog`.
    Slow = 2,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        let all = [Self::Span, Self::Audit, Self::Slow];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Returns the name of the event that a log record tells of. A span has none.
    fn event(self) -> &'static str {
        match self {
            Self::Span => "",
            Self::Audit => "underpass.audit",
            Self::Slow => "underpass.slow_statement",
        }
    }
}

/// The ids of a span, or of the span that a log record belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// All zeros: there is no trace.
    pub(crate) trace_id: [u8; 16],
    pub(crate) span_id: [u8; 8],
    /// The parent. None: the span begins a trace.
    pub(crate) parent_id: Option<[u8; 8]>,
    /// OTLP's flags: those of the trace context, and what is known of the parent.
    pub(crate) flags: u32,
}

/// A request, and its outcome.
pub(super) struct Record<'r> {
    pub(super) kind: Kind,
    pub(super) identity: Identity,
    pub(super) completed: &'r Completed<'r>,
    pub(super) details: &'r Details,
    /// Whether there was an answer.
    pub(super) is_answered: bool,
    pub(super) by: Option<Refusal>,
    /// The statement's text, where it may be shown.
    pub(super) statement: &'r str,
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

/// Severities of OpenTelemetry's: of what is as it should be, and of what somebody may want to look at.
const INFO: (i32, &str) = (9, "INFO");
const WARN: (i32, &str) = (13, "WARN");

impl Record<'_> {
    /// Appends the record's bytes. The request ends now.
    pub(super) fn put(&self, to: &mut Vec<u8>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let end_ns = now.unwrap_or_default().as_nanos() as u64;
        let (asked, answered) = (&self.details.asked, &self.details.answered);
        to.push(self.kind as u8);
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
        if self.kind != Kind::Span {
            self.put_more(to);
        }
    }

    /// Appends what only log records say.
    fn put_more(&self, to: &mut Vec<u8>) {
        let values = self.details.asked.parameters.as_ref().map(|p| p.values);
        let warnings = self.details.answered.warnings.unwrap_or(0);
        to.extend(self.completed.request_bytes.to_le_bytes());
        to.extend(self.completed.response_bytes.to_le_bytes());
        to.extend(values.unwrap_or(NONE).to_le_bytes());
        to.extend(u32::from(warnings).to_le_bytes());
        put_text(to, self.by.map_or("", |by| by.reason).as_bytes());
        put_text(to, self.statement.as_bytes());
    }
}

/// Makes an encoded span or log record of a record. None: the record is malformed.
pub(super) fn encoded(record: &[u8]) -> Option<Vec<u8>> {
    let mut from = Fields(record);
    let &[kind] = from.take(1)? else {
        return None;
    };
    let kind = Kind::of(kind)?;
    let read = Read::from(&mut from)?;
    let mut encoded = match kind {
        Kind::Span => span(&read),
        _ => log_record(kind, &read, &More::from(&mut from)?),
    };
    encoded.extend_from_slice(read.who);
    encoded.extend_from_slice(read.what);
    Some(encoded)
}

/// A record that was read again.
struct Read<'r> {
    start_ns: u64,
    end_ns: u64,
    trace_id: &'r [u8],
    span_id: &'r [u8],
    parent: &'r [u8],
    flags: u32,
    trace_state: &'r str,
    /// How the request failed, if it did.
    failed: Option<Failed>,
    by: &'r str,
    attributes: Vec<KeyValue>,
    who: &'r [u8],
    what: &'r [u8],
}

/// The way in which a request failed.
struct Failed {
    /// The error's name.
    name: &'static str,
    is_answered: bool,
}

impl<'r> Read<'r> {
    fn from(from: &mut Fields<'r>) -> Option<Self> {
        let (start_ns, end_ns) = (from.long()?, from.long()?);
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
        let by = std::str::from_utf8(from.text()?).ok()?;
        let (who, what) = (from.text()?, from.text()?);

        let mut attributes = Vec::new();
        let mut text = |key: &str, value: &str| attributes.push(KeyValue::text(key, value));
        if level != NONE {
            text(
                "cassandra.consistency.level",
                Consistency(level as u16).as_str(),
            );
        }
        if !by.is_empty() {
            text("underpass.answered_by", by);
        }
        if has(TRACED_THERE) {
            text("underpass.tracing_id", &uuid(tracing_id));
        }
        let failed = failed(error, has(ANSWERED), &mut text);
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
        Some(Self {
            start_ns,
            end_ns,
            trace_id,
            span_id,
            parent,
            flags,
            trace_state,
            failed,
            by,
            attributes,
            who,
            what,
        })
    }
}

/// Says how a request failed, if it did, and adds the attributes for it.
fn failed(error: u32, is_answered: bool, text: &mut impl FnMut(&str, &str)) -> Option<Failed> {
    if error != NONE {
        let (code, name) = match error {
            UNREADABLE => (None, ErrorCode::Unreadable.as_str()),
            error => (
                Some(format!("0x{error:04x}")),
                ErrorCode::Code(error.cast_signed()).as_str(),
            ),
        };
        text("error.type", code.as_deref().unwrap_or(name));
        if let Some(code) = &code {
            text("db.response.status_code", code);
        }
        return Some(Failed {
            name,
            is_answered: true,
        });
    }
    if is_answered {
        return None;
    }
    text("error.type", "unanswered");
    Some(Failed {
        name: "the flow ended before an answer",
        is_answered: false,
    })
}

fn span(read: &Read<'_>) -> Vec<u8> {
    let span = Span {
        trace_id: read.trace_id.to_vec(),
        span_id: read.span_id.to_vec(),
        parent_span_id: read.parent.to_vec(),
        trace_state: read.trace_state.to_owned(),
        kind: CLIENT,
        start_time_unix_nano: read.start_ns,
        end_time_unix_nano: read.end_ns,
        attributes: read.attributes.clone(),
        status: read
            .failed
            .as_ref()
            .map(|failed| Status::error(failed.name)),
        flags: read.flags,
        ..Span::default()
    };
    span.encode_to_vec()
}

/// The parts that a log record has and a span has not.
struct More<'r> {
    bytes_to_database: u64,
    bytes_to_client: u64,
    values: u32,
    warnings: u32,
    reason: &'r str,
    statement: &'r str,
}

impl<'r> More<'r> {
    fn from(from: &mut Fields<'r>) -> Option<Self> {
        Some(Self {
            bytes_to_database: from.long()?,
            bytes_to_client: from.long()?,
            values: from.number()?,
            warnings: from.number()?,
            reason: std::str::from_utf8(from.text()?).ok()?,
            statement: std::str::from_utf8(from.text()?).ok()?,
        })
    }
}

fn log_record(kind: Kind, read: &Read<'_>, more: &More<'_>) -> Vec<u8> {
    let outcome = match &read.failed {
        _ if !read.by.is_empty() => "refused",
        None => "ok",
        Some(failed) if failed.is_answered => "error",
        Some(_) => "unanswered",
    };
    let mut attributes = read.attributes.clone();
    attributes.push(KeyValue::text("underpass.outcome", outcome));
    for (key, value) in [
        (
            "underpass.error",
            read.failed.as_ref().map_or("", |failed| failed.name),
        ),
        ("underpass.reason", more.reason),
        ("underpass.statement", more.statement),
    ] {
        if !value.is_empty() {
            attributes.push(KeyValue::text(key, value));
        }
    }
    let latency_us = read.end_ns.saturating_sub(read.start_ns) / 1_000;
    let some = |number: u32| (number != NONE).then_some(u64::from(number));
    for (key, value) in [
        ("underpass.latency_us", Some(latency_us)),
        ("underpass.bytes_to_database", Some(more.bytes_to_database)),
        ("underpass.bytes_to_client", Some(more.bytes_to_client)),
        ("underpass.values", some(more.values)),
        ("underpass.warnings", some(more.warnings).filter(|n| *n > 0)),
    ] {
        if let Some(value) = value {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            attributes.push(KeyValue::number(key, value));
        }
    }
    let severity = match (kind, outcome) {
        (Kind::Audit, "ok") => INFO,
        _ => WARN,
    };
    // A trace of zeros is none.
    let is_traced = read.trace_id.iter().any(|byte| *byte != 0);
    let id = |id: &[u8]| if is_traced { id.to_vec() } else { Vec::new() };
    let record = LogRecord {
        time_unix_nano: read.end_ns,
        observed_time_unix_nano: read.end_ns,
        severity_number: severity.0,
        severity_text: severity.1.to_owned(),
        attributes,
        flags: read.flags,
        trace_id: id(read.trace_id),
        span_id: id(read.span_id),
        event_name: kind.event().to_owned(),
        ..LogRecord::default()
    };
    record.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cql::{Statement, StatementKind, StreamId};

    use super::{
        super::{messages::AnyValue, parts},
        *,
    };

    fn bytes(kind: Kind, error: Option<ErrorCode>, is_answered: bool) -> Vec<u8> {
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
            kind,
            statement: "",
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
            who: &parts::encoded(kind, None, vec![KeyValue::text("who", "x")]),
            what: &parts::what(kind, &statement, None),
        }
        .put(&mut bytes);
        bytes
    }

    #[test]
    fn a_record_is_a_span() {
        let bytes = bytes(Kind::Span, None, true);
        let span = Span::decode(&*encoded(&bytes).unwrap()).unwrap();
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
    fn a_record_is_a_log_record() {
        let write_timeout = Some(ErrorCode::Code(0x1100));
        for (kind, error, is_answered, severity, outcome) in [
            (Kind::Audit, None, true, "INFO", "ok"),
            (Kind::Audit, write_timeout, true, "WARN", "error"),
            (Kind::Audit, None, false, "WARN", "unanswered"),
            (Kind::Slow, None, true, "WARN", "ok"),
        ] {
            let bytes = bytes(kind, error, is_answered);
            let log = LogRecord::decode(&*encoded(&bytes).unwrap()).unwrap();
            assert_eq!(
                (&*log.severity_text, &*log.event_name),
                (severity, kind.event())
            );
            assert_eq!(
                (&log.trace_id[..], &log.span_id[..]),
                (&[1; 16][..], &[2; 8][..])
            );
            assert_eq!(log.body, Some(AnyValue::text("SELECT t")));
            for attribute in [
                KeyValue::text("underpass.outcome", outcome),
                KeyValue::number("underpass.latency_us", 1),
                KeyValue::text("who", "x"),
                KeyValue::text("db.operation.name", "SELECT"),
            ] {
                assert!(log.attributes.contains(&attribute), "{log:?}");
            }
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
            let bytes = bytes(Kind::Span, error, is_answered);
            let span = Span::decode(&*encoded(&bytes).unwrap()).unwrap();
            assert_eq!(span.status, Some(Status::error(message)));
            let kind = KeyValue::text("error.type", kind);
            assert!(span.attributes.contains(&kind), "{span:?}");
        }
    }

    #[test]
    fn what_is_cut_short_is_none() {
        for kind in [Kind::Span, Kind::Audit, Kind::Slow] {
            let bytes = bytes(kind, None, true);
            for end in 0..bytes.len() {
                assert_eq!(encoded(&bytes[..end]), None);
            }
        }
    }
}
