//! Files: what is written is read again, whatever it says; and nothing that could be a value is left of a masked text.

#![expect(clippy::unwrap_used, reason = "tests say what they expect by failing")]

use std::io::Cursor;

use capture::{
    Batch, End, Ended, Flaw, Header, Line, Missed, Op, Outcome, Reader, Record, Statement, Unread,
    VERSION, Value, line, masked,
};
use cql::text::{Token, Tokens};
use proptest::{collection::vec, option, prelude::*};

fn header() -> Header {
    Header {
        underpass_capture: VERSION,
        agent: "0.1.0".to_owned(),
        began_unix_ms: 1,
        flow: Some("17".to_owned()),
        rule: None,
        values: false,
    }
}

fn record() -> Record {
    Record {
        at_us: 0,
        flow: 17,
        stream: 1,
        op: Some(Op::Query),
        kind: "select".to_owned(),
        keyspace: None,
        table: None,
        unread: None,
        statements: Vec::new(),
        names: Vec::new(),
        batch: None,
        consistency: None,
        serial_consistency: None,
        page_size: None,
        later_page: false,
        timestamp_us: None,
        outcome: Outcome::Ok,
        error_code: None,
        error: None,
        rows: None,
        more_pages: false,
        latency_us: 1,
        request_bytes: 1,
        response_bytes: 1,
    }
}

fn values() -> impl Strategy<Value = Vec<Value>> {
    let value = prop_oneof![
        Just(Value::Null),
        Just(Value::Unset),
        any::<u32>().prop_map(Value::Length),
        any::<Vec<u8>>().prop_map(Value::Bytes),
    ];
    vec(value, 0..4)
}

fn statements() -> impl Strategy<Value = Vec<Statement>> {
    let unread = prop_oneof![Just(Unread::NotKept), Just(Unread::Unprepared)];
    let statement = (option::of("[^\\p{Cc}]*"), option::of(unread), values());
    let statement = statement.prop_map(|(text, unread, values)| Statement {
        text,
        unread,
        values,
    });
    vec(statement, 0..3)
}

prop_compose! {
    fn any_record()(
        numbers in any::<(u64, u64, i16, u64, u64)>(),
        op in option::of(prop_oneof![Just(Op::Query), Just(Op::Batch)]),
        texts in any::<[Option<u8>; 3]>(),
        statements in statements(),
        batch in option::of(Just(Batch::Counter)),
        outcome in prop_oneof![Just(Outcome::Ok), Just(Outcome::Error), Just(Outcome::Unanswered)],
        rest in any::<(Option<i32>, Option<i64>, Option<i32>, Option<u32>, bool, bool)>(),
    ) -> Record {
        let text = |n: Option<u8>| n.map(|n| format!("t\"{n}\u{e9}"));
        let [keyspace, table, consistency] = texts;
        Record {
            at_us: numbers.0,
            flow: numbers.1,
            stream: numbers.2,
            op,
            keyspace: text(keyspace),
            table: text(table),
            statements,
            batch,
            consistency: text(consistency),
            page_size: rest.0,
            later_page: rest.4,
            timestamp_us: rest.1,
            outcome,
            error_code: rest.2,
            rows: rest.3,
            more_pages: rest.5,
            latency_us: numbers.3,
            request_bytes: numbers.4,
            ..record()
        }
    }
}

fn end(requests: u64) -> End {
    End {
        end: Ended::Time,
        requests,
        dropped: 3,
        gaps: 1,
    }
}

/// A whole file.
fn file(records: &[Record]) -> String {
    let mut text = line(&header()).unwrap() + "\n";
    for record in records {
        text += &(line(record).unwrap() + "\n");
    }
    text += &(line(&Missed {
        dropped: 3,
        gaps: 1,
    })
    .unwrap()
        + "\n");
    text + &line(&end(records.len() as u64)).unwrap() + "\n"
}

/// Reads a whole file.
fn read(text: &[u8]) -> Result<(Vec<Record>, Option<End>), Flaw> {
    let mut reader = Reader::begin(Cursor::new(text))?;
    let mut records = Vec::new();
    while let Some(line) = reader.next_line()? {
        if let Line::Record(record) = line {
            records.push(*record);
        }
    }
    Ok((records, reader.end()))
}

