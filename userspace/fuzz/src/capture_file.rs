//! Any bytes as a file, and behind a first line that is one.
//!
//! For any input: whatever is read can be written, and is the same when it is read again.

use std::io::Cursor;

use capture::{Header, Line, Reader, VERSION, line};

/// A file of captured requests.
pub fn file(data: &[u8]) {
    read(data);
    let header = Header {
        underpass_capture: VERSION,
        agent: String::new(),
        began_unix_ms: 0,
        flow: None,
        rule: None,
        values: true,
    };
    let first = line(&header).unwrap_or_default();
    read(&[first.as_bytes(), b"\n", data].concat());
}

fn read(bytes: &[u8]) {
    let Ok(mut reader) = Reader::begin(Cursor::new(bytes)) else {
        return;
    };
    let mut lines = 0;
    while let Ok(Some(found)) = reader.next_line() {
        lines += 1;
        assert!(lines <= bytes.len());
        let written = match &found {
            Line::Record(record) => line(record),
            Line::Missed(missed) => line(missed),
            Line::End(end) => line(end),
        };
        // A control character is not written as it was read.
        if let Ok(written) = written
            && !written.contains('?')
        {
            let again: Line = serde_again(&written);
            assert_eq!(again, found);
        }
    }
}

/// Reads a line as the reader does.
fn serde_again(written: &str) -> Line {
    let header = r#"{"underpass_capture":1,"agent":"","began_unix_ms":0,"values":true}"#;
    // The number of records in a last line has to be that of the lines before it.
    let text = format!("{header}\n{written}\n");
    let mut reader = Reader::begin(Cursor::new(text.into_bytes())).expect("a good first line");
    match reader.next_line() {
        Ok(Some(line)) => line,
        // An end that counts records that are not there.
        Err(capture::Flaw::Count(requests, 0)) => end(written, requests),
        other => panic!("{written}: {other:?}"),
    }
}

fn end(written: &str, requests: u64) -> Line {
    let zero = written.replace(&format!("\"requests\":{requests}"), "\"requests\":0");
    match serde_again(&zero) {
        Line::End(end) => Line::End(capture::End { requests, ..end }),
        other => other,
    }
}
