//! Names that `rewrite` replaces in requests and responses, read back by another implementation.

use crate::support::edit::*;
use crate::support::values::*;
use crate::support::*;
use cassandra_protocol::frame::message_batch::BatchQuerySubj;
use cassandra_protocol::frame::message_request::RequestBody;
use cassandra_protocol::query::QueryValues;
use cassandra_protocol::types::value::Value;
use cql_edit::Caller;

mod schema;

const RENAMES: &str = "keyspaces = { shop = \"shop_v2\" }\n\
                       tables = { \"shop.orders\" = \"shop_v2.orders_2026\" }";

/// The bytes that the client gets for a response.
fn told(flow: &mut Edits, stream: i16, opcode: u8, body: &[u8]) -> Vec<u8> {
    let kind = flow.kind;
    let mut passed = Vec::new();
    for chunk in kind.sent(0x80, stream, opcode, body).chunks(11) {
        passed.extend(flow.responses(chunk));
    }
    match &kind.read(&passed)[..] {
        [] => Vec::new(),
        [frame] => frame[9..].to_vec(),
        frames => panic!("{} frames", frames.len()),
    }
}

/// A text goes out, and is answered; what the database and the client get.
fn asked(flow: &mut Edits, text: &str, answer: &[u8]) -> (String, Vec<u8>) {
    let body = ask(flow.kind.version, text);
    let RequestBody::Query(got) = flow.changed(QUERY, &body) else {
        panic!("no QUERY")
    };
    (got.query, told(flow, 7, RESULT, answer))
}

/// Columns `a`, an int, and `b`, of a type of the user's; of one table.
fn columns(flags: i32, [keyspace, table]: [&str; 2], prepared: Option<u8>) -> Vec<u8> {
    let mut body = [flags, 2].map(i32::to_be_bytes).concat();
    if prepared.is_some_and(|version| version >= 4) {
        body.extend([0, 0, 0, 1, 0, 0]);
    }
    let of = [string(keyspace), string(table)].concat();
    let is_global = flags & 1 != 0;
    let each = if is_global { Vec::new() } else { of.clone() };
    if is_global {
        body.extend(of);
    }
    for (name, kind) in [
        ("a", vec![0, 9]),
        (
            "b",
            [
                &[0, 0x30][..],
                &string(keyspace),
                &string("udt"),
                &[0, 1],
                &string("f"),
                &[0, 9],
            ]
            .concat(),
        ),
    ] {
        body.extend([each.clone(), string(name), kind].concat());
    }
    body
}

/// A body with a single row of these.
fn rows_of(flags: i32, names: [&str; 2]) -> Vec<u8> {
    let head = [&2_i32.to_be_bytes()[..], &columns(flags, names, None)].concat();
    [
        &head[..],
        &[0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 5, 255, 255, 255, 255],
    ]
    .concat()
}

fn prepared_of(version: u8, names: [&str; 2]) -> Vec<u8> {
    let mut body = [&4_i32.to_be_bytes()[..], &short_bytes(b"id")].concat();
    if version >= 5 {
        body.extend(short_bytes(b"of the metadata"));
    }
    body.extend(columns(1, names, Some(version)));
    body.extend(columns(0, names, None));
    body
}

fn change_of(target: &str, names: &[&str]) -> Vec<u8> {
    let names = names.iter().flat_map(|name| string(name));
    [string("CREATED"), string(target), names.collect()].concat()
}

const OURS: [&str; 2] = ["shop", "orders"];
const THEIRS: [&str; 2] = ["shop_v2", "orders_2026"];

