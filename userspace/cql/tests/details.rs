//! Details of requests and responses, for a sink that asks for them.

mod extensions;
mod flow;
mod rows;
mod written;

use cassandra_protocol::frame::Version;
use cql::{
    BoundValue, Consistency, Details, ErrorCode, Fact, MAX_DETAIL_BYTES, MAX_KEPT_VALUE_BYTES,
    MAX_KEPT_VALUES, MAX_TEXT_BYTES, NoTraceContext, Says, TraceContext,
};

use crate::support::*;
use flow::Flow;
use rows::rows_body;

fn long_string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

#[test]
fn what_is_not_answered_is_told_in_the_end() {
    for version in [3, 4, 5] {
        let mut flow = Flow::started(version);
        let text = [&long_string("SELECT a FROM k.t")[..], &[0, 1, 0, 0, 0, 0]].concat();
        flow.request(0, 1, QUERY, &text);
        flow.request(0, 2, OPTIONS, &[]);
        flow.request(0, 3, OPTIONS, &[]);
        flow.response(0, 3, RESULT, &1_i32.to_be_bytes());
        // Of this one's answer only the beginning comes.
        let answer = flow.wrap(frame(version | 0x80, 0, 2, RESULT, &[0; 8]));
        if version < 5 {
            flow.feed(false, &answer[..12]);
        }
        flow.decoder.finish(7, &mut flow.sink);
        let told = std::mem::take(&mut flow.sink.unanswered);
        let kinds: Vec<&str> = told.iter().map(|(kind, _, _)| kind.as_str()).collect();
        match version {
            5 => assert_eq!(kinds, ["select", "options"]),
            _ => assert_eq!(kinds, ["options", "select"]),
        }
        let select = told.iter().find(|(kind, _, _)| kind == "select").unwrap();
        assert_eq!(select.1, 7);
        let fingerprint = select.2.asked.fingerprint.as_ref().unwrap();
        assert_eq!(fingerprint.text(), "SELECT a FROM k.t");
        flow.decoder.finish(8, &mut flow.sink);
        assert_eq!(flow.sink.unanswered.len(), 0, "once");
    }
}

#[test]
fn texts_are_for_who_wants_them() {
    let text = "SELECT a FROM k.t WHERE b = 'x'";
    let body = [&long_string(text)[..], &[0, 1, 0, 0, 0, 0]].concat();
    let mut flow = Flow::started(4);
    assert_eq!(flow.ask(QUERY, &body).text(), None);
    flow.decoder.wants_texts(true);
    assert_eq!(flow.ask(QUERY, &body).text(), Some(text));
    assert_eq!(flow.ask(QUERY, &body[..20]).text(), None);
    let long = [
        &long_string(&"x".repeat(MAX_TEXT_BYTES + 1))[..],
        &[0, 1, 0],
    ]
    .concat();
    assert_eq!(flow.ask(QUERY, &long).text(), None);
    flow.decoder.wants_texts(false);
    assert_eq!(flow.ask(QUERY, &body).text(), None);
}

#[test]
fn requests_themselves_are_for_who_wants_them_as_far_as_there_is_room() {
    let body = [&long_string("SELECT a FROM k.t")[..], &[0, 1, 0, 0, 0, 0]].concat();
    for version in [4, 5] {
        let mut flow = Flow::started(version);
        assert_eq!(flow.ask(QUERY, &body).whole(), None);
        flow.decoder.wants_whole(true);
        let asked = flow.ask(QUERY, &body);
        let whole = asked.whole().unwrap();
        assert_eq!((&*whole.body, whole.header.version), (&*body, version));
        // A log-in never is.
        assert_eq!(flow.ask(0x0F, b"\0\0\0\x05\0u\0pw").whole(), None);
        // One that is longer than what is read of it is not whole.
        let long = [&long_string(&"x".repeat(80 << 10))[..], &[0, 1, 0]].concat();
        assert_eq!(flow.ask(QUERY, &long).whole(), None);
        // So many wait for their answers.
        let large = [&long_string(&"x".repeat(60 << 10))[..], &[0; 6]].concat();
        let fit = MAX_DETAIL_BYTES / large.len();
        for stream in 0..fit + 2 {
            flow.request(0, stream as i16, QUERY, &large);
        }
        let mut kept = || {
            for stream in 0..fit + 2 {
                flow.response(0, stream as i16, RESULT, &1_i32.to_be_bytes());
            }
            let told = flow.sink.told.drain(..);
            told.filter(|(_, _, of)| of.asked.whole().is_some()).count()
        };
        assert_eq!(kept(), fit);
        assert!(
            flow.ask(QUERY, &large).whole().is_some(),
            "there is room again"
        );
        flow.decoder.wants_whole(false);
        assert_eq!(flow.ask(QUERY, &body).whole(), None);
    }
}

