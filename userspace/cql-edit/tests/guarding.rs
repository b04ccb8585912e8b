//! Requests that `guard` refuses, and requests that it lets pass.

use cassandra_protocol::compression::Compression;
use md5::{Digest, Md5};

use crate::support::edit::*;
use crate::support::values::*;
use crate::support::*;

/// Whether a request passes; its refusal's code and message otherwise.
fn passes(flow: &mut Edits, stream: i16, opcode: u8, body: &[u8]) -> Result<(), (i32, String)> {
    let kind = flow.kind;
    let asked = kind.sent(0, stream, opcode, body);
    let passed = kind.read(&flow.requests(&asked)).len();
    let Some(told) = flow.editor.answers() else {
        assert_eq!(passed, 1);
        return Ok(());
    };
    assert_eq!(passed, 0);
    let [told] = &kind.read(&told)[..] else {
        panic!("one answer")
    };
    let code = i32::from_be_bytes(told[9..13].try_into().unwrap());
    let length = usize::from(u16::from_be_bytes([told[13], told[14]]));
    Err((
        code,
        String::from_utf8(told[15..15 + length].to_vec()).unwrap(),
    ))
}

#[test]
fn what_is_prepared_is_guarded_when_it_is_prepared_and_after_that() {
    for kind in KINDS {
        let settings = "transform = \"guard\"\nrefuse = [\"truncate\", \"writes\"]\nmax_batch = 2";
        let mut flow = Edits::of(kind, settings);
        let version = kind.version;
        let prepare = |text: &str| prepare(version, text, None);
        let (code, message) = passes(&mut flow, 1, PREPARE, &prepare("TRUNCATE ks.t")).unwrap_err();
        assert_eq!(
            (code, message.as_str()),
            (
                0x2200,
                "underpass: refused by rule r: TRUNCATE is not allowed"
            )
        );
        passes(
            &mut flow,
            1,
            PREPARE,
            &prepare("SELECT v FROM ks.t WHERE k = ?"),
        )
        .unwrap();
        answered(&mut flow, 1, &prepared(b"good"));
        let execute = |id: &[u8]| {
            let mut body = short_bytes(id);
            if version == 5 {
                body.extend(short_bytes(b"of the metadata"));
            }
            body.extend([0, 1, 0, 0, 0, 0]);
            body.truncate(body.len() - if version == 5 { 0 } else { 3 });
            body
        };
        passes(&mut flow, 2, EXECUTE, &execute(b"good")).unwrap();
        let (code, _) = passes(&mut flow, 3, EXECUTE, &execute(b"somebody's")).unwrap_err();
        assert_eq!(code, 0x2500, "{kind:?}: to be prepared again");
        let children = [Child::Id(b"good")];
        let (_, message) =
            passes(&mut flow, 4, BATCH, &batch(version, &children, None)).unwrap_err();
        assert!(
            message.ends_with(": DELETE is not allowed")
                || message.ends_with(": BATCH is not allowed"),
            "{message}"
        );

        // Another flow of the rule does not know what was prepared under another pipeline.
        let mut other = Edits::of(
            kind,
            "transform = \"guard\"\nmax_batch = 2\nmode = \"shadow\"",
        );
        let three = [
            Child::Text("DELETE FROM ks.t WHERE k = 1"),
            Child::Id(b"x"),
            Child::Id(b"y"),
        ];
        passes(&mut other, 1, BATCH, &batch(version, &three, None)).unwrap();
    }
}

#[test]
fn a_batch_of_too_many_is_refused_whatever_is_in_it() {
    const TEXT: &str = "INSERT INTO ks.t (k) VALUES (1)";
    for kind in KINDS {
        let mut flow = Edits::of(kind, "transform = \"guard\"\nmax_batch = 2");
        prepares(&mut flow, TEXT, b"good");
        let [text, id] = [|| Child::Text(TEXT), || Child::Id(b"good")];
        let mut may = |children: &[Child<'_>]| {
            passes(&mut flow, 4, BATCH, &batch(kind.version, children, None))
        };
        for two in [[text(), text()], [id(), id()], [text(), id()]] {
            assert_eq!(may(&two), Ok(()), "{kind:?}");
        }
        for three in [[text(), text(), text()], [id(), id(), id()]] {
            let (code, message) = may(&three).unwrap_err();
            assert_eq!(code, 0x2200, "{kind:?}");
            assert!(
                message.ends_with(": a batch has 3 statements, and 2 are allowed"),
                "{kind:?}: {message}"
            );
        }
    }
}