#[test]
fn each_side_hears_the_names_that_it_knows() {
    for kind in KINDS {
        let version = kind.version;
        let mut flow = rewrite(kind, RENAMES);
        let text = "SELECT a, b FROM shop.orders WHERE a = 1";
        let theirs = "SELECT a, b FROM shop_v2.orders_2026 WHERE a = 1";
        // Of all columns at once, of each, and of a later page.
        for flags in [1, 0] {
            let got = asked(&mut flow, text, &rows_of(flags, THEIRS));
            assert_eq!(
                got,
                (theirs.to_owned(), rows_of(flags, OURS)),
                "{kind:?} {flags}"
            );
        }
        // Prepared: the id stays that of the database, and so do its key's places.
        let RequestBody::Prepare(got) = flow.changed(PREPARE, &prepare(version, text, None)) else {
            panic!("no PREPARE")
        };
        assert_eq!(got.query, theirs);
        let answer = told(&mut flow, 7, RESULT, &prepared_of(version, THEIRS));
        assert_eq!(answer, prepared_of(version, OURS), "{kind:?}");
        flow.changed(
            EXECUTE,
            &execute_with(version, b"id", parameters(version, &[], None, None)),
        );
        let answer = told(&mut flow, 7, RESULT, &rows_of(1, THEIRS));
        assert_eq!(answer, rows_of(1, OURS), "{kind:?}");
        // In a batch.
        let body = batch_of(
            version,
            &Child::Text("DELETE FROM shop.orders WHERE a = ?"),
            &[ttl(1)],
            None,
        );
        let RequestBody::Batch(got) = flow.changed(BATCH, &body) else {
            panic!("no BATCH")
        };
        let BatchQuerySubj::QueryString(text) = &got.queries[0].subject else {
            panic!("no text")
        };
        assert_eq!(text, "DELETE FROM shop_v2.orders_2026 WHERE a = ?");
        told(&mut flow, 7, RESULT, &[0, 0, 0, 1]);
        // What is defined, and what cannot be.
        let change = |names| [5_i32.to_be_bytes().to_vec(), change_of("TABLE", names)].concat();
        let (_, answer) = asked(
            &mut flow,
            "CREATE TABLE shop.orders (a int PRIMARY KEY)",
            &change(&THEIRS),
        );
        assert_eq!(answer, change(&OURS), "{kind:?}");
        let exists = |names: [&str; 2]| {
            let names = names.map(string).concat();
            [
                &0x2400_i32.to_be_bytes()[..],
                &string("it is there"),
                &names,
            ]
            .concat()
        };
        flow.changed(
            QUERY,
            &ask(version, "CREATE TABLE shop.orders (a int PRIMARY KEY)"),
        );
        assert_eq!(
            told(&mut flow, 7, ERROR, &exists(THEIRS)),
            exists(OURS),
            "{kind:?}"
        );
    }
}

#[test]
fn rows_are_read_back_by_another_implementation() {
    use cassandra_protocol::frame::message_response::ResponseBody;
    use cassandra_protocol::frame::message_result::ResResultBody;

    for kind in KINDS {
        let mut flow = rewrite(kind, RENAMES);
        let sent = kind.sent(0, 7, QUERY, &ask(kind.version, "SELECT a FROM shop.orders"));
        flow.requests(&sent);
        let answered = kind.sent(0x80, 7, RESULT, &rows_of(1, THEIRS));
        let passed = flow.responses(&answered);
        let frames = kind.read(&passed);
        let parsed = cassandra_protocol::frame::Envelope::from_buffer(
            &frames[0],
            cassandra_protocol::compression::Compression::None,
        );
        let body = parsed.unwrap().envelope.response_body().unwrap();
        let ResponseBody::Result(ResResultBody::Rows(rows)) = body else {
            panic!("no rows")
        };
        let table = rows.metadata.global_table_spec.unwrap();
        assert_eq!([&*table.ks_name, &*table.table_name], OURS, "{kind:?}");
        assert_eq!(rows.rows_count, 1);
    }
}

