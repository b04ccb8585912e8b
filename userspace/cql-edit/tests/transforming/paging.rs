//! Page sizes: those that are capped or given, and statements that have no pages.

use super::*;

#[test]
fn a_page_is_capped_and_given() {
    for kind in KINDS {
        for (asked, expected) in [
            (None, 100),
            (Some(5_000), 100),
            (Some(50), 50),
            (Some(-1), 100),
        ] {
            let mut flow = Edits::of(kind, "transform = \"paging\"\nat_most = 100");
            let mut body = long_string(&table(1));
            body.extend([0, 1]);
            // A value, a page size, a paging state, a serial consistency.
            let flags: u32 = 0x01 | 0x08 | 0x10 | if asked.is_some() { 0x04 } else { 0 };
            let flags = flags.to_be_bytes();
            body.extend(if kind.version == 5 {
                &flags[..]
            } else {
                &flags[3..]
            });
            body.extend([0, 1, 0, 0, 0, 1, 9]);
            if let Some(rows) = asked {
                body.extend(i32::to_be_bytes(rows));
            }
            body.extend([0, 0, 0, 2, 7, 7, 0, 9]);
            let RequestBody::Query(got) = flow.changed(QUERY, &body) else {
                panic!("no query")
            };
            let got = got.query_params;
            assert_eq!(got.page_size, Some(expected), "{kind:?} {asked:?}");
            assert_eq!(got.paging_state.unwrap().as_slice(), Some(&[7, 7][..]));
            assert_eq!(got.serial_consistency, Some(Consistency::LocalSerial));
        }
    }
}

/// A QUERY of this text with a page size, if there is one.
fn paged(version: u8, text: &str, rows: Option<i32>) -> Vec<u8> {
    [long_string(text), page_size(version, rows)].concat()
}

/// Parameters of nothing but a page size.
fn page_size(version: u8, rows: Option<i32>) -> Vec<u8> {
    let flags = if rows.is_some() { 0x04_u32 } else { 0 }.to_be_bytes();
    let flags = if version == 5 {
        &flags[..]
    } else {
        &flags[3..]
    };
    let rows = rows.map_or(Vec::new(), |rows| rows.to_be_bytes().to_vec());
    [&[0, 1][..], flags, &rows].concat()
}

/// The page size that goes on, of a text and of the same text when it was prepared; and whether it is refused.
fn pages(
    kind: Kind,
    without_size: &str,
    text: &str,
    rows: Option<i32>,
) -> Result<Option<i32>, String> {
    let settings = format!("transform = \"paging\"\nat_most = 100\n{without_size}");
    let mut flow = Edits::of(kind, &settings);
    let (version, id) = (kind.version, [7; 16]);
    assert_eq!(prepares(&mut flow, text, &id), text);
    let execute = execute_with(version, &id, page_size(version, rows));
    let mut both =
        [(QUERY, paged(version, text, rows)), (EXECUTE, execute)].map(|(opcode, body)| {
            let sent = kind.sent(0, 7, opcode, &body);
            let passed = flow.requests(&sent);
            let Some(frame) = kind.read(&passed).into_iter().next() else {
                let answers = kind.read(&flow.editor.answers().unwrap());
                assert_eq!(answers[0][9..13], 0x2200_i32.to_be_bytes());
                return Err(String::from_utf8_lossy(&answers[0][15..]).into_owned());
            };
            let envelope = Envelope::from_buffer(&frame, Compression::None)
                .unwrap()
                .envelope;
            match envelope.request_body().unwrap() {
                RequestBody::Query(query) => Ok(query.query_params.page_size),
                RequestBody::Execute(execute) => Ok(execute.query_parameters.page_size),
                other => panic!("{other:?}"),
            }
        });
    assert_eq!(both[0], both[1], "{kind:?} {text}");
    std::mem::replace(&mut both[0], Ok(None))
}

/// Statements whose pages would be another answer, or none.
const NOT_PAGED: [&str; 12] = [
    "SELECT * FROM system.local WHERE key='local'",
    "select*from\"system\".peers_v2",
    "SELECT * FROM system_schema.columns",
    "SELECT * FROM system_views.clients",
    "SELECT * FROM system_virtual_schema.tables",
    "SELECT k FROM shop.t WHERE k IN(1,2)ORDER BY c DESC",
    "SELECT k FROM shop.t WHERE k IN ? ORDER BY c LIMIT 500",
    "SELECT k FROM shop.t ORDER BY v ANN OF [1.0,2.0] LIMIT 150",
    "SELECT count(*) FROM shop.t",
    "SELECT JSON max ( v ), min(v) FROM shop.t",
    "INSERT INTO shop.t (k) VALUES (1)",
    "UPDATE shop.t SET v=1 WHERE k=1 IF v=2",
];

#[test]
fn what_has_no_pages_is_not_paged() {
    for kind in KINDS {
        for text in NOT_PAGED {
            for without_size in ["", "without_size = \"refuse\"", "without_size = \"set\""] {
                for rows in [None, Some(50), Some(5_000), Some(-1)] {
                    let got = pages(kind, without_size, text, rows);
                    assert_eq!(got, Ok(rows), "{kind:?} {without_size} {text}");
                }
            }
        }
    }
}

/// A client that names no page size may not know of further pages.
#[test]
fn no_answer_is_short_unless_that_was_asked_for() {
    for kind in KINDS {
        for text in [
            "SELECT * FROM shop.t",
            "SELECT \"count\", a FROM shop.system WHERE k=1",
            "SELECT k,max(v) FROM shop.t GROUP BY k",
            "SELECT k FROM shop.t WHERE k IN (1, 2)",
            "SELECT f(\"in\") FROM shop.t WHERE k=1 ORDER BY c",
            "SELECT k FROM shop.t PER PARTITION LIMIT 2",
            "SELECT k FROM shop.t LIMIT ?",
            "SELECT k FROM shop.t LIMIT 101",
            "this is no CQL",
        ] {
            for rows in [None, Some(0), Some(-1)] {
                let by = |without_size| pages(kind, without_size, text, rows);
                assert_eq!(by(""), Ok(rows), "{kind:?} {text}");
                assert_eq!(
                    by("without_size = \"set\""),
                    Ok(Some(100)),
                    "{kind:?} {text}"
                );
                let message = by("without_size = \"refuse\"").unwrap_err();
                assert!(
                    message.contains("100 rows to a page") && message.contains("name one"),
                    "{message}"
                );
            }
            for without_size in ["", "without_size = \"refuse\"", "without_size = \"set\""] {
                let by = |rows| pages(kind, without_size, text, Some(rows));
                assert_eq!(
                    (by(100), by(101), by(i32::MAX)),
                    (Ok(Some(100)), Ok(Some(100)), Ok(Some(100)))
                );
            }
        }
        let text = "SELECT k FROM shop.t PER PARTITION LIMIT 500 LIMIT 100 ALLOW FILTERING";
        assert_eq!(
            pages(kind, "without_size = \"refuse\"", text, None),
            Ok(None)
        );
    }
}