/// A client decides how many requests wait, and what stands in each.
#[test]
fn what_is_kept_of_requests_that_wait_is_bounded() {
    let mut flow = Flow::started(4);
    flow.decoder.wants_texts(true);
    flow.decoder.wants_values(true);
    let column = "c".repeat(40);
    let asks = |n: usize| {
        let text = format!(
            "SELECT {column}{n} FROM k.t WHERE a = '{}'",
            "x".repeat(4_000)
        );
        [
            &long_string(&text)[..],
            &[0, 1, 1],
            &bound(&[Ok(&[7; 100])]),
        ]
        .concat()
    };
    const ASKED: usize = 4_000;
    for round in 0..2 {
        for n in 0..ASKED {
            flow.request(0, n as i16, QUERY, &asks(n));
        }
        // One stream asked again gives back what it held.
        flow.response(0, 0, RESULT, &1_i32.to_be_bytes());
        flow.request(0, 0, QUERY, &asks(0));
        for n in 0..ASKED {
            flow.response(0, n as i16, RESULT, &1_i32.to_be_bytes());
        }
        let (mut kept, mut whole, mut none) = (0, 0, 0);
        for (_, _, of) in flow.sink.told.drain(..) {
            let text = of.asked.text().map_or(0, str::len);
            let shape = of.asked.fingerprint.as_ref();
            kept += text + shape.map_or(0, |shape| shape.text().len());
            whole += usize::from(text > 0 && shape.is_some() && of.asked.values().is_some());
            none += usize::from(text == 0 && shape.is_none() && of.asked.values().is_none());
        }
        // One has been told twice.
        assert!(kept <= MAX_DETAIL_BYTES + 5_000, "{round}: {kept}");
        assert!(kept >= MAX_DETAIL_BYTES / 10 * 9, "{round}: {kept}");
        assert!(whole > 0 && none > 0, "{round}: {whole}, {none}");
    }
}

/// Values of a statement, as they are sent: bytes, NULL (-1) and what is left as it is (-2).
fn bound(values: &[Result<&[u8], i32>]) -> Vec<u8> {
    let mut body = (values.len() as u16).to_be_bytes().to_vec();
    for value in values {
        let (length, bytes) = value.map_or_else(|n| (n, &[][..]), |b| (b.len() as i32, b));
        body.extend(length.to_be_bytes());
        body.extend(bytes);
    }
    body
}

