//! `/capture`: requests of one flow, or of one rule's flows, for a bounded time. Lines as `underpass_capture` has them, but for
//! the last one, which whoever reads them writes. An empty line now and then shows whether somebody still reads.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use ::capture::{
    Asked, Header, Missed, Op, Outcome, Record, Request, Statement, Unread, VERSION, Value, masked,
};
use axum::{
    Extension,
    body::Body,
    extract::{RawQuery, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use cql::{ErrorCode, Opcode, PreparedAt, PreparedStatements};
use flow::Path;
use hyper::body::{Bytes, Frame};
use policy::{Action, Policy, RuleName, TapDepth};
use steps::{
    What,
    capture::{CaptureOf, Captured, Capturing},
};
use tokio::time::{Interval, Sleep};

use super::{
    guests::{Peer, Stay},
    state::{Admin, aside, failed},
    tail::{decoded, latency, refused, signs_of_life},
};
use crate::{observed, shortcuts};

/// The longest time of a capture.
pub const MAX_CAPTURE_TIME: Duration = Duration::from_secs(3600);

/// Bytes of lines that are handed over together.
const PIECE_BYTES: usize = 64 << 10;

/// The advice for a flow that nobody reads, or not enough of.
const READ_IT: &str = "give the rule `action = \"enrich\"` and a step that reads requests, such as `{ transform = \"stats\" }`: \
                       by copies it is, and its connections stay the application's own";

/// A capture that is asked for.
#[derive(Debug, PartialEq)]
pub(super) struct Wanted {
    flow: Option<String>,
    rule: Option<String>,
    pub(super) time: Duration,
    values: bool,
}

/// Begins to tell.
pub(super) async fn capture(
    State(admin): State<Admin>,
    Extension(stay): Extension<Stay>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
) -> Response {
    let wanted = match wanted(query.as_deref().unwrap_or_default()) {
        Ok(wanted) => wanted,
        Err(error) => return refused(StatusCode::BAD_REQUEST, &error),
    };
    let uid = match peer {
        Peer::User(uid) => Some(uid),
        Peer::Address(_) => None,
    };
    if wanted.values && uid != Some(0) && !admin.tail_values {
        let error = "values are given to root alone: run as root, or leave --with-values out; `tail_values = true` in [agent] of \
                     the policy file allows the group `underpass` to see them, from the agent's next start on";
        return refused(StatusCode::FORBIDDEN, &error);
    }
    let (flow, rule) = (wanted.flow.clone(), wanted.rule.clone());
    let looked = admin.clone();
    let of = aside(move || match (flow, rule) {
        (Some(flow), None) => of_flow(&looked, &flow),
        (None, Some(rule)) => of_rule(&looked.shared.policy.borrow(), &rule),
        _ => Err("expected flow=NUMBER or rule=NAME, and not both".to_owned()),
    });
    let of = match of.await {
        Ok(Ok(of)) => of,
        Ok(Err(error)) => return refused(StatusCode::CONFLICT, &error),
        Err(error) => return failed(&error),
    };
    let services = &admin.shared.services;
    let capturing = match services.captures.begin(of) {
        Ok(capturing) => capturing,
        Err(error) => return refused(StatusCode::TOO_MANY_REQUESTS, &error),
    };
    note(&wanted, uid);
    stay.goes_on();
    let lines = Lines {
        first: Some(first(&wanted)),
        values: wanted.values,
        began: Instant::now(),
        capturing,
        prepared: services.prepared.clone(),
        until: Box::pin(tokio::time::sleep(wanted.time)),
        sign_of_life: signs_of_life(),
        missed: Missed::default(),
    };
    (
        [(header::CONTENT_TYPE, "application/x-ndjson")],
        Body::new(lines),
    )
        .into_response()
}

/// The log's line of a capture: whoever reads it later has to find out who has seen what.
fn note(wanted: &Wanted, uid: Option<u32>) {
    let (flow, rule) = (wanted.flow.as_deref(), wanted.rule.as_deref());
    let seconds = wanted.time.as_secs_f64();
    match wanted.values {
        true => tracing::warn!(
            uid,
            flow,
            rule,
            seconds,
            "requests are captured with their values"
        ),
        false => tracing::info!(
            uid,
            flow,
            rule,
            seconds,
            "requests are captured without values"
        ),
    }
}

/// Reads what is asked for: `flow=17&for=10s&values`, or `rule=NAME`, in which `%` stands before a byte.
pub(super) fn wanted(query: &str) -> Result<Wanted, String> {
    let mut wanted = Wanted {
        flow: None,
        rule: None,
        time: Duration::ZERO,
        values: false,
    };
    for parameter in query.split('&').filter(|one| !one.is_empty()) {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = decoded(value)?;
        match key {
            "flow" => wanted.flow = Some(value),
            "rule" => wanted.rule = Some(value),
            "for" => wanted.time = time(&value)?,
            "values" => wanted.values = true,
            _ => return Err(format!("expected flow, rule, for or values; found {key:?}")),
        }
    }
    match wanted.time.is_zero() {
        true => Err("expected a time, such as for=10s".to_owned()),
        false => Ok(wanted),
    }
}

/// Reads for how long to capture.
pub fn time(text: &str) -> Result<Duration, String> {
    let time = latency(text)?;
    match !time.is_zero() && time <= MAX_CAPTURE_TIME {
        true => Ok(time),
        false => Err(format!(
            "expected a time up to 1h, such as 10s; found {text:?}"
        )),
    }
}

/// The capture of the flow with this number, if somebody reads it.
fn of_flow(admin: &Admin, id: &str) -> Result<CaptureOf, String> {
    let unread = |path: &str| {
        format!(
            "flow {id} travels by `{path}`, and nobody reads it (`underpass explain {id}` says why): {READ_IT}"
        )
    };
    let carried = admin.shared.flows.all();
    if let Some(flow) = carried.iter().find(|flow| flow.id.to_string() == id) {
        return match flow.path() {
            Path::Enrich => Ok(CaptureOf::Flow(flow.id.number())),
            path => Err(unread(path.as_str())),
        };
    }
    let observed = observed::flows(&admin.dataplane, &admin.shared);
    for (flow, listed) in &observed {
        match listed {
            Some(listed) if listed.id.to_string() == id => {
                if flow.is_left_out {
                    return Err(format!(
                        "flow {id} is left out for now, because `tap_cpu` is used up: give more, or capture another flow"
                    ));
                }
                is_deep(&admin.shared.policy.borrow(), &flow.rule)?;
                return Ok(CaptureOf::Flow(listed.id.number()));
            }
            None if id.strip_prefix("socket-") == Some(&flow.cookie.to_string()) => {
                return Err(unread("untouched"));
            }
            _ => {}
        }
    }
    let shortcuts = shortcuts::flows(&admin.dataplane);
    let is_on_it = |cookie: String| id.strip_prefix("socket-") == Some(&cookie);
    match shortcuts
        .iter()
        .any(|flow| is_on_it(flow.flow.cookie.to_string()))
    {
        true => Err(unread("shortcut")),
        false => Err(format!(
            "there is no flow {id}: `underpass flows` lists those that are there"
        )),
    }
}

/// The capture of this rule's flows, if they are read.
fn of_rule(policy: &Policy, name: &str) -> Result<CaptureOf, String> {
    let rule = policy.rules.iter().find(|rule| rule.name.as_str() == name);
    let rule = rule.ok_or_else(|| {
        format!("there is no rule {name:?} in force: `underpass config` lists those that are")
    })?;
    if rule.action != Action::Enrich {
        return Err(format!(
            "rule {name} has `action = \"{}\"`, and nobody reads its flows: {READ_IT}",
            rule.action.as_str()
        ));
    }
    is_deep(policy, &rule.name)?;
    Ok(CaptureOf::Rule(rule.name.clone()))
}

/// Whether copies of a rule's flows have the requests in them.
fn is_deep(policy: &Policy, name: &RuleName) -> Result<(), String> {
    let rule = policy.rules.iter().find(|rule| rule.name == *name);
    let depth = rule.and_then(|rule| rule.taps);
    match depth.is_some_and(|depth| depth < TapDepth::Details) {
        true => Err(format!(
            "of rule {name}'s flows copies have the beginnings of requests alone, because no step reads more: {READ_IT}"
        )),
        false => Ok(()),
    }
}

fn first(wanted: &Wanted) -> String {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let header = Header {
        underpass_capture: VERSION,
        agent: env!("CARGO_PKG_VERSION").to_owned(),
        began_unix_ms: since_epoch.unwrap_or_default().as_millis() as u64,
        flow: wanted.flow.clone(),
        rule: wanted.rule.clone(),
        values: wanted.values,
    };
    ::capture::line(&header).unwrap_or_default() + "\n"
}

/// The lines of one capture.
struct Lines {
    first: Option<String>,
    values: bool,
    began: Instant,
    capturing: Capturing,
    prepared: Arc<PreparedStatements>,
    until: Pin<Box<Sleep>>,
    sign_of_life: Interval,
    /// Requests that were too long for a line.
    missed: Missed,
}

impl Lines {
    fn put(&mut self, captured: &Captured, to: &mut String) {
        let record = record(
            captured,
            self.began,
            &self.prepared.at(captured.database),
            self.values,
        );
        match ::capture::line(&record) {
            Ok(line) => {
                to.push_str(&line);
                to.push('\n');
            }
            Err(_) => self.missed.dropped += 1,
        }
    }

    /// Tells what is missing at this place, if something is.
    fn tell_missed(&mut self, to: &mut String) {
        let new = self.capturing.take_missed();
        self.missed.dropped += new.dropped;
        self.missed.gaps += new.gaps;
        let missed = std::mem::take(&mut self.missed);
        if missed != Missed::default() {
            to.push_str(&(::capture::line(&missed).unwrap_or_default() + "\n"));
        }
    }
}

impl hyper::body::Body for Lines {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let mut text = this.first.take().unwrap_or_default();
        while text.len() < PIECE_BYTES {
            let Poll::Ready(Some(captured)) = this.capturing.poll_next(cx) else {
                // What had no room came behind all that had.
                this.tell_missed(&mut text);
                break;
            };
            this.put(&captured, &mut text);
        }
        if !text.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(text.into()))));
        }
        if this.until.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        match this.sign_of_life.poll_tick(cx).is_ready() {
            true => Poll::Ready(Some(Ok(Frame::data("\n".into())))),
            false => Poll::Pending,
        }
    }
}

/// The line of a request.
fn record(captured: &Captured, began: Instant, prepared: &PreparedAt, values: bool) -> Record {
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
    fn what_is_asked_for_is_read_or_refused() {
        let read = wanted("flow=17&for=10s&values").unwrap();
        assert_eq!((read.flow.as_deref(), read.values), (Some("17"), true));
        assert_eq!(read.time, Duration::from_secs(10));
        assert_eq!(
            wanted("rule=a%2Fb&for=1h").unwrap().rule.as_deref(),
            Some("a/b")
        );
        for (query, said) in [
            ("flow=17", "expected a time, such as for=10s"),
            ("for=0s", "expected a time up to 1h"),
            ("for=2h", "expected a time up to 1h"),
            ("for=soon", "expected a time such as"),
            ("flows=1", "found \"flows\""),
        ] {
            let error = wanted(query).unwrap_err();
            assert!(error.contains(said), "{query}: {error}");
        }
    }

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
