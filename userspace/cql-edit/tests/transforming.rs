//! Requests and responses, as each transform changes them.

use crate::support::edit::*;
use crate::support::values::*;
use crate::support::*;
use cassandra_protocol::compression::Compression;
use cassandra_protocol::consistency::Consistency;
use cassandra_protocol::frame::Envelope;
use cassandra_protocol::frame::message_request::RequestBody;
use cql_edit::Caller;

mod paging;

#[test]
fn consistency_is_raised_lowered_and_forced() {
    let cases = [
        (
            "at_least = \"LOCAL_QUORUM\"",
            Consistency::One,
            Consistency::LocalQuorum,
        ),
        (
            "at_least = \"LOCAL_QUORUM\"",
            Consistency::All,
            Consistency::All,
        ),
        (
            "at_most = \"QUORUM\"",
            Consistency::All,
            Consistency::Quorum,
        ),
        ("at_most = \"QUORUM\"", Consistency::One, Consistency::One),
        ("exactly = \"TWO\"", Consistency::All, Consistency::Two),
        ("exactly = \"TWO\"", Consistency::Any, Consistency::Two),
    ];
    for kind in KINDS {
        for (setting, asked, expected) in cases {
            let mut flow = Edits::of(kind, &format!("transform = \"consistency\"\n{setting}"));
            let mut body = ask(kind.version, &table(1));
            let at = 4 + table(1).len();
            let code: i16 = asked.into();
            body[at..at + 2].copy_from_slice(&code.to_be_bytes());
            let RequestBody::Query(got) = flow.changed(QUERY, &body) else {
                panic!("no query")
            };
            assert_eq!(got.query, table(1));
            assert_eq!(got.query_params.consistency, expected, "{kind:?} {setting}");
            assert_eq!(flow.noted.changed, usize::from(asked != expected));
            let children = [
                Child::Text("INSERT INTO ks.t (k) VALUES (1)"),
                Child::Id(b"id"),
            ];
            let mut body = batch(kind.version, &children, None);
            let at = body.len() - if kind.version == 5 { 6 } else { 3 };
            body[at..at + 2].copy_from_slice(&code.to_be_bytes());
            let RequestBody::Batch(got) = flow.changed(BATCH, &body) else {
                panic!("no batch")
            };
            assert_eq!(got.consistency, expected, "{kind:?} {setting}");
            assert_eq!(got.queries.len(), 2);
        }
    }
}

#[test]
fn a_serial_level_is_forced_where_there_is_one() {
    for kind in KINDS {
        let setting = "transform = \"consistency\"\nserial = \"LOCAL_SERIAL\"";
        for (asked, changes) in [(Some(8_u16), 1), (Some(9), 0), (None, 0)] {
            let mut flow = Edits::of(kind, setting);
            let mut body = long_string(&table(1));
            body.extend([0, 1]);
            let flags = if asked.is_some() { 0x10_u32 } else { 0 }.to_be_bytes();
            body.extend(if kind.version == 5 {
                &flags[..]
            } else {
                &flags[3..]
            });
            body.extend(asked.iter().flat_map(|level| level.to_be_bytes()));
            let RequestBody::Query(got) = flow.changed(QUERY, &body) else {
                panic!("no query")
            };
            let expected = asked.map(|_| Consistency::LocalSerial);
            let got = got.query_params;
            assert_eq!(got.serial_consistency, expected, "{kind:?} {asked:?}");
            assert_eq!(got.consistency, Consistency::One);
            assert_eq!(flow.noted.changed, changes);
        }
    }
}

/// Whether a request at ONE goes on at QUORUM.
fn is_raised(flow: &mut Edits, opcode: u8, body: &[u8]) -> bool {
    let level = match flow.changed(opcode, body) {
        RequestBody::Query(query) => query.query_params.consistency,
        RequestBody::Execute(execute) => execute.query_parameters.consistency,
        RequestBody::Batch(batch) => batch.consistency,
        other => panic!("{other:?}"),
    };
    assert!([Consistency::One, Consistency::Quorum].contains(&level));
    level == Consistency::Quorum
}