proptest! {
    #[test]
    fn what_is_written_is_read(records in vec(any_record(), 0..5)) {
        let (found, found_end) = read(file(&records).as_bytes()).unwrap();
        prop_assert_eq!(&found, &records);
        prop_assert_eq!(found_end, Some(end(records.len() as u64)));
    }

    #[test]
    fn a_file_that_is_cut_off_is_read_up_to_its_last_whole_line(
        records in vec(any_record(), 1..4),
        at in any::<prop::sample::Index>(),
    ) {
        let text = file(&records);
        let first = text.find('\n').unwrap() + 1;
        let cut = first + at.index(text.len() - first);
        let (found, end) = read(&text.as_bytes()[..cut]).unwrap();
        prop_assert!(records.starts_with(&found));
        prop_assert_eq!(end, None);
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes: Vec<u8>, after_header: bool) {
        let mut text = Vec::new();
        if after_header {
            text = (line(&header()).unwrap() + "\n").into_bytes();
        }
        text.extend(bytes);
        let _ = read(&text);
    }
}

#[test]
fn what_is_no_capture_is_said() {
    let good = file(&[record()]);
    let lines: Vec<&str> = good.lines().collect();
    let long = format!(
        "{}\n{}\n",
        lines[0],
        " ".repeat(capture::MAX_LINE_BYTES + 1)
    );
    let newer = lines[0].replace("\"underpass_capture\":1", "\"underpass_capture\":2") + "\n";
    for (text, said) in [
        ("".to_owned(), "it is no capture"),
        ("{}\n".to_owned(), "it is no capture"),
        (newer, "format 2"),
        (long, "line 2 is longer than"),
        (
            format!("{}\n{{\"at\":1}}\n", lines[0]),
            "line 2 is none of a capture",
        ),
        (good.clone() + lines[1] + "\n", "behind the last one"),
        (
            good.replace("\"requests\":1", "\"requests\":2"),
            "tells of 2 requests, and there are 1",
        ),
    ] {
        let error = read(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

/// The literals of a text.
fn literals(text: &str) -> Vec<&str> {
    let mut tokens = Tokens::new(text.as_bytes());
    let mut found = Vec::new();
    loop {
        match tokens.next_within(text.len()) {
            (Token::End | Token::Bad, _) => return found,
            (Token::Integer(_) | Token::Literal, range) => found.push(&text[range]),
            _ => {}
        }
    }
}

/// Statements as clients may write them: quoted names, comments, `$$`, no blanks where none are needed.
#[test]
fn masked_texts_are_statements_of_the_same_kind_without_their_values() {
    const STATEMENTS: u64 = 5_000;
    let mut masks = 0;
    for n in 0..STATEMENTS {
        let text = grammar::statement(7, n, "ks").text;
        let Some(hidden) = masked(&text) else {
            continue;
        };
        masks += 1;
        let same = |text: &str| (cql::Statement::of(text.as_bytes()), literals(text).len());
        assert_eq!(same(&text), same(&hidden), "{text}\n{hidden}");
        assert_eq!(
            masked(&hidden).as_deref(),
            Some(&*hidden),
            "{text}\n{hidden}"
        );
        let fingerprint = |text: &str| cql::Analysis::of(text.as_bytes(), text.len()).fingerprint;
        assert_eq!(fingerprint(&text), fingerprint(&hidden), "{text}\n{hidden}");
        let is_limited = hidden.to_ascii_lowercase().contains("limit");
        for literal in literals(&hidden) {
            // The digits of a number, and all of a text but the signs of a date.
            let is_masked = match literal.starts_with(['\'', '$']) {
                true => literal.chars().all(|c| "x1-:.TZ+ '$".contains(c)),
                false => literal.chars().all(|c| !('2'..='9').contains(&c)),
            };
            let is_uuid = literal == "00000000-0000-1000-8000-000000000000";
            assert!(is_masked || is_uuid || is_limited, "{text}\n{hidden}");
        }
    }
    assert!(masks > STATEMENTS * 9 / 10, "{masks}");
}