#[test]
fn values_are_for_who_wants_them() {
    let values = bound(&[
        Ok(b"ann"),
        Err(-1),
        Err(-2),
        Ok(&[7; MAX_KEPT_VALUE_BYTES + 1]),
    ]);
    let kept = [
        BoundValue::Bytes((*b"ann").into(), 3),
        BoundValue::Null,
        BoundValue::Unset,
        BoundValue::Bytes([7; MAX_KEPT_VALUE_BYTES].into(), MAX_KEPT_VALUE_BYTES + 1),
    ];
    let text = long_string("INSERT INTO k.t (a) VALUES (?, ?, ?, ?)");
    let query = [&text[..], &[0, 1, 1], &values].concat();
    let batch = [
        &[1, 0, 2, 0][..],
        &text,
        &values,
        &[0],
        &text,
        &values,
        &[0, 1, 0],
    ]
    .concat();
    let execute = [&[0, 1, 9, 0, 1, 1][..], &values].concat();
    let mut flow = Flow::started(4);
    assert_eq!(flow.ask(QUERY, &query).values(), None);
    flow.decoder.wants_values(true);
    assert_eq!(flow.ask(QUERY, &query).values().unwrap()[..], kept);
    assert_eq!(flow.ask(EXECUTE, &execute).values().unwrap()[..], kept);
    let twice = [&kept[..], &kept].concat();
    assert_eq!(flow.ask(BATCH, &batch).values().unwrap()[..], twice);
    // Of what is cut short the beginning is known.
    assert_eq!(
        flow.ask(QUERY, &query[..query.len() - 70])
            .values()
            .unwrap()[..],
        kept[..2]
    );
    let many = bound(&[Ok(&b"x"[..]); 2 * MAX_KEPT_VALUES]);
    let many = flow.ask(QUERY, &[&text[..], &[0, 1, 1], &many].concat());
    assert_eq!(many.values().unwrap().len(), MAX_KEPT_VALUES);
    let named = [&text[..], &[0, 1, 0x41, 0, 1, 0, 1, b'a', 0, 0, 0, 1, b'x']].concat();
    let named = flow.ask(QUERY, &named);
    assert_eq!(
        named.values().unwrap()[..],
        [BoundValue::Bytes((*b"x").into(), 1)]
    );
}

#[test]
fn what_waits_when_nobody_asks_any_more_is_not_told_of_later_requests() {
    let asks = |flow: &mut Flow, text: &str| {
        let body = [&long_string(text)[..], &[0, 1, 0, 0, 0, 0]].concat();
        flow.request(0, 1, QUERY, &body);
    };
    let mut flow = Flow::started(4);
    asks(&mut flow, "SELECT a FROM k.before");
    flow.decoder.forget_details();
    flow.response(0, 1, RESULT, &1_i32.to_be_bytes());
    let (_, _, before) = flow.sink.told.pop().unwrap();
    assert_eq!(before.asked.fingerprint, None);
    asks(&mut flow, "SELECT a FROM k.after");
    flow.response(0, 1, RESULT, &1_i32.to_be_bytes());
    let (_, _, after) = flow.sink.told.pop().unwrap();
    assert_eq!(
        after.asked.fingerprint.unwrap().text(),
        "SELECT a FROM k.after"
    );
}

#[test]
fn trace_contexts_are_for_who_wants_them() {
    const CUSTOM_PAYLOAD: u8 = 0x04;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let entry = [&[0, 1, 0, 11][..], b"traceparent", &long_string(parent)].concat();
    let query = [&long_string("SELECT a FROM k.t")[..], &[0, 1, 0, 0, 0, 0]].concat();
    let body = [&entry[..], &query].concat();
    for version in [4, 5] {
        let mut flow = Flow::started(version);
        let mut asks = |flags, body: &[u8], wants| {
            flow.decoder.wants_contexts(wants);
            flow.request(flags, 1, QUERY, body);
            flow.response(0, 1, RESULT, &1_i32.to_be_bytes());
            let (kind, _, details) = flow.sink.told.pop().unwrap();
            assert_eq!(kind, "select");
            details.context
        };
        assert_eq!(asks(CUSTOM_PAYLOAD, &body, false), None);
        let context = TraceContext::parse(parent.as_bytes());
        assert!(context.is_ok());
        assert_eq!(asks(CUSTOM_PAYLOAD, &body, true), Some(context));
        assert_eq!(asks(0, &query, true), None);
        let state = [&[0, 10][..], b"tracestate", &long_string("a=b")].concat();
        let mut both = [&entry[..], &state, &query].concat();
        both[1] = 2;
        flow.request(CUSTOM_PAYLOAD, 1, QUERY, &both);
        flow.response(0, 1, RESULT, &1_i32.to_be_bytes());
        let (_, _, details) = flow.sink.told.pop().unwrap();
        assert_eq!(details.context, Some(context));
        assert_eq!(details.trace_state, Some(Ok("a=b".into())));
        let mut asks = |flags, body: &[u8], wants| {
            flow.decoder.wants_contexts(wants);
            flow.request(flags, 1, QUERY, body);
            flow.response(0, 1, RESULT, &1_i32.to_be_bytes());
            flow.sink.told.pop().unwrap().2.context
        };
        let mut bad = body.clone();
        bad[4 + 11 + 4] = b'x';
        assert_eq!(asks(CUSTOM_PAYLOAD, &bad, true), Some(Err(NoTraceContext)));
    }
}