#[test]
fn consistency_is_that_of_a_kind_and_a_keyspace() {
    const READ: &str = "SELECT v FROM shop.t WHERE k = ?";
    const WRITE: &str = "INSERT INTO shop.t (k) VALUES (?)";
    const ELSEWHERE: &str = "INSERT INTO yard.t (k) VALUES (?)";
    // Of a read, a write, a write elsewhere; a batch of the first write, and one of the second.
    let cases = [
        ("", [true; 5]),
        ("kinds = [\"reads\"]", [true, false, false, false, false]),
        ("kinds = [\"writes\"]", [false, true, true, true, true]),
        (
            "kinds = [\"select\", \"batch\"]",
            [true, false, false, true, true],
        ),
        ("keyspaces = [\"shop\"]", [true, true, false, true, false]),
        (
            "kinds = [\"writes\"]\nkeyspaces = [\"shop\"]",
            [false, true, false, true, false],
        ),
    ];
    for kind in KINDS {
        let version = kind.version;
        for (limits, [read, write, elsewhere, of_write, of_elsewhere]) in cases {
            let settings = format!("transform = \"consistency\"\nat_least = \"QUORUM\"\n{limits}");
            let mut flow = Edits::of(kind, &settings);
            for (n, text, raised, of_batch) in [
                (1, READ, read, None),
                (2, WRITE, write, Some(of_write)),
                (3, ELSEWHERE, elsewhere, Some(of_elsewhere)),
            ] {
                let of = format!("{kind:?} {limits:?} {text}");
                assert_eq!(
                    is_raised(&mut flow, QUERY, &ask(version, text)),
                    raised,
                    "{of}"
                );
                let id = [n; 16];
                assert_eq!(prepares(&mut flow, text, &id), text);
                let execute = execute_with(version, &id, parameters(version, &[], None, None));
                assert_eq!(is_raised(&mut flow, EXECUTE, &execute), raised, "{of}");
                for child in [Child::Text(text), Child::Id(&id)] {
                    let Some(raised) = of_batch else { continue };
                    let body = batch(version, &[child], None);
                    assert_eq!(is_raised(&mut flow, BATCH, &body), raised, "{of}");
                }
            }
            // Without its own keyspace it is in that of the flow, and while nobody knows that, it may be in any.
            let unqualified = ask(version, "SELECT v FROM t");
            let is_meant = |flow: &mut Edits| is_raised(flow, QUERY, &unqualified);
            assert_eq!(is_meant(&mut flow), read, "{kind:?} {limits:?}");
            for keyspace in ["yard", "shop"] {
                let sent = kind.sent(0, 1, QUERY, &ask(version, &format!("USE {keyspace}")));
                flow.requests(&sent);
                answered(&mut flow, 1, &set_keyspace(keyspace));
                let expected = read && (keyspace == "shop" || !limits.contains("keyspaces"));
                assert_eq!(
                    is_meant(&mut flow),
                    expected,
                    "{kind:?} {limits:?} {keyspace}"
                );
            }
            // What is not understood may be of any kind. What was prepared elsewhere is prepared again, unless it
            // makes no difference.
            assert!(
                is_raised(&mut flow, QUERY, &ask(version, "!")),
                "{kind:?} {limits:?}"
            );
            let unknown = execute_with(version, b"unknown", parameters(version, &[], None, None));
            if limits.is_empty() {
                assert!(is_raised(&mut flow, EXECUTE, &unknown));
            } else {
                assert_eq!(
                    refusal(&mut flow, EXECUTE, &unknown).0,
                    0x2500,
                    "{limits:?}"
                );
            }
        }
    }
}

#[test]
fn one_request_of_so_many_is_traced() {
    for kind in KINDS {
        let mut flow = Edits::of(kind, "transform = \"tracing\"\none_in = 3");
        let flags: Vec<u8> = (0..6)
            .map(|stream| {
                let sent = kind.sent(0, stream, QUERY, &ask(kind.version, &table(1)));
                kind.read(&flow.requests(&sent))[0][1]
            })
            .collect();
        assert_eq!(flags, [2, 0, 0, 2, 0, 0], "{kind:?}");
    }
}

#[test]
fn the_transform_that_is_shown_is_one_of_these() {
    let page = include_str!("../../../docs/writing-a-transform.md");
    let shown = page.split("```rust\n").nth(1).unwrap();
    let shown = shown.split("```").next().unwrap();
    assert_eq!(shown, include_str!("../src/transforms/tracing.rs"));
}