#[test]
fn a_connection_is_in_the_keyspace_that_its_client_knows() {
    for kind in KINDS {
        let version = kind.version;
        let mut flow = rewrite(kind, RENAMES);
        let (code, message) = refusal(&mut flow, QUERY, &ask(version, "SELECT * FROM orders"));
        assert_eq!(code, 0x2200);
        assert!(message.contains("name the keyspace"), "{message}");
        let used = asked(&mut flow, "USE shop", &set_keyspace("shop_v2"));
        assert_eq!(
            used,
            ("USE shop_v2".to_owned(), set_keyspace("shop")),
            "{kind:?}"
        );
        let got = asked(&mut flow, "SELECT * FROM orders", &rows_of(1, THEIRS));
        assert_eq!(
            got,
            ("SELECT * FROM orders_2026".to_owned(), rows_of(1, OURS))
        );
        // Nothing to be changed of the text, but of what is told.
        let got = asked(&mut flow, "SELECT * FROM x", &rows_of(0, ["shop_v2", "x"]));
        assert_eq!(
            got,
            ("SELECT * FROM x".to_owned(), rows_of(0, ["shop", "x"]))
        );
        asked(&mut flow, "USE other", &set_keyspace("other"));
        let got = asked(
            &mut flow,
            "SELECT * FROM orders",
            &rows_of(1, ["other", "orders"]),
        );
        let same = (
            "SELECT * FROM orders".to_owned(),
            rows_of(1, ["other", "orders"]),
        );
        assert_eq!(got, same);
        // Of what has nothing to do with it no response is kept back.
        flow.changed(QUERY, &ask(version, "SELECT * FROM x"));
        let answer = kind.sent(0x80, 7, RESULT, &rows_of(1, THEIRS));
        assert_eq!(flow.responses(&answer), answer);
        // A USE may stand behind more than is read of a text; then nobody knows.
        let far = format!("/* {} */ USE shop", "x".repeat(20_000));
        flow.changed(QUERY, &ask(version, &far));
        refusal(&mut flow, QUERY, &ask(version, "SELECT * FROM orders"));
        told(&mut flow, 7, RESULT, &set_keyspace("shop_v2"));
        for text in ["USE shop", &far] {
            let (_, message) = refusal(&mut flow, PREPARE, &prepare(version, text, None));
            assert!(message.contains("send it as a query"), "{message}");
        }
        if version < 5 {
            continue;
        }
        // Given with the request.
        let RequestBody::Query(got) =
            flow.changed(QUERY, &query(5, "SELECT * FROM orders", Some("shop")))
        else {
            panic!("no QUERY")
        };
        assert_eq!(got.query, "SELECT * FROM orders_2026");
        assert_eq!(got.query_params.keyspace.as_deref(), Some("shop_v2"));
        told(&mut flow, 7, RESULT, &[0, 0, 0, 1]);
        let passed =
            flow.requests(&kind.sent(0, 7, PREPARE, &prepare(5, "SELECT a FROM x", Some("shop"))));
        assert_eq!(
            kind.read(&passed)[0][9..],
            prepare(5, "SELECT a FROM x", Some("shop_v2"))
        );
        told(&mut flow, 7, RESULT, &prepared_of(5, ["shop_v2", "x"]));
        let child = [Child::Text("DELETE FROM orders WHERE a = ?")];
        let passed = flow.requests(&kind.sent(0, 7, BATCH, &batch(5, &child, Some("shop"))));
        let child = [Child::Text("DELETE FROM orders_2026 WHERE a = ?")];
        assert_eq!(
            kind.read(&passed)[0][9..],
            batch(5, &child, Some("shop_v2"))
        );
    }
}

#[test]
fn a_keyspace_from_before_the_pipeline_is_the_databases() {
    let pipeline = || vec![step(&format!("transform = \"rewrite\"\n{RENAMES}"))].into();
    for kind in KINDS {
        let version = kind.version;
        // Its answer is there before the pipeline is, or comes after it.
        for is_answered in [true, false] {
            for (keyspace, may) in [("shop", false), ("shop_v2", true), ("other", true)] {
                let mut flow = Edits::new(kind, Vec::new());
                let text = format!("USE {keyspace}");
                let sent = kind.sent(0, 7, QUERY, &ask(version, &text));
                assert_eq!(flow.requests(&sent), sent);
                let answer = |flow: &mut Edits| told(flow, 7, RESULT, &set_keyspace(keyspace));
                if is_answered {
                    answer(&mut flow);
                }
                flow.editor.becomes(pipeline(), Caller::default());
                if !is_answered {
                    refusal(&mut flow, QUERY, &ask(version, "SELECT * FROM x"));
                    answer(&mut flow);
                }
                if may {
                    asked(&mut flow, "SELECT * FROM x", &[0, 0, 0, 1]);
                } else {
                    let body = ask(version, "SELECT * FROM x");
                    let (_, message) = refusal(&mut flow, QUERY, &body);
                    assert!(message.contains("send USE again"), "{message}");
                }
                if version == 5 {
                    let body = query(5, "SELECT * FROM x", Some("shop"));
                    assert_eq!(
                        queried(&mut flow, &body).1.keyspace.as_deref(),
                        Some("shop_v2")
                    );
                    told(&mut flow, 7, RESULT, &[0, 0, 0, 1]);
                }
                let used = asked(&mut flow, "USE shop", &set_keyspace("shop_v2"));
                assert_eq!(used.1, set_keyspace("shop"));
                let got = asked(&mut flow, "SELECT * FROM orders", &[0, 0, 0, 1]);
                assert_eq!(got.0, "SELECT * FROM orders_2026", "{kind:?} {keyspace}");
            }
        }
    }
}

