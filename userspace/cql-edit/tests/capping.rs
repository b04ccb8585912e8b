//! TTLs and timestamps that `rewrite` caps, read back by another implementation.

use crate::support::edit::*;
use crate::support::values::*;
use crate::support::*;
use cassandra_protocol::frame::message_batch::BatchQuerySubj;
use cassandra_protocol::frame::message_request::RequestBody;
use cassandra_protocol::query::QueryValues;
use cassandra_protocol::types::value::Value;

const UPDATE: &str = "UPDATE t USING TTL ? AND TIMESTAMP ? SET a = ? WHERE b = 2";

#[test]
fn bound_ttls_and_timestamps_are_capped_and_all_else_stays() {
    let later = NOW_US + 60_000_000;
    let latest = NOW_US + 1_000_000;
    for kind in KINDS {
        let mut flow = rewrite(
            kind,
            "max_ttl = \"100s\"\ndefault_ttl = \"50s\"\ntimestamps = { max_ahead = \"1s\" }",
        );
        let version = kind.version;
        assert_eq!(prepares(&mut flow, UPDATE, b"id"), UPDATE);
        let cases = [
            (ttl(101), ttl(100)),
            (ttl(0), ttl(100)),
            (ttl(100), ttl(100)),
            (ttl(7), ttl(7)),
            (Value::Null, ttl(100)),
        ];
        for (asked, expected) in cases {
            for (at, capped) in [(later, latest), (NOW_US, NOW_US)] {
                let given = [asked.clone(), timestamp(at), Value::Some(b"v".to_vec())];
                let wanted = [expected.clone(), timestamp(capped), given[2].clone()];
                // Beside the text, and by id.
                let own = parameters(version, &given, None, Some(at));
                let (text, got) = queried(&mut flow, &[long_string(UPDATE), own.clone()].concat());
                assert_eq!(text, UPDATE);
                assert_eq!(bound(&got), wanted, "{kind:?}");
                assert_eq!(got.timestamp, Some(capped), "{kind:?}");
                assert_eq!(got.page_size, Some(100));
                let RequestBody::Execute(got) =
                    flow.changed(EXECUTE, &execute_with(version, b"id", own))
                else {
                    panic!("no EXECUTE")
                };
                assert_eq!(bound(&got.query_parameters), wanted, "{kind:?}");
                // In a batch.
                for child in [Child::Text(UPDATE), Child::Id(b"id")] {
                    let body = batch_of(version, &child, &given, Some(at));
                    let RequestBody::Batch(got) = flow.changed(BATCH, &body) else {
                        panic!("no BATCH")
                    };
                    let QueryValues::SimpleValues(values) = &got.queries[0].values else {
                        panic!("{:?}", got.queries[0].values)
                    };
                    assert_eq!(values, &wanted, "{kind:?}");
                    assert_eq!(got.timestamp, Some(capped), "{kind:?}");
                }
            }
        }
        // What is unset is as if there was no TTL.
        if version >= 4 {
            let given = [Value::NotSet, Value::NotSet, Value::NotSet];
            let own = parameters(version, &given, None, None);
            let (_, got) = queried(&mut flow, &[long_string(UPDATE), own].concat());
            assert_eq!(bound(&got), [ttl(50), Value::NotSet, Value::NotSet]);
        }
        // What is not too much goes on byte for byte.
        let given = [ttl(9), timestamp(NOW_US), ttl(1)];
        let own = parameters(version, &given, None, Some(NOW_US));
        let body = [long_string(UPDATE), own].concat();
        let sent = kind.sent(0, 3, QUERY, &body);
        assert_eq!(flow.requests(&sent), sent);
    }
}

#[test]
fn values_may_be_bound_by_name() {
    const NAMED: &str = "UPDATE t USING TTL :x AND TIMESTAMP ? SET a = :y WHERE b = 2";
    const SHARED: &str = "UPDATE t USING TTL :x SET a = :x WHERE b = 2";
    for kind in KINDS {
        let mut flow = rewrite(
            kind,
            "max_ttl = \"100s\"\ntimestamps = { max_ahead = \"0s\" }",
        );
        let given = [timestamp(NOW_US + 1), ttl(500), ttl(500)];
        let names = ["[timestamp]", "y", "x"];
        let own = parameters(kind.version, &given, Some(&names), None);
        let (_, got) = queried(&mut flow, &[long_string(NAMED), own].concat());
        let Some(QueryValues::NamedValues(got)) = got.values else {
            panic!("{:?}", got.values)
        };
        assert_eq!(got["[timestamp]"], timestamp(NOW_US), "{kind:?}");
        assert_eq!((&got["x"], &got["y"]), (&ttl(100), &ttl(500)));
        // What stands for two things cannot be one of them.
        let own = |seconds| parameters(kind.version, &[ttl(seconds)], Some(&["x"]), None);
        let (code, message) = refusal(&mut flow, QUERY, &[long_string(SHARED), own(101)].concat());
        assert_eq!(code, 0x2200);
        assert!(message.contains("a name of its own"), "{message}");
        let (_, got) = queried(&mut flow, &[long_string(SHARED), own(100)].concat());
        assert!(got.with_names);
    }
}