/// Rows of one column of addresses; `name` is its name.
fn addresses(name: &str, ips: &[[u8; 4]]) -> Vec<u8> {
    let mut body = [2_i32, 1, 1].map(i32::to_be_bytes).concat();
    body.extend([string("system"), string("local"), string(name)].concat());
    body.extend([0, 0x10]);
    body.extend((ips.len() as i32).to_be_bytes());
    for ip in ips {
        body.extend(4_i32.to_be_bytes());
        body.extend(ip);
    }
    body
}

#[test]
fn a_driver_behind_a_virtual_address_finds_no_other() {
    const OWN: [u8; 4] = [10, 9, 0, 10];
    let nodes = [[192, 0, 2, 7], [192, 0, 2, 8]];
    for kind in KINDS {
        let mut flow = dialled(kind, "10.9.0.10:9042");
        let mut answer = |opcode, body: &[u8], response: &[u8]| {
            let asked = kind.sent(0, 3, opcode, body);
            let passed = flow.requests(&asked);
            assert_eq!(kind.read(&passed).len(), 1, "{kind:?}");
            let answered = kind.sent(0x80, 3, RESULT, response);
            let mut told = Vec::new();
            for chunk in answered.chunks(7) {
                told.extend(flow.responses(chunk));
            }
            kind.read(&told)[0][9..].to_vec()
        };
        let of = |text: &str| ask(kind.version, text);
        let local = answer(
            QUERY,
            &of("SELECT rpc_address FROM system.local WHERE key = 'local'"),
            &addresses("rpc_address", &nodes[..1]),
        );
        assert_eq!(local, addresses("rpc_address", &[OWN]), "{kind:?}");
        for table in ["peers", "peers_v2"] {
            let text = format!("select * from system.{table}");
            let peers = answer(QUERY, &of(&text), &addresses("peer", &nodes));
            assert_eq!(peers, addresses("peer", &[]), "{kind:?}");
        }
        // Neither another table nor another column.
        let text = "SELECT rpc_address FROM shop.local";
        let other = addresses("rpc_address", &nodes);
        assert_eq!(answer(QUERY, &of(text), &other), other);
        let other = addresses("tokens", &nodes);
        assert_eq!(
            answer(QUERY, &of("SELECT * FROM system.local"), &other),
            other
        );

        // Prepared: known by its id.
        let text = "SELECT * FROM system.local";
        let response = prepared(b"id");
        assert_eq!(
            answer(PREPARE, &prepare(kind.version, text, None), &response),
            response
        );
        let mut execute = short_bytes(b"id");
        if kind.version == 5 {
            execute.extend(short_bytes(b"of the metadata"));
        }
        execute.extend([0, 1]);
        let skip_metadata = 2_u32.to_be_bytes();
        execute.extend(if kind.version == 5 {
            &skip_metadata[..]
        } else {
            &skip_metadata[3..]
        });
        let local = answer(EXECUTE, &execute, &addresses("native_address", &nodes[..1]));
        assert_eq!(local, addresses("native_address", &[OWN]), "{kind:?}");
        let unknown = [short_bytes(b"another id"), execute[4..].to_vec()].concat();
        let asked = kind.sent(0, 4, EXECUTE, &unknown);
        assert_eq!(kind.read(&flow.requests(&asked)).len(), 0);
        let told = kind.read(&flow.editor.answers().unwrap());
        assert_eq!(told[0][9..13], 0x2500_i32.to_be_bytes(), "{kind:?}");
        assert!(told[0].ends_with(&short_bytes(b"another id")));

        // Of nodes that come and go it hears nothing, of the schema it does.
        for (event, passes) in [
            ("STATUS_CHANGE", false),
            ("TOPOLOGY_CHANGE", false),
            ("SCHEMA_CHANGE", true),
        ] {
            let body = [
                string(event),
                string("UP"),
                vec![4, 192, 0, 2, 7, 0, 0, 35, 82],
            ]
            .concat();
            let told = flow.responses(&kind.sent(0x80, -1, EVENT, &body));
            assert_eq!(
                kind.read(&told).len(),
                usize::from(passes),
                "{kind:?} {event}"
            );
        }
    }
}

/// A flow to a virtual address, of which its driver is told.
fn dialled(kind: Kind, address: &str) -> Edits {
    let pipeline = || vec![step("transform = \"rewrite\"\naddresses = \"dialled\"")];
    let mut flow = Edits::new(kind, pipeline());
    let caller = Caller {
        dialled: Some(address.parse().unwrap()),
        ..Caller::default()
    };
    flow.editor.becomes(pipeline().into(), caller);
    flow
}

