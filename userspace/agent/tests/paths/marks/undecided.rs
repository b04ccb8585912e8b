//! Flows whose session is being learned when a mark comes.

use std::io::Write;

use serde_json::json;

use super::{BY_KEYSPACE, BYPASS, ENRICH, begin, exchange, expect_both_reset};
use crate::common::{
    frames::{query, ready, startup, void},
    operator::Operator,
    wire::{Conversation, auth_response, auth_success, authenticate, host, refusal, set_keyspace},
};

#[test]
fn undecided_flows_are_decided_by_the_mark() {
    host(|host| {
        host.policy(BY_KEYSPACE);
        let operator = Operator::of(host);
        for (action, path) in [("bypass", "relay"), ("enrich", "enrich")] {
            let mut c = host.connect();
            // What is held back passes.
            let (first, second) = (startup(4, &[]), query(4, 1, "SELECT v FROM shop.t"));
            c.client.write_all(&[&first[..], &second].concat()).unwrap();
            c.server_gets(&first);
            c.server_gets_nothing();
            let flow = host.flow(&c);
            assert_eq!(
                (&flow["action"], &flow["why"]),
                (&json!("undecided"), &json!("waits for: keyspace"))
            );
            let marked = operator.mark(&["to=:PORT", action]);
            assert_eq!(marked["counts"]["changed"], 1, "{marked}");
            c.server_gets(&second);
            c.server_sends(&ready(4));
            c.server_sends(&void(4, 1));
            let flow = host.flow(&c);
            assert_eq!(
                (&flow["path"], &flow["action"]),
                (&json!(path), &json!(action))
            );
            operator.unmark(marked["mark"]["id"].as_u64().unwrap());
            c.ends();
        }
        let mut c = host.connect();
        c.client_sends(&startup(4, &[]));
        let id = host.flow(&c)["id"].to_string();
        assert!(
            operator
                .refused(&["mark", &id, "observe"])
                .contains("decided at connect()")
        );
        assert_eq!(operator.mark(&[&id, "deny"])["counts"]["changed"], 1);
        expect_both_reset(&mut c);
    });
}

#[test]
fn a_session_that_is_still_being_learned_is_held_against_the_mark() {
    host(|host| {
        host.policy(BY_KEYSPACE);
        let operator = Operator::of(host);
        let log_in = |c: &mut Conversation, user: &str| {
            c.client_sends(&startup(4, &[("DRIVER_NAME", "d")]));
            c.server_sends(&authenticate(4));
            let token = format!("\0{user}\0secret");
            c.client_sends(&auth_response(4, 1, token.as_bytes()));
            auth_success(4, 1)
        };
        let (mut alice, mut bob) = (host.connect(), host.connect());
        let welcome_alice = log_in(&mut alice, "alice");
        let welcome_bob = log_in(&mut bob, "bob");
        let marked = operator.mark(&["user=alice,to=:PORT", "deny"]);
        assert_eq!(
            (&marked["counts"]["asked"], &marked["counts"]["changed"]),
            (&json!(2), &json!(0))
        );
        assert_eq!(host.flow(&alice)["why"], "waits for: user, keyspace");
        alice.server.write_all(&welcome_alice).unwrap();
        alice.ends_with(&refusal(4, 1, "mark-1"), b"");
        bob.server_sends(&welcome_bob);
        bob.client_sends(&query(4, 2, "USE other"));
        bob.server_sends(&set_keyspace(4, 2, "other"));
        bob.client_sends(&query(4, 3, "SELECT v FROM t"));
        bob.server_sends(&void(4, 3));
        assert_eq!(host.flow(&bob)["rule"], "r");
        // What is known by now decides at once.
        let marked = operator.mark(&["user=bob,driver=d", "bypass"]);
        assert_eq!(marked["counts"]["changed"], 1, "{marked}");
        assert_eq!(host.flow(&bob)["path"], "relay");
        bob.ends();

        // The file would leave this one alone.
        host.policy(BYPASS);
        let mut c = host.connect();
        let welcome = log_in(&mut c, "alice");
        c.server.write_all(&welcome).unwrap();
        c.ends_with(&refusal(4, 1, "mark-1"), b"");
        assert!(
            host.agent
                .metrics()
                .unwrap()
                .keys()
                .any(|k| k.contains("rule=\"mark\""))
        );

        // Of what was decided at connect(), nobody has looked at the session.
        operator.unmark(1);
        operator.unmark(2);
        host.policy(ENRICH);
        let mut c = host.connect();
        begin(&mut c);
        let marked = operator.mark(&["user=alice,to=:PORT", "deny", "--reset"]);
        assert_eq!(
            (&marked["unknown"], &marked["flows"]),
            (&json!(1), &json!([]))
        );
        exchange(&mut c);
        c.ends();
    });
}