#[test]
fn an_unqualified_table_is_that_of_the_keyspace_that_the_flow_is_in() {
    for kind in KINDS {
        let settings = "transform = \"guard\"\ntables = [\"shop.t\", \"yard.u\"]";
        let mut flow = Edits::of(kind, settings);
        let ask = |text: &str| ask(kind.version, text);
        let may = |flow: &mut Edits, text: &str| passes(flow, 9, QUERY, &ask(text)).is_ok();
        assert!(!may(&mut flow, "SELECT * FROM t"), "{kind:?}: none yet");
        passes(&mut flow, 1, QUERY, &ask("/* a comment */ use shop")).unwrap();
        assert!(!may(&mut flow, "SELECT * FROM t"), "its answer is out");
        answered(&mut flow, 1, &set_keyspace("shop"));
        assert!(may(&mut flow, "SELECT * FROM t") && !may(&mut flow, "SELECT * FROM u"));
        assert!(!may(&mut flow, "USE secret"));
        // One that fails changes nothing.
        passes(&mut flow, 1, QUERY, &ask("USE yard")).unwrap();
        let error = kind.sent(0x80, 1, ERROR, &[0, 0, 0x22, 0, 0, 0]);
        assert_eq!(flow.responses(&error), error);
        assert!(may(&mut flow, "SELECT * FROM t"));
        // Of two at once nobody knows which was last.
        for (stream, keyspace) in [(1, "yard"), (2, "shop")] {
            passes(&mut flow, stream, QUERY, &ask(&format!("USE {keyspace}"))).unwrap();
        }
        answered(&mut flow, 2, &set_keyspace("shop"));
        answered(&mut flow, 1, &set_keyspace("yard"));
        assert!(!may(&mut flow, "SELECT * FROM t") && !may(&mut flow, "SELECT * FROM u"));
        passes(&mut flow, 1, QUERY, &ask("USE yard")).unwrap();
        answered(&mut flow, 1, &set_keyspace("yard"));
        assert!(may(&mut flow, "SELECT * FROM u"));
        // Prepared, it would change unseen.
        let body = prepare(kind.version, "USE shop", None);
        assert!(passes(&mut flow, 1, PREPARE, &body).is_err());
        if kind.version == 5 {
            let named = query(5, "SELECT * FROM t", Some("shop"));
            passes(&mut flow, 3, QUERY, &named).unwrap();
            let named = query(5, "SELECT * FROM u", Some("shop"));
            assert!(passes(&mut flow, 3, QUERY, &named).is_err());
            let named = prepare(5, "SELECT * FROM t", Some("shop"));
            passes(&mut flow, 4, PREPARE, &named).unwrap();
        }
    }
}