/// All ids are out at once, and are answered from the last to the first: each answer is that of its
/// question.
#[test]
fn every_id_is_out_and_each_answer_is_that_of_its_question() {
    let answers = [[192, 0, 2, 7], [10, 9, 0, 10]].map(|ip| addresses("rpc_address", &[ip]));
    let asks_for_one = |stream: i16| stream % 3 == 1;
    for kind in [kind(4, Compression::None), kind(5, Compression::Lz4)] {
        let mut flow = dialled(kind, "10.9.0.10:9042");
        for stream in 0..=i16::MAX {
            let table = match asks_for_one(stream) {
                true => "system.local",
                false => "shop.local",
            };
            let text = format!("SELECT rpc_address FROM {table}");
            let asked = kind.sent(0, stream, QUERY, &ask(kind.version, &text));
            assert_eq!(flow.requests(&asked), asked);
        }
        for stream in (0..=i16::MAX).rev() {
            let answered = kind.sent(0x80, stream, RESULT, &answers[0]);
            let told = flow.responses(&answered);
            let [told] = &kind.read(&told)[..] else {
                panic!("one frame")
            };
            assert_eq!(told[2..4], stream.to_be_bytes());
            let expected = &answers[usize::from(asks_for_one(stream))];
            assert_eq!(told[9..], expected[..], "{kind:?} {stream}");
        }
    }
}

#[test]
fn reads_of_the_servers_own_tables_keep_their_level() {
    const LEVELS: [&str; 3] = [
        "at_least = \"QUORUM\"",
        "exactly = \"QUORUM\"",
        "at_least = \"QUORUM\"\nkinds = [\"reads\"]",
    ];
    for kind in KINDS {
        let version = kind.version;
        for level in LEVELS {
            let mut flow = Edits::of(kind, &format!("transform = \"consistency\"\n{level}"));
            for (n, text, raised) in [
                (1, "SELECT * FROM system.local WHERE key='local'", false),
                (2, "select * from \"system_schema\".columns", false),
                (3, "SELECT * FROM system_views.clients", false),
                (4, "SELECT * FROM shop.system", true),
                (5, "SELECT * FROM \"System\".local", true),
            ] {
                assert_eq!(
                    is_raised(&mut flow, QUERY, &ask(version, text)),
                    raised,
                    "{text}"
                );
                let id = [n; 16];
                assert_eq!(prepares(&mut flow, text, &id), text);
                let execute = execute_with(version, &id, parameters(version, &[], None, None));
                assert_eq!(is_raised(&mut flow, EXECUTE, &execute), raised, "{text}");
            }
        }
        let named =
            "transform = \"consistency\"\nat_least = \"QUORUM\"\nkeyspaces = [\"system_auth\"]";
        let mut flow = Edits::of(kind, named);
        let text = "SELECT * FROM system_auth.roles";
        assert!(is_raised(&mut flow, QUERY, &ask(version, text)));
    }
}

#[test]
fn null_answers_what_is_asked_of_data() {
    for kind in KINDS {
        let mut flow = Edits::of(kind, "transform = \"null\"");
        for text in [
            "SELECT * FROM system.local",
            "USE shop",
            "CREATE TABLE shop.t (k int PRIMARY KEY)",
        ] {
            let sent = kind.sent(0, 1, QUERY, &ask(kind.version, text));
            assert_eq!(flow.requests(&sent), sent, "{kind:?} {text}");
        }
        answered(&mut flow, 1, &set_keyspace("shop"));
        let batch = batch(kind.version, &[Child::Id(b"id")], None);
        for (opcode, body) in [
            (QUERY, ask(kind.version, "SELECT * FROM shop.t")),
            (QUERY, ask(kind.version, "INSERT INTO t (k) VALUES (1)")),
            (BATCH, batch),
        ] {
            let sent = kind.sent(0, 9, opcode, &body);
            assert_eq!(kind.read(&flow.requests(&sent)).len(), 0, "{kind:?}");
            let told = flow.editor.answers().unwrap();
            let void = frame(kind.version | 0x80, 0, 9, RESULT, &[0, 0, 0, 1]);
            assert_eq!(kind.read(&told), [void]);
        }
        assert_eq!((flow.noted.answered, flow.noted.changed), (3, 0));
    }
}
