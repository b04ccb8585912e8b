//! Frames that a pipeline cannot be shown: refused by a strict one, passed by others.

use std::io::Write;

use super::{LOCAL_QUORUM, SELECT, at_level, begin, error, policy};
use crate::common::{
    frames::{RESPONSE, frame, query, ready, startup, void},
    wire::host,
};

#[test]
fn what_a_strict_pipeline_cannot_read_is_denied() {
    const FOREIGN: u8 = 0x42;
    host(|host| {
        let denied = "outcome=\"denied\",reason=\"version\",rule=\"r\"";
        host.policy(&policy(
            "",
            "{ transform = \"consistency\", exactly = \"LOCAL_QUORUM\" }",
        ));
        let mut c = host.connect();
        let hello = frame(FOREIGN, 3, 0x05, &[]);
        c.client.write_all(&hello).unwrap();
        let (first, stream, code, message) = error(&mut c);
        assert_eq!((first, stream, code), (0x84, 3, 0x000A));
        assert!(
            message.contains("unsupported protocol version (66)"),
            "{message}"
        );
        c.ends_with(b"", b"");
        assert_eq!(host.metric("pipeline_unreadable", denied), 1);

        // One that only adds something does not mind.
        host.policy(&policy("", "{ transform = \"tag\" }"));
        let mut c = host.connect();
        c.client_sends(&hello);
        c.server_sends(b"whatever it says");
        c.ends();
    });
}

#[test]
fn what_cannot_be_shown_to_a_pipeline_is_refused_by_a_strict_one_and_passes_another() {
    const INVALID: i32 = 0x2200;
    host(|host| {
        let unseen = |outcome: &str, reason: &str| {
            let labels = format!("outcome=\"{outcome}\",reason=\"{reason}\",rule=\"r\"");
            host.metric("pipeline_unseen", &labels)
        };
        // A statement that claims to be longer than its frame, and one of more than 32 MiB.
        let malformed = |version| frame(version, 7, 0x07, b"\0\0\x01\0SELECT");
        let large = query(4, 7, &"x".repeat(32 << 20));

        host.policy(&policy(
            "",
            "{ transform = \"consistency\", exactly = \"LOCAL_QUORUM\" }",
        ));
        for (version, nth) in [(4, 1), (5, 2)] {
            let mut c = begin(host, version);
            let sent = c.wrap(&malformed(version));
            c.client.write_all(&sent).unwrap();
            let (first, stream, code, _) = error(&mut c);
            assert_eq!((first, stream, code), (RESPONSE | version, 7, INVALID));
            c.server_gets_nothing();
            assert_eq!(unseen("refused", "malformed"), nth);
            c.ends();
        }
        let mut c = begin(host, 4);
        c.client.write_all(&large).unwrap();
        let (first, stream, code, _) = error(&mut c);
        assert_eq!((first, stream, code), (RESPONSE | 4, 7, INVALID));
        c.server_gets_nothing();
        assert_eq!(unseen("refused", "too_large"), 1);
        c.client_sends(&at_level(4, 1, LOCAL_QUORUM));
        c.server_sends(&void(4, 1));
        c.ends();

        host.policy(&policy("", "{ transform = \"tag\" }"));
        for (version, nth) in [(4, 1), (5, 2)] {
            let mut c = begin(host, version);
            c.client_sends(&malformed(version));
            c.server_sends(&void(version, 7));
            assert_eq!(unseen("passed", "malformed"), nth);
            c.ends();
        }
        let mut c = begin(host, 4);
        let mut client = c.client.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| client.write_all(&large).unwrap());
            c.server_gets(&large);
        });
        c.server_sends(&void(4, 7));
        assert_eq!(unseen("passed", "too_large"), 1);
        c.ends();
        // As often as was said above.
        let all = ["malformed", "too_large"].map(|r| [unseen("refused", r), unseen("passed", r)]);
        assert_eq!(all, [[2, 2], [1, 1]]);
    });
}

#[test]
fn what_could_not_be_read_before_the_rule_was_decided_is_denied_by_a_strict_one() {
    let denied = |reason| format!("outcome=\"denied\",reason=\"{reason}\",rule=\"r\"");
    host(|host| {
        let users = "[[rule]]\nname = \"users\"\nto = [\":PORT\"]\nuser = [\"someone\"]\n\
                     action = \"bypass\"\n";
        let rest = policy(
            "",
            "{ transform = \"consistency\", exactly = \"LOCAL_QUORUM\" }",
        );
        host.policy(&format!("{users}{rest}"));
        let tls: &[u8] = &[0x16, 3, 1, 0, 200, 1, 0, 0, 196];
        for (bytes, reason) in [(tls, "tls"), (b"GET / HTTP/1.1\r\n", "not_cql")] {
            let mut c = host.connect();
            c.client.write_all(bytes).unwrap();
            c.ends_with(b"", b"");
            assert_eq!(host.metric("pipeline_unreadable", &denied(reason)), 1);
        }
        // Bytes that the database would read as v5's segments, and others as bare frames.
        let startup = startup(5, &[("CQL_VERSION", "3.0.0")]);
        let early = [&startup[..], &query(5, 1, SELECT)].concat();
        let mut c = host.connect();
        c.client.write_all(&early).unwrap();
        c.server_gets(&startup);
        c.server_sends(&ready(5));
        c.ends_with(b"", b"");
        host.policy(&rest);
        let mut c = host.connect();
        c.client.write_all(&early).unwrap();
        c.ends_with(b"", &startup);
        assert_eq!(host.metric("pipeline_unreadable", &denied("early")), 1);
    });
}