/// Cassandra obeys a keyspace in the parameters of any version, and reads those of a BATCH as it reads a QUERY's. The
/// protocol has neither, and other servers do not: nobody can say which table is meant.
#[test]
fn a_keyspace_where_the_protocol_has_none_is_not_guessed() {
    const VALUES: u32 = 0x01;
    const KEYSPACE: u32 = 0x80;
    for kind in KINDS {
        let flags = |flags: u32| match kind.version {
            5 => flags.to_be_bytes().to_vec(),
            _ => vec![flags as u8],
        };
        let named = |keyspace: &str| {
            [
                &(keyspace.len() as u16).to_be_bytes()[..],
                keyspace.as_bytes(),
            ]
            .concat()
        };
        let select = |keyspace: &str| {
            let text = long_string("SELECT v FROM t");
            [text, vec![0, 1], flags(KEYSPACE), named(keyspace)].concat()
        };
        let insert = |given: u32, before: &[u8], keyspace: &str| {
            let text = long_string("INSERT INTO t (k) VALUES (1)");
            let child = [vec![0, 0, 1, 0], text, vec![0, 0, 0, 1]].concat();
            [child, flags(given), before.to_vec(), named(keyspace)].concat()
        };
        let settings = "transform = \"guard\"\nnot_tables = [\"secret.t\"]";
        let mut flow = Edits::of(kind, settings);
        let mut stream = 0;
        let mut is_refused = |opcode, body: &[u8]| {
            stream += 1;
            passes(&mut flow, stream, opcode, body).is_err()
        };
        // Only v5 has it, and there it is what decides.
        let open = kind.version == 5;
        assert_eq!(is_refused(QUERY, &select("open")), !open, "{kind:?}");
        assert_eq!(
            is_refused(BATCH, &insert(KEYSPACE, &[], "open")),
            !open,
            "{kind:?}"
        );
        assert!(is_refused(QUERY, &select("secret")), "{kind:?}");
        assert!(
            is_refused(BATCH, &insert(KEYSPACE, &[], "secret")),
            "{kind:?}"
        );
        // In front of it no values that would move it.
        let moved = insert(VALUES | KEYSPACE, &[0, 0], "secret");
        assert!(is_refused(BATCH, &moved), "{kind:?}");
    }
}

#[test]
fn a_keyspace_that_is_called_like_the_servers_is_none_of_them() {
    for kind in KINDS {
        let settings = "transform = \"guard\"\nnot_tables = [\"system_secret.t\", \"system_auth.roles\", \"shop*\"]";
        let mut flow = Edits::of(kind, settings);
        for (stream, (text, is_closed)) in [
            ("SELECT v FROM system_secret.t", true),
            ("SELECT role FROM system_auth.roles", true),
            ("SELECT v FROM shop.carts", true),
            ("SELECT key FROM system.local", false),
            ("SELECT member FROM system_auth.role_members", false),
        ]
        .into_iter()
        .enumerate()
        {
            let body = query(kind.version, text, None);
            let passed = passes(&mut flow, stream as i16 + 1, QUERY, &body);
            assert_eq!(passed.is_err(), is_closed, "{kind:?}: {text}");
        }
    }
}

/// A Friday at noon by UTC, in µs since 1970, and 23:00 of it.
const NOON: i64 = 1_795_780_800_000_000;
const NIGHT: i64 = NOON + 11 * 3_600_000_000;

/// An EXECUTE of this id.
fn execute(version: u8, id: &[u8]) -> Vec<u8> {
    let mut body = short_bytes(id);
    if version == 5 {
        body.extend(short_bytes(b"of the metadata"));
    }
    body.extend([0, 1, 0]);
    body.extend(vec![0; if version == 5 { 3 } else { 0 }]);
    body
}

#[test]
fn a_guard_is_there_in_its_hours_and_knows_what_was_prepared_outside_of_them() {
    let settings = "transform = \"guard\"\nrefuse = [\"writes\"]\n\
                    when = { from = \"22:00\", to = \"06:00\", tz = \"UTC\" }";
    for kind in KINDS {
        let version = kind.version;
        let mut flow = Edits::of(kind, settings);
        let write = ask(version, "DELETE FROM ks.t WHERE k = 1");
        // Nobody says what time it is.
        passes(&mut flow, 1, QUERY, &write).unwrap_err();
        flow.editor.set_time(NOON);
        passes(&mut flow, 1, QUERY, &write).unwrap();
        answered(&mut flow, 1, &1_i32.to_be_bytes());
        let text = "DELETE FROM ks.t WHERE k = ?";
        passes(&mut flow, 2, PREPARE, &prepare(version, text, None)).unwrap();
        answered(&mut flow, 2, &prepared(b"write"));
        let execute = |id: &[u8]| execute(version, id);
        for id in [&b"write"[..], b"somebody's"] {
            passes(&mut flow, 3, EXECUTE, &execute(id)).unwrap();
            answered(&mut flow, 3, &1_i32.to_be_bytes());
        }
        flow.editor.set_time(NIGHT);
        passes(&mut flow, 4, QUERY, &write).unwrap_err();
        let (code, message) = passes(&mut flow, 4, EXECUTE, &execute(b"write")).unwrap_err();
        assert_eq!(code, 0x2200, "{kind:?}: {message}");
        let (code, _) = passes(&mut flow, 4, EXECUTE, &execute(b"somebody's")).unwrap_err();
        assert_eq!(code, 0x2500, "{kind:?}: to be prepared again");
        flow.editor.set_time(NOON);
        passes(&mut flow, 4, EXECUTE, &execute(b"write")).unwrap();
    }
}