#[test]
fn who_could_not_log_in_is_told_too() {
    const AUTH_RESPONSE: u8 = 0x0F;
    const AUTH_SUCCESS: u8 = 0x10;
    const ERROR: u8 = 0x00;
    let token = long_string("\0ann\0secret");
    let bad = [&0x0100_u32.to_be_bytes()[..], &[0, 0]].concat();
    for (opcode, body, accepts) in [(AUTH_SUCCESS, &[255; 4][..], true), (ERROR, &bad, false)] {
        let mut flow = Flow::started(4);
        flow.request(0, 1, AUTH_RESPONSE, &token);
        flow.response(0, 1, opcode, body);
        let details = flow.sink.told.pop().unwrap().2;
        assert_eq!(details.asked.says, Some(Box::new(Says::User("ann".into()))));
        assert_eq!(details.answered.accepts, accepts);
    }
    let mut flow = Flow::started(4);
    flow.request(0, 1, AUTH_RESPONSE, &long_string("another mechanism's"));
    flow.response(0, 1, AUTH_SUCCESS, &[255; 4]);
    let details = flow.sink.told.pop().unwrap().2;
    assert_eq!(details.asked.says, Some(Box::new(Says::UnknownUser)));
}

#[test]
fn bytes_of_a_query() {
    let mut flow = Flow::started(4);
    // A statement, ONE, values and page size and serial consistency; one value, 10 rows, SERIAL.
    let mut body = long_string("SELECT a FROM t WHERE b = ?");
    body.extend([0, 1, 0x15, 0, 1, 0, 0, 0, 1, 9, 0, 0, 0, 10, 0, 8]);
    let asked = flow.ask(QUERY, &body);
    let parameters = asked.parameters.unwrap();
    assert_eq!(parameters.consistency.as_str(), "one");
    assert_eq!(parameters.serial_consistency, Fact::Is(Consistency(8)));
    assert_eq!((parameters.values, parameters.statements), (1, 1));
    assert_eq!(parameters.page_size, Fact::Is(10));
    assert!(!parameters.paging_state && !asked.tracing);
    assert_eq!(asked.body_bytes as usize, body.len());
}

#[test]
fn what_stands_in_front_of_a_response() {
    let payload = [&[0, 1][..], &string("key"), &[0, 0, 0, 2, 1, 2]].concat();
    let warnings = [&[0, 2][..], &string("careful"), &string("again")].concat();
    let rows = rows_body(Version::V4, 3, true, true, false, false);
    let body = [&[9; 16][..], &warnings, &payload, &rows].concat();
    let mut flow = Flow::started(4);
    let text = query(4, "SELECT a FROM t", None);
    flow.request(0x06, 1, QUERY, &[&payload[..], &text].concat());
    flow.response(0x0E, 1, RESULT, &body);
    let (
        _,
        _,
        Details {
            asked, answered, ..
        },
    ) = flow.sink.told.pop().unwrap();
    assert!(asked.tracing);
    assert_eq!(asked.parameters.unwrap().consistency, Consistency(1));
    assert_eq!(answered.tracing_id, Some([9; 16]));
    assert_eq!(answered.warnings, Some(2));
    assert_eq!(answered.rows, Some(3));
    assert_eq!(flow.sink.anomalies, []);
}