#[test]
fn the_databases_clock_counts_if_that_is_wanted() {
    for kind in KINDS {
        let mut flow = rewrite(kind, "timestamps = \"server\"");
        let version = kind.version;
        let own = parameters(
            version,
            &[ttl(5), timestamp(77), ttl(6)],
            None,
            Some(NOW_US),
        );
        let (_, got) = queried(&mut flow, &[long_string(UPDATE), own].concat());
        assert_eq!(got.timestamp, None, "{kind:?}");
        assert_eq!(got.page_size, Some(100));
        let expected = match version {
            // Nothing can be unset there.
            3 => timestamp(NOW_US),
            _ => Value::NotSet,
        };
        assert_eq!(bound(&got), [ttl(5), expected, ttl(6)], "{kind:?}");
        let text = "DELETE FROM t USING TIMESTAMP 77 WHERE b = ?";
        let body = batch_of(version, &Child::Text(text), &[ttl(1)], Some(5));
        let RequestBody::Batch(got) = flow.changed(BATCH, &body) else {
            panic!("no BATCH")
        };
        assert_eq!(got.timestamp, None);
        let BatchQuerySubj::QueryString(text) = &got.queries[0].subject else {
            panic!("no text")
        };
        assert_eq!(text, "DELETE FROM t  WHERE b = ?");
    }
}

#[test]
fn what_has_no_ttl_is_given_one() {
    for kind in KINDS {
        let mut flow = rewrite(kind, "default_ttl = \"1h\"");
        let text = "INSERT INTO t (a) VALUES (?)";
        assert_eq!(
            prepares(&mut flow, text, b"id"),
            "INSERT INTO t (a) VALUES (?) USING TTL 3600"
        );
        let own = parameters(kind.version, &[ttl(5)], None, None);
        let (text, got) = queried(&mut flow, &[long_string(text), own].concat());
        assert_eq!(text, "INSERT INTO t (a) VALUES (?) USING TTL 3600");
        assert_eq!(bound(&got), [ttl(5)]);
        let text = "UPDATE t SET a = a + ? WHERE b = 1";
        for (of, expected) in [
            (1, "UPDATE t USING TTL 3600 SET a = a + ? WHERE b = 1"),
            // Of counters.
            (2, text),
        ] {
            let mut body = batch_of(kind.version, &Child::Text(text), &[ttl(1)], None);
            body[0] = of;
            let RequestBody::Batch(got) = flow.changed(BATCH, &body) else {
                panic!("no BATCH")
            };
            let BatchQuerySubj::QueryString(text) = &got.queries[0].subject else {
                panic!("no text")
            };
            assert_eq!(text, expected);
        }
    }
}

#[test]
fn what_could_get_around_a_cap_does_not_pass() {
    for kind in KINDS {
        let version = kind.version;
        let mut flow = rewrite(
            kind,
            "max_ttl = \"100s\"\ntimestamps = { max_ahead = \"1s\" }",
        );
        for text in [
            "INSERT INTO t (a) VALUES (1) USING TTL 5 AND TTL 500",
            "INSERT INTO t (a) VALUES (1) USING PATIENCE 1s AND TTL 500",
            "gibberish using ttl 500",
        ] {
            let (code, message) = refusal(&mut flow, QUERY, &ask(version, text));
            assert_eq!(code, 0x2200, "{text}");
            assert!(message.contains("does not understand"), "{message}");
        }
        // An id that nobody knows is to be prepared again.
        let own = parameters(version, &[ttl(500)], None, None);
        let (code, _) = refusal(&mut flow, EXECUTE, &execute_with(version, b"unknown", own));
        assert_eq!(code, 0x2500);
        let body = batch_of(version, &Child::Id(b"unknown"), &[ttl(500)], None);
        assert_eq!(refusal(&mut flow, BATCH, &body).0, 0x2500);
        // A prepared statement with a timestamp that is ahead now, and may not be later.
        let text = format!("DELETE FROM t USING TIMESTAMP {} WHERE b = 1", i64::MAX);
        let (code, message) = refusal(&mut flow, PREPARE, &prepare(version, &text, None));
        assert_eq!(code, 0x2200);
        assert!(message.contains("USING TIMESTAMP ?"), "{message}");
        if version == 5 {
            let mut body = long_string("INSERT INTO t (a) VALUES (1)");
            body.extend([0, 1, 0, 0, 1, 0]);
            body.extend(5_i32.to_be_bytes());
            let (_, message) = refusal(&mut flow, QUERY, &body);
            assert!(message.contains("what time it is"), "{message}");
        }
        // Values that a server refuses, too, are left to it.
        let given = [Value::Some(vec![1]), Value::Some(vec![2]), Value::Null];
        let own = parameters(version, &given, None, None);
        let (_, got) = queried(&mut flow, &[long_string(UPDATE), own].concat());
        assert_eq!(bound(&got), given);
    }
}