#[test]
fn a_use_that_was_prepared_while_the_guard_was_away_leaves_the_keyspace_unknown() {
    let settings = "transform = \"guard\"\ntables = [\"shop\"]\n\
                    when = { from = \"22:00\", to = \"06:00\", tz = \"UTC\" }";
    for kind in KINDS {
        let version = kind.version;
        let mut flow = Edits::of(kind, settings);
        flow.editor.set_time(NOON);
        passes(&mut flow, 1, QUERY, &ask(version, "USE shop")).unwrap();
        answered(&mut flow, 1, &set_keyspace("shop"));
        passes(&mut flow, 1, PREPARE, &prepare(version, "USE secret", None)).unwrap();
        answered(&mut flow, 1, &prepared(b"use"));
        passes(&mut flow, 1, EXECUTE, &execute(version, b"use")).unwrap();
        answered(&mut flow, 1, &set_keyspace("secret"));
        flow.editor.set_time(NIGHT);
        let (_, message) =
            passes(&mut flow, 1, QUERY, &ask(version, "SELECT * FROM t")).unwrap_err();
        assert!(message.contains("closed"), "{kind:?}: {message}");
    }
}

const AUTH_RESPONSE: u8 = 0x0F;
const AUTH_SUCCESS: u8 = 0x10;

/// A flow of a client that says it is this driver, and has logged in as this user.
fn of(kind: Kind, settings: &str, driver: Option<&str>, user: Option<&str>) -> Edits {
    let mut flow = Edits::new(kind, vec![]);
    let caller = cql_edit::Caller {
        rule: "r".into(),
        ..cql_edit::Caller::default()
    };
    flow.editor = cql_edit::Editor::new(vec![step(settings)].into(), caller);
    let compression = match kind.compression {
        Compression::None => None,
        Compression::Lz4 => Some(("COMPRESSION", "lz4")),
        Compression::Snappy => Some(("COMPRESSION", "snappy")),
    };
    let driver = driver.map(|name| ("Driver_Name", name));
    let options: Vec<_> = compression.into_iter().chain(driver).collect();
    flow.requests(&startup(kind.version, &options));
    let Some(user) = user else {
        flow.responses(&frame(kind.version | 0x80, 0, 0, READY, &[]));
        return flow;
    };
    let class = string("org.apache.cassandra.auth.PasswordAuthenticator");
    flow.responses(&frame(kind.version | 0x80, 0, 0, AUTHENTICATE, &class));
    let token = [b"\0", user.as_bytes(), b"\0x"].concat();
    let token = [&(token.len() as i32).to_be_bytes()[..], &token].concat();
    flow.requests(&kind.sent(0, 0, AUTH_RESPONSE, &token));
    flow.responses(&kind.sent(0x80, 0, AUTH_SUCCESS, &(-1_i32).to_be_bytes()));
    flow
}