#[test]
fn errors_and_other_responses_have_no_rows() {
    let mut flow = Flow::started(4);
    for (opcode, body) in [
        (ERROR, &[0, 0, 0x12, 0, 0, 0][..]),
        (RESULT, &[0, 0, 0, 1]),
        (6, &[0, 0]),
    ] {
        let answered = flow.answer(0, opcode, body);
        assert_eq!(answered.rows, None);
        assert_eq!(answered.warnings, Some(0));
        assert_eq!(answered.body_bytes as usize, body.len());
    }
    flow.request(0, 1, QUERY, &query(4, "SELECT a FROM t", None));
    let error = [&[7; 16][..], &0x1200_i32.to_be_bytes()].concat();
    flow.response(0x02, 1, ERROR, &error);
    let (_, error, details) = flow.sink.told.pop().unwrap();
    assert_eq!(error, Some(ErrorCode::Code(0x1200)));
    assert_eq!(details.answered.tracing_id, Some([7; 16]));
}

#[test]
fn what_cannot_be_read_is_not_known() {
    let mut flow = Flow::started(4);
    flow.request(0x01, 1, QUERY, b"compressed");
    flow.response(0x0B, 1, RESULT, b"compressed");
    let (
        _,
        _,
        Details {
            asked, answered, ..
        },
    ) = flow.sink.told.pop().unwrap();
    assert_eq!(asked.parameters, None);
    assert_eq!((answered.tracing_id, answered.warnings), (None, None));
    assert_eq!(answered.rows, None);
    assert_eq!(
        flow.ask(QUERY, &long_string("SELECT a FROM t")).parameters,
        None
    );
    assert_eq!(flow.ask(BATCH, &[0, 0, 1, 7]).parameters, None);
    assert_eq!(flow.ask(OPTIONS, &[]).parameters, None);
    let absurd = [&[0, 0, 0, 2, 0, 0, 0, 1][..], &[0xFF; 20]].concat();
    assert_eq!(flow.answer(0, RESULT, &absurd).rows, None);
    // Lists of lists, deeper than anybody goes.
    let mut deep = vec![0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    deep.extend([0, 0x20].repeat(10_000));
    assert_eq!(flow.answer(0, RESULT, &deep).rows, None);
}

#[test]
fn details_belong_to_their_request() {
    let mut flow = Flow::started(4);
    for (stream, level) in [(1_i16, 1_u8), (2, 4), (300, 6)] {
        let mut body = long_string("SELECT a FROM t");
        body.extend([0, level, 0]);
        flow.request(0, stream, QUERY, &body);
    }
    // On a stream that waits: whose its responses are cannot be told.
    let mut body = long_string("SELECT a FROM t");
    body.extend([0, 5, 0]);
    flow.request(0, 2, QUERY, &body);
    for stream in [300, 2, 2, 1] {
        flow.response(0, stream, RESULT, &[0, 0, 0, 1]);
    }
    let level = |details: &Details| details.asked.parameters.as_ref().unwrap().consistency.0;
    let told = flow.sink.told.iter();
    let levels: Vec<_> = told.map(|(.., details)| level(details)).collect();
    assert_eq!(levels, [6, 1]);
    let unanswered = flow.sink.unanswered.iter();
    let levels: Vec<_> = unanswered.map(|(.., details)| level(details)).collect();
    assert_eq!(levels, [4, 5]);
}

#[test]
fn levels_have_names() {
    let names: Vec<_> = (0..12).map(|level| Consistency(level).as_str()).collect();
    assert_eq!(names.last(), Some(&"other"));
    assert_eq!(names.first(), Some(&"any"));
    assert_eq!(Consistency(10).to_string(), "local_one");
}