#[test]
fn events_tell_of_what_the_client_knows() {
    for kind in KINDS {
        let mut flow = rewrite(kind, RENAMES);
        let event =
            |target, names: &[&str]| [string("SCHEMA_CHANGE"), change_of(target, names)].concat();
        for (target, theirs, ours) in [
            ("TABLE", &THEIRS[..], &OURS[..]),
            ("KEYSPACE", &["shop_v2"], &["shop"]),
            (
                "TYPE",
                &["shop_v2", "orders_2026"],
                &["shop", "orders_2026"],
            ),
            ("TABLE", &["other", "orders"], &["other", "orders"]),
        ] {
            let got = told(&mut flow, -1, EVENT, &event(target, theirs));
            assert_eq!(got, event(target, ours), "{kind:?} {target}");
        }
        // What the database has under names that mean something else.
        for (target, hidden) in [
            ("KEYSPACE", &["shop"][..]),
            ("TABLE", &["shop_v2", "orders"]),
        ] {
            let got = told(&mut flow, -1, EVENT, &event(target, hidden));
            assert_eq!(got, Vec::<u8>::new(), "{kind:?} {target}");
        }
        let other = [
            string("STATUS_CHANGE"),
            string("UP"),
            vec![4, 1, 2, 3, 4, 0, 0, 0, 1],
        ]
        .concat();
        assert_eq!(told(&mut flow, -1, EVENT, &other), other);
    }
}

/// Legal texts whose tokens touch where something is put between them.
#[test]
fn what_is_put_between_tokens_that_touch_stays_apart() {
    let kind = KINDS[3];
    let settings = "max_ttl = \"100s\"\ndefault_ttl = \"50s\"\ntimestamps = \"server\"";
    for (text, expected) in [
        (
            "update b.\"w1\"set v='x'where id=4",
            "update b.\"w1\" USING TTL 50 set v='x'where id=4",
        ),
        (
            "begin batch insert into b.w(i)values(7)apply batch",
            "begin batch insert into b.w(i)values(7) USING TTL 50 apply batch",
        ),
        (
            "begin batch insert into b.w(i)values(7)insert into b.w(i)values(8)update b.\"w\"set v=1where i=1 apply batch",
            "",
        ),
        (
            "begin batch insert into b.w(i)values(7)insert into b.w(i)values(8)delete v from b.w where i=1 apply batch",
            "begin batch insert into b.w(i)values(7) USING TTL 50 insert into b.w(i)values(8) USING TTL 50 delete v from \
             b.w where i=1 apply batch",
        ),
        (
            "begin batch insert into b.w(i)values(7)update b.w set v='b'where i=1 apply batch",
            "begin batch insert into b.w(i)values(7) USING TTL 50 update b.w USING TTL 50 set v='b'where i=1 apply batch",
        ),
        (
            "insert into b.w json'{}'default unset",
            "insert into b.w json'{}'default unset USING TTL 50",
        ),
        (
            "update b.w/**/set v='x'where i=4",
            "update b.w USING TTL 50 /**/set v='x'where i=4",
        ),
        (
            "begin batch insert into b.w(i)values(7)using timestamp ?and ttl ?apply batch",
            "begin batch insert into b.w(i)values(7)using timestamp ?and ttl ?apply batch",
        ),
        (
            "begin batch insert into b.w(i)values(7)using timestamp ?apply batch",
            "begin batch insert into b.w(i)values(7)using timestamp ? AND TTL 50 apply batch",
        ),
        (
            "begin batch insert into b.w(i)values(7)using ttl ?and timestamp 5/**/update b.w using ttl 900 set v=1 where \
             i=1 apply batch",
            "begin batch insert into b.w(i)values(7)USING TTL ? /**/update b.w using ttl 100 set v=1 where i=1 apply batch",
        ),
        (
            "update b.\"w\"using timestamp 5 set v=1 where i=2",
            "update b.\"w\" USING TTL 50 set v=1 where i=2",
        ),
    ] {
        let mut flow = rewrite(kind, settings);
        let sent = long_string(text);
        let own = parameters(kind.version, &[], None, None);
        if expected.is_empty() {
            // A number that touches a word is none that is known.
            let (_, message) = refusal(&mut flow, QUERY, &[sent, own].concat());
            assert!(message.contains("does not understand"), "{message}");
            continue;
        }
        let bytes = flow.requests(&kind.sent(0, 7, QUERY, &[sent, own].concat()));
        let frames = kind.read(&bytes);
        let got = String::from_utf8_lossy(&frames[0]).into_owned();
        assert!(got.contains(expected), "{got}");
    }
}

