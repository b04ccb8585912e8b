//! Flows of which not enough is known yet, and those of which it never is.

use std::io::{Read, Write};

use super::{OPTIONS_SENT, SELECT, SYSTEM, policy};
use crate::common::{
    eventually,
    frames::{QUERY, RESPONSE, frame, query, ready, startup, void},
    wire::{
        Conversation, OPTIONS, REGISTER, SUPPORTED, auth_response, authenticate, host, refusal,
        rows, set_keyspace,
    },
};

/// A way for a flow's session to be unknowable: its reason, and what the client has said when that shows.
type Cause = (&'static str, fn(&mut Conversation) -> Vec<u8>);

/// Before anything is known, and after all but the user, or the keyspace, is.
const CAUSES: [Cause; 9] = [
    ("tls", |_| b"\x16\x03\x01\x00\x05hello".to_vec()),
    ("not_cql", |_| b"GET /".to_vec()),
    ("version", |_| startup(6, OPTIONS_SENT)),
    ("framing", |c| {
        c.client_sends(&startup(4, OPTIONS_SENT));
        c.server_sends(&ready(4));
        query(3, 1, SELECT)
    }),
    ("compressed_body", |c| {
        let compressing = [OPTIONS_SENT, &[("COMPRESSION", "lz4")]].concat();
        c.client_sends(&startup(4, &compressing));
        c.server_sends(&ready(4));
        let mut compressed = frame(4, 1, QUERY, b"\0\0\0\x01?");
        compressed[1] = 1;
        compressed
    }),
    ("unreadable", |c| {
        c.client_sends(&startup(4, OPTIONS_SENT));
        c.server_sends(&ready(4));
        query(4, 1, "WHATEVER THIS IS")
    }),
    ("unknown_prepared_id", |c| {
        c.client_sends(&startup(4, OPTIONS_SENT));
        c.server_sends(&ready(4));
        frame(4, 1, 0x0A, b"\0\x02id\0\x01\0")
    }),
    ("extension", |c| {
        c.client_sends(&startup(
            4,
            &[OPTIONS_SENT, &[("OF_TOMORROW", "")]].concat(),
        ));
        c.server_sends(&ready(4));
        query(4, 1, SELECT)
    }),
    ("pipelined", |c| {
        c.client_sends(&startup(5, OPTIONS_SENT));
        c.server_sends(&ready(5));
        let frames = [query(5, 1, "USE shop"), query(5, 2, SELECT)].concat();
        c.in_segments = true;
        let both = c.wrap(&frames);
        c.in_segments = false;
        both
    }),
];

/// `fail` decides, whatever the cause is and wherever the rule stands: of several rules that may hold, the
/// strictest is met.
#[test]
fn a_session_that_cannot_be_known_is_met_by_the_strictest_rule_that_may_hold() {
    let open = |name: &str| {
        format!(
            "[[rule]]\nname = {name:?}\nto = [\":PORT\"]\nkeyspace = [\"other\"]\naction = \"enrich\"\nfail = \"open\"\n"
        )
    };
    host(|host| {
        for action in ["deny", "enrich", "bypass"] {
            let closed = policy("keyspace = [\"shop\"]", action, "bypass");
            let rules = [
                (closed.clone(), true),
                (open("before") + &closed, true),
                (
                    closed.replace(
                        "[[rule]]\nname = \"rest\"",
                        &(open("behind") + "[[rule]]\nname = \"rest\""),
                    ),
                    true,
                ),
                (closed.replace("closed", "open"), false),
                (open("before") + &closed.replace("closed", "open"), false),
            ];
            for (rules, is_denied) in rules {
                host.policy(&rules);
                for (reason, leads) in CAUSES {
                    let label = format!("reason=\"{reason}\"");
                    let before = host.metric("sessions_undecidable", &label);
                    let mut c = host.connect();
                    let sent = leads(&mut c);
                    c.client.write_all(&sent).unwrap();
                    if is_denied {
                        // An ERROR where one would be understood.
                        let mut said = Vec::new();
                        c.client.read_to_end(&mut said).unwrap();
                        let message = b"denied by rule s";
                        let is_told = said.windows(message.len()).any(|bytes| bytes == message);
                        let is_silent = ["tls", "not_cql", "version", "framing", "pipelined"];
                        assert!(is_told || is_silent.contains(&reason), "{reason}: {said:?}");
                        c.ends_with(b"", b"");
                    } else {
                        c.server_gets(&sent);
                        host.meets(&c, "rest");
                        c.ends();
                    }
                    assert_eq!(
                        host.metric("sessions_undecidable", &label),
                        before + 1,
                        "{reason}"
                    );
                }
            }
        }
    });
}

#[test]
fn what_cannot_become_known_does_not_hold_and_is_counted() {
    let compressing = [OPTIONS_SENT, &[("COMPRESSION", "lz4")]].concat();
    host(|host| {
        let open = policy("keyspace = [\"shop\"]", "deny", "bypass").replace("closed", "open");
        host.policy(&open);
        let decided = |c: &Conversation, reason: &str| {
            let flow = host.flow(c);
            assert_eq!(flow["rule"], "rest", "{reason}: {flow}");
            let reason = format!("reason=\"{reason}\"");
            assert_eq!(host.metric("sessions_undecidable", &reason), 1, "{reason}");
        };
        // v5 in segments that nobody knows.
        let mut c = host.connect();
        let snappy = [OPTIONS_SENT, &[("COMPRESSION", "snappy")]].concat();
        c.client_sends(&startup(5, &snappy));
        c.server_sends(&ready(5));
        decided(&c, "segment_compression");
        c.client_sends(b"whatever");
        c.ends();
        // v4 with bodies that are not what they say.
        let mut c = host.connect();
        c.client_sends(&startup(4, &compressing));
        c.server_sends(&ready(4));
        let mut compressed = frame(4, 1, QUERY, b"\0\0\0\x01?");
        compressed[1] = 1;
        c.client_sends(&compressed);
        decided(&c, "compressed_body");
        assert_eq!(host.flow(&c)["session"]["compression"], "lz4");
        c.ends();
        // Not CQL, less than a header of it, and a server that speaks first.
        let mut c = host.connect();
        c.client_sends(b"GET /");
        decided(&c, "not_cql");
        c.ends();
        let mut c = host.connect();
        c.server_sends(b"220");
        assert_eq!(host.metric("sessions_undecidable", "reason=\"not_cql\""), 2);
        c.ends();
        // Another version.
        let mut c = host.connect();
        c.client_sends(&startup(6, OPTIONS_SENT));
        decided(&c, "version");
        c.ends();
    });
}

#[test]
fn a_request_before_the_log_in_is_refused_while_a_rule_could_hold() {
    // Whatever the rule would do: it is the next rule that the client is after.
    for action in ["deny", "enrich", "bypass"] {
        host(|host| {
            host.policy(&policy("user = [\"shop\"]", action, "bypass"));
            let refused = |c: Conversation, sent: &[u8], answer: &[u8], reason: &str, n: u64| {
                let mut client = &c.client;
                client.write_all(sent).unwrap();
                c.ends_with(answer, b"");
                let reason = format!("reason=\"{reason}\"");
                assert_eq!(host.metric("sessions_undecidable", &reason), n, "{reason}");
            };
            // In place of STARTUP, and in place of the log-in.
            let early = query(4, 1, SELECT);
            refused(host.connect(), &early, &refusal(4, 1, "s"), "early", 1);
            let mut c = host.connect();
            c.client_sends(&startup(4, OPTIONS_SENT));
            c.server_sends(&authenticate(4));
            refused(c, &early, &refusal(4, 1, "s"), "early", 2);
            // v5: behind the log-in in one segment, and a log-in whose header is in two.
            let behind = [auth_response(5, 1, b"\0shop\0x"), query(5, 2, SELECT)].concat();
            let log_in = auth_response(5, 1, b"\0shop\0x");
            for (sent, reason) in [(&behind[..], "pipelined"), (&log_in[..5], "split")] {
                let mut c = host.connect();
                c.client_sends(&startup(5, OPTIONS_SENT));
                c.server_sends(&authenticate(5));
                c.in_segments = true;
                let sent = c.wrap(sent);
                refused(c, &sent, b"", reason, 1);
            }
        });
    }
}

#[test]
fn a_control_connection_stays_undecided_and_counts_under_the_rule_that_marked_it() {
    host(|host| {
        host.policy(&policy("keyspace = [\"shop\"]", "deny", "bypass"));
        for version in [4, 5] {
            let mut c = host.connect();
            c.client_sends(&frame(version, 0, OPTIONS, b""));
            c.server_sends(&frame(RESPONSE | version, 0, SUPPORTED, b"\0\0"));
            c.client_sends(&startup(version, OPTIONS_SENT));
            c.server_sends(&ready(version));
            c.in_segments = version >= 5;
            c.client_sends(&frame(version, 1, REGISTER, b"\0\x01\0\x0dSCHEMA_CHANGE"));
            c.server_sends(&frame(RESPONSE | version, 1, 0x02, b""));
            for (stream, text) in [
                SYSTEM,
                "SELECT * FROM system_schema.tables",
                "DESCRIBE CLUSTER",
                "USE system",
            ]
            .into_iter()
            .enumerate()
            {
                c.client_sends(&query(version, stream as i16, text));
                if text.starts_with("USE") {
                    c.server_sends(&set_keyspace(version, stream as i16, "system"));
                } else {
                    c.server_sends(&rows(version, stream as i16));
                }
            }
            c.client_sends(&query(version, 9, "SELECT * FROM peers"));
            c.server_sends(&rows(version, 9));
            let flow = host.flow(&c);
            assert_eq!(flow["action"], "undecided");
            assert_eq!(
                (&flow["rule"], &flow["path"]),
                (&"s".into(), &"enrich".into())
            );
            assert_eq!(flow["session"]["driver"], "Test Driver");
            c.ends();
        }
        let rows = host.agent.json("/statements").unwrap();
        let rows = rows.as_array().unwrap();
        assert!(rows.iter().all(|row| row["rule"] == "s"));
        let local = rows.iter().find(|row| row["table"] == "local").unwrap();
        assert_eq!(local["count"], 2);
    });
}

#[test]
fn requests_that_come_before_their_time_wait() {
    host(|host| {
        host.policy(&policy("keyspace = [\"shop\"]", "deny", "bypass"));
        for (text, denied) in [(SELECT, true), ("SELECT v FROM other.t", false)] {
            let mut c = host.connect();
            let first = startup(4, OPTIONS_SENT);
            let (second, third) = (query(4, 1, SYSTEM), query(4, 2, text));
            c.client
                .write_all(&[&first[..], &second, &third].concat())
                .unwrap();
            c.server_gets(&first);
            c.server_gets_nothing();
            c.server_sends(&ready(4));
            c.server_gets(&second);
            if denied {
                c.ends_with(&refusal(4, 2, "s"), b"");
            } else {
                c.server_gets(&third);
                c.server_sends(&void(4, 2));
                assert_eq!(host.flow(&c)["path"], "relay");
                c.ends();
            }
        }
        // What is unqualified waits for the USE before it.
        for version in [4, 5] {
            let mut c = host.connect();
            c.client_sends(&startup(version, OPTIONS_SENT));
            c.server_sends(&ready(version));
            c.in_segments = version >= 5;
            let first = c.wrap(&query(version, 1, "USE shop"));
            let second = c.wrap(&query(version, 2, "SELECT v FROM orders"));
            c.client.write_all(&[&first[..], &second].concat()).unwrap();
            c.server_gets(&first);
            c.server_gets_nothing();
            let answer = c.wrap(&set_keyspace(version, 1, "shop"));
            c.server.write_all(&answer).unwrap();
            let error = c.wrap(&refusal(version, 1, "s"));
            c.ends_with(&error, b"");
        }
        // A USE that fails leaves it open.
        let mut c = host.connect();
        c.client_sends(&startup(4, OPTIONS_SENT));
        c.server_sends(&ready(4));
        c.client_sends(&query(4, 1, "USE shop"));
        c.client.write_all(&query(4, 2, SELECT)).unwrap();
        c.server_gets_nothing();
        c.server_sends(&frame(RESPONSE | 4, 1, 0, b"\0\0\x22\0\0\0"));
        c.ends_with(&refusal(4, 2, "s"), b"");
    });
}

#[test]
fn a_reload_leaves_alone_what_came_before_it() {
    host(|host| {
        host.policy(&policy("keyspace = [\"shop\"]", "deny", "bypass"));
        let mut undecided = host.connect();
        undecided.client_sends(&startup(4, OPTIONS_SENT));
        undecided.server_sends(&ready(4));
        let mut decided = host.connect();
        decided.client_sends(&startup(4, OPTIONS_SENT));
        decided.server_sends(&ready(4));
        decided.client_sends(&query(4, 1, "SELECT v FROM other.t"));

        host.policy(&policy("keyspace = [\"other\"]", "deny", "bypass"));
        decided.server_sends(&void(4, 1));
        decided.client_sends(&query(4, 2, "SELECT v FROM other.t"));
        decided.ends();
        undecided.client.write_all(&query(4, 5, SELECT)).unwrap();
        undecided.ends_with(&refusal(4, 5, "s"), b"");

        let mut new = host.connect();
        new.client_sends(&startup(4, OPTIONS_SENT));
        new.server_sends(&ready(4));
        new.client_sends(&query(4, 5, SELECT));
        assert_eq!(host.flow(&new)["rule"], "rest");
        new.ends();
    });
}

#[test]
fn whoever_leaves_undecided_leaves_as_ever() {
    host(|host| {
        host.policy(&policy("keyspace = [\"shop\"]", "deny", "bypass"));
        // In the middle of a frame, whose beginning is passed on.
        let mut c = host.connect();
        let whole = startup(4, OPTIONS_SENT);
        c.client.write_all(&whole[..20]).unwrap();
        c.client.shutdown(std::net::Shutdown::Write).unwrap();
        c.server_gets(&whole[..20]);
        c.server.shutdown(std::net::Shutdown::Write).unwrap();
        c.ends_with(b"", b"");
        // The database ends while requests wait for it: they do not reach it any more.
        let mut c = host.connect();
        c.client_sends(&whole);
        c.client.write_all(&query(4, 1, SYSTEM)).unwrap();
        c.server_gets_nothing();
        c.server.shutdown(std::net::Shutdown::Write).unwrap();
        c.client_gets(b"");
        c.client.write_all(&vec![0; 4 << 20]).unwrap();
        c.client.shutdown(std::net::Shutdown::Write).unwrap();
        c.ends_with(b"", b"");
        // A reset.
        let c = host.connect();
        socket2::SockRef::from(&c.client)
            .set_linger(Some(std::time::Duration::ZERO))
            .unwrap();
        drop(c.client);
        eventually("the flow ends", || {
            host.agent.metric("underpass_flows").unwrap() == 0.0
        });
    });
}