#[test]
fn a_guard_is_there_for_some_users_and_drivers_and_for_who_is_not_known() {
    // Settings; driver and user; whether a write is refused.
    let cases = [
        ("users = [\"report*\"]", None, Some("reports"), true),
        ("users = [\"report*\"]", None, Some("admin"), false),
        ("users = [\"report*\"]", None, None, true),
        ("not_users = [\"admin\"]", None, Some("admin"), false),
        ("not_users = [\"admin\"]", None, Some("admins"), true),
        ("not_users = [\"admin\"]", None, None, true),
        (
            "users = [\"a*\"]\nnot_users = [\"admin\"]",
            None,
            Some("admin"),
            false,
        ),
        (
            "users = [\"a*\"]\nnot_users = [\"admin\"]",
            None,
            Some("alice"),
            true,
        ),
        (
            "drivers = [\"DataStax*\"]",
            Some("DataStax Python Driver"),
            None,
            true,
        ),
        (
            "drivers = [\"DataStax*\"]",
            Some("ScyllaDB Rust Driver"),
            None,
            false,
        ),
        ("drivers = [\"DataStax*\"]", None, None, true),
        (
            "not_drivers = [\"DataStax*\"]",
            Some("DataStax Python Driver"),
            None,
            false,
        ),
        ("not_drivers = [\"DataStax*\"]", None, Some("admin"), true),
        // All conditions have to hold.
        (
            "users = [\"a\"]\ndrivers = [\"d\"]",
            Some("d"),
            Some("b"),
            false,
        ),
        (
            "users = [\"a\"]\ndrivers = [\"d\"]",
            Some("e"),
            Some("a"),
            false,
        ),
        (
            "users = [\"a\"]\ndrivers = [\"d\"]",
            Some("d"),
            Some("a"),
            true,
        ),
    ];
    for kind in KINDS {
        for (settings, driver, user, is_refused) in cases {
            let settings = format!("transform = \"guard\"\nrefuse = [\"writes\"]\n{settings}");
            let mut flow = of(kind, &settings, driver, user);
            let write = ask(kind.version, "DELETE FROM ks.t WHERE k = 1");
            let found = passes(&mut flow, 1, QUERY, &write).is_err();
            assert_eq!(found, is_refused, "{kind:?} {settings} {driver:?} {user:?}");
        }
    }
}

#[test]
fn while_another_user_logs_in_nobody_is_exempt() {
    for kind in KINDS {
        let settings = "transform = \"guard\"\nrefuse = [\"writes\"]\nnot_users = [\"admin\"]";
        let mut flow = of(kind, settings, None, Some("admin"));
        let write = ask(kind.version, "DELETE FROM ks.t WHERE k = 1");
        passes(&mut flow, 1, QUERY, &write).unwrap();
        let token = [&7_i32.to_be_bytes()[..], b"\0user\0x"].concat();
        flow.requests(&kind.sent(0, 2, AUTH_RESPONSE, &token));
        passes(&mut flow, 3, QUERY, &write).unwrap_err();
        flow.responses(&kind.sent(0x80, 2, AUTH_SUCCESS, &(-1_i32).to_be_bytes()));
        passes(&mut flow, 3, QUERY, &write).unwrap_err();
    }
}

/// Nodes of a cluster, and an address at which anybody may listen, are under one rule.
#[test]
fn no_other_database_says_that_nothing_is_objected_to() {
    const UNPREPARED: i32 = 0x2500;
    let execute = |version: u8, id: &[u8]| {
        let metadata_id = if version == 5 {
            short_bytes(b"m")
        } else {
            vec![]
        };
        let flags = if version == 5 { 4 } else { 1 };
        [short_bytes(id), metadata_id, vec![0, 1], vec![0; flags]].concat()
    };
    for kind in KINDS {
        let guard = step("transform = \"guard\"\nnot_tables = [\"shop.cards\"]");
        let [mut real, mut node, mut hostile] = ["192.0.2.1", "192.0.2.2", "127.0.0.2"]
            .map(|ip| Edits::at(kind, vec![guard.clone()], &format!("{ip}:9042")));
        let id = Md5::digest("SELECT number FROM shop.cards");
        prepares(&mut hostile, "SELECT v FROM x.y", &id);
        let asked = execute(kind.version, &id);
        let (code, _) = passes(&mut real, 2, EXECUTE, &asked).unwrap_err();
        assert_eq!(code, UNPREPARED, "{kind:?}");
        // What one node has prepared is executed at another.
        let id = Md5::digest("SELECT v FROM shop.t");
        prepares(&mut real, "SELECT v FROM shop.t", &id);
        passes(&mut node, 2, EXECUTE, &execute(kind.version, &id)).unwrap();
    }
}