#[test]
fn what_names_nothing_that_is_called_otherwise_passes_byte_for_byte() {
    for kind in KINDS {
        let mut flow = rewrite(kind, RENAMES);
        for text in [
            "SELECT * FROM other.orders_x",
            "this is no CQL at all",
            "SELECT * FROM other.t WHERE a = 'shops'",
            "INSERT INTO other.t (shop) VALUES ('shop')",
        ] {
            let sent = kind.sent(0, 3, QUERY, &ask(kind.version, text));
            flow.frees(3);
            assert_eq!(flow.requests(&sent), sent, "{kind:?} {text}");
        }
        let answer = kind.sent(0x80, 3, RESULT, &rows_of(1, ["other", "t"]));
        assert_eq!(flow.responses(&answer), answer);
        let unknown = execute_with(
            kind.version,
            b"unknown",
            parameters(kind.version, &[], None, None),
        );
        assert_eq!(refusal(&mut flow, EXECUTE, &unknown).0, 0x2500);
    }
}

#[test]
fn so_much_of_a_batch_is_followed_and_no_more() {
    let kind = KINDS[3];
    let mut flow = rewrite(kind, RENAMES);
    let long = format!("DELETE FROM shop.x WHERE a = '{}'", "x".repeat(100_000));
    let mut few = vec![Child::Text(&long), Child::Text(&long)];
    let passed = flow.requests(&kind.sent(0, 7, BATCH, &batch(4, &few, None)));
    assert_eq!(kind.read(&passed).len(), 1);
    few.push(Child::Text(&long));
    let (_, message) = refusal(&mut flow, BATCH, &batch(4, &few, None));
    assert!(message.contains("does not understand"), "{message}");
    // What is refused for is the name.
    let other = long.replace("shop", "other");
    let other = [(); 5].map(|()| Child::Text(&other));
    let sent = kind.sent(0, 8, BATCH, &batch(4, &other, None));
    assert_eq!(flow.requests(&sent), sent);
}

#[test]
fn several_things_are_rewritten_at_once() {
    for kind in KINDS {
        let settings = format!("{RENAMES}\nmax_ttl = \"100s\"\ndefault_ttl = \"50s\"");
        let mut flow = rewrite(kind, &settings);
        let got = asked(
            &mut flow,
            "UPDATE shop.orders SET a = 1 WHERE b = 2",
            &[0, 0, 0, 1],
        );
        assert_eq!(
            got.0,
            "UPDATE shop_v2.orders_2026 USING TTL 50 SET a = 1 WHERE b = 2"
        );
        let text = "INSERT INTO shop.orders (a) VALUES (?) USING TTL ?";
        let own = parameters(kind.version, &[ttl(1), ttl(500)], None, None);
        let (text, got) = queried(&mut flow, &[long_string(text), own].concat());
        assert_eq!(
            text,
            "INSERT INTO shop_v2.orders_2026 (a) VALUES (?) USING TTL ?"
        );
        assert_eq!(bound(&got), [ttl(1), ttl(100)]);
    }
}
