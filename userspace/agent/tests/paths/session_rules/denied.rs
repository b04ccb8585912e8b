//! Denied clients: what they are told, and what the database gets of them.

use std::io::Write;

use super::{OPTIONS_SENT, SELECT, SYSTEM, policy};
use crate::common::{
    frames::{query, ready, startup},
    wire::{auth_response, auth_success, authenticate, host, refusal, rows, set_keyspace},
};

#[test]
fn a_denied_request_does_not_reach_the_database() {
    host(|host| {
        let mut denied = 0;
        for version in [3, 4, 5] {
            host.policy(&policy("keyspace = [\"shop\"]", "deny", "bypass"));
            for in_pieces in [false, true] {
                let mut c = host.connect();
                c.client_sends(&startup(version, OPTIONS_SENT));
                c.server_sends(&ready(version));
                c.in_segments = version >= 5;
                c.client_sends(&query(version, 1, SYSTEM));
                c.server_sends(&rows(version, 1));
                let request = c.wrap(&query(version, 0x1234, SELECT));
                if in_pieces {
                    for byte in &request {
                        c.client.write_all(&[*byte]).unwrap();
                    }
                } else {
                    c.client.write_all(&request).unwrap();
                }
                let error = c.wrap(&refusal(version, 0x1234, "s"));
                c.ends_with(&error, b"");
                denied += 1;
            }
        }
        assert_eq!(
            host.metric("sessions_decided", "action=\"deny\",rule=\"s\""),
            denied
        );
        assert_eq!(host.metric("flows_closed", "reason=\"denied\""), denied);
    });
}

#[test]
fn a_denied_session_is_refused_in_place_of_the_answer_that_would_let_it_in() {
    host(|host| {
        for version in [4, 5] {
            host.policy(&policy("driver = [\"Test Driver\"]", "deny", "bypass"));
            let mut c = host.connect();
            c.client_sends(&startup(version, OPTIONS_SENT));
            c.server.write_all(&ready(version)).unwrap();
            // As the STARTUP was: segments begin behind its answer.
            c.ends_with(&refusal(version, 0, "s"), b"");

            host.policy(&policy("user = [\"alice\"]", "deny", "bypass"));
            let mut c = host.connect();
            c.client_sends(&startup(version, OPTIONS_SENT));
            c.server_sends(&authenticate(version));
            c.in_segments = version >= 5;
            c.client_sends(&auth_response(version, 7, b"\0alice\0secret"));
            let success = c.wrap(&auth_success(version, 7));
            for byte in success {
                c.server.write_all(&[byte]).unwrap();
            }
            let error = c.wrap(&refusal(version, 7, "s"));
            c.ends_with(&error, b"");

            host.policy(&policy("keyspace = [\"shop\"]", "deny", "bypass"));
            let mut c = host.connect();
            c.client_sends(&startup(version, OPTIONS_SENT));
            c.server_sends(&ready(version));
            c.in_segments = version >= 5;
            c.client_sends(&query(version, 9, "USE \"shop\""));
            let answer = c.wrap(&set_keyspace(version, 9, "shop"));
            c.server.write_all(&answer).unwrap();
            let error = c.wrap(&refusal(version, 9, "s"));
            c.ends_with(&error, b"");
        }
        assert!(!host.agent.log().contains("secret"));
    });
}

#[test]
fn a_refusal_waits_for_the_end_of_the_response_that_is_passing() {
    host(|host| {
        host.policy(&policy("keyspace = [\"shop\"]", "deny", "bypass"));
        let mut c = host.connect();
        c.client_sends(&startup(4, OPTIONS_SENT));
        c.server_sends(&ready(4));
        c.client_sends(&query(4, 1, SYSTEM));
        let rows = rows(4, 1);
        let (begin, end) = rows.split_at(60);
        c.server_sends(begin);
        c.client.write_all(&query(4, 2, SELECT)).unwrap();
        c.server_gets_nothing();
        c.server_sends(end);
        c.ends_with(&refusal(4, 2, "s"), b"");
    });
}

#[test]
fn a_later_rule_denies_too() {
    host(|host| {
        host.policy(&policy("user = [\"bob\"]", "bypass", "deny"));
        let mut c = host.connect();
        c.client_sends(&startup(4, OPTIONS_SENT));
        c.server.write_all(&ready(4)).unwrap();
        c.ends_with(&refusal(4, 0, "rest"), b"");
    });
}

#[test]
fn denials_are_listed_counted_and_said() {
    host(|host| {
        host.policy(&policy("user = [\"bob\"]", "bypass", "deny"));
        let mut c = host.connect();
        c.client_sends(&startup(4, OPTIONS_SENT));
        c.server.write_all(&ready(4)).unwrap();
        c.ends_with(&refusal(4, 0, "rest"), b"");
        let listed = || {
            let denials = host.agent.json("/denied").unwrap();
            denials.as_array().unwrap().clone()
        };
        crate::common::eventually("it is listed", || listed().len() == 1);
        let first = listed().remove(0);
        assert_eq!(
            (&first["rule"], &first["cause"]),
            (&"rest".into(), &"session".into())
        );
        assert_eq!(
            (&first["pid"], &first["uid"]),
            (&std::process::id().into(), &0.into())
        );
        assert_eq!(
            first["orig_dst"],
            host.listener.local_addr().unwrap().to_string()
        );
        assert_eq!(host.metric("denied", "cause=\"session\""), 1);
        let said = host.agent.wait_for_log(" denied ").unwrap();
        assert!(
            said.contains("rule=\"rest\"") && said.contains("uid=0"),
            "{said}"
        );

        host.policy(
            "[[rule]]\nname = \"guarded\"\nto = [\":PORT\"]\naction = \"enrich\"\n\
             pipeline = [{ transform = \"guard\", refuse = [\"truncate\"] }]\n",
        );
        let mut c = host.connect();
        c.client_sends(&startup(4, OPTIONS_SENT));
        c.server_sends(&authenticate(4));
        for user in ["ann", "bob"] {
            let token = format!("\0{user}\0x");
            c.client_sends(&auth_response(4, 1, token.as_bytes()));
            c.server_sends(&auth_success(4, 1));
        }
        for stream in 0..100 {
            let truncate = query(4, stream, "TRUNCATE shop.orders");
            c.client.write_all(&truncate).unwrap();
        }
        let refused = || host.metric("denied", "cause=\"guard\"");
        crate::common::eventually("all are counted", || refused() == 100);
        let denials = listed();
        assert!(
            denials.len() < 100 && denials[0]["rule"] == "guarded",
            "{denials:?}"
        );
        assert_eq!(denials[0]["user"], "bob", "who has logged in last");
        let mut command = std::process::Command::new(crate::common::BINARY);
        let output = command
            .args(["denied", "--admin"])
            .arg(host.agent.admin_socket());
        let shown = String::from_utf8(output.output().unwrap().stdout).unwrap();
        assert!(
            shown.contains("guarded") && shown.contains("session"),
            "{shown}"
        );
    });
}
