//! Session rules that are decided from copies of the handshake: the connection is the application's own from its beginning
//! to its end.

use serde_json::json;

use super::*;
use crate::common::wire::host_with;

const STATS: &str = "action = \"enrich\"\npipeline = [{ transform = \"stats\" }]";

/// Rule `s`, with this condition, and rule `rest` behind it.
fn rules(condition: &str, s: &str, rest: &str) -> String {
    format!(
        "[[rule]]\nname = \"s\"\nto = [\":PORT\"]\n{condition}\n{s}\n\
         [[rule]]\nname = \"rest\"\nto = [\":PORT\"]\n{rest}\n"
    )
}

/// A log-in as this user, who then uses `shop`.
fn logs_in(c: &mut Conversation, version: u8, user: &str) {
    let options = [("CQL_VERSION", "3.0.0"), ("DRIVER_NAME", "d")];
    c.client_sends(&startup(version, &options));
    c.server_sends(&authenticate(version));
    c.in_segments = version >= 5;
    let token = format!("\0{user}\0secret");
    c.client_sends(&auth_response(version, 1, token.as_bytes()));
    c.server_sends(&auth_success(version, 1));
    c.client_sends(&query(version, 3, "USE shop"));
    c.server_sends(&set_keyspace(version, 3, "shop"));
}

fn asks(c: &mut Conversation, version: u8) {
    c.client_sends(&query(version, 1, SELECT));
    c.server_sends(&rows(version, 1, 3));
}

/// Nobody stands between the two.
fn is_its_own(c: &Conversation) -> bool {
    c.client.peer_addr().unwrap() == c.server.local_addr().unwrap()
        && c.server.peer_addr().unwrap() == c.client.local_addr().unwrap()
}

/// Selects that were told, by the rule.
fn counted(host: &Host<'_>, rule: &str) -> u64 {
    let list = host.agent.json("/statements").unwrap();
    let mut rows = list.as_array().unwrap().iter();
    let row = rows.find(|row| row["table"] == "orders" && row["rule"] == rule);
    row.map_or(0, |row| row["count"].as_u64().unwrap())
}

fn flow_of(host: &Host<'_>, c: &Conversation) -> Option<Value> {
    let flows = host.agent.json("/flows").unwrap();
    let client = c.client.local_addr().unwrap().to_string();
    let mut flows = flows.as_array().unwrap().iter();
    flows.find(|f| f["client"] == client.as_str()).cloned()
}

#[test]
fn copies_of_the_handshake_say_which_rule_reads() {
    let conditions = [
        "user = [\"alice\"]",
        "driver = [\"d\"]",
        "keyspace = [\"shop\"]",
    ];
    host(|host| {
        for version in [3, 4, 5] {
            for condition in conditions {
                host.policy(&rules(condition, STATS, "action = \"bypass\""));
                let before = counted(host, "s");
                let mut c = host.connect();
                assert!(is_its_own(&c));
                let flow = host.flow(&c);
                assert_eq!(
                    (&flow["path"], &flow["action"]),
                    (&json!("tap"), &json!("undecided"))
                );
                logs_in(&mut c, version, "alice");
                asks(&mut c, version);
                eventually("it is told", || counted(host, "s") == before + 1);
                let flow = host.flow(&c);
                assert_eq!(
                    (&flow["path"], &flow["action"], &flow["rule"]),
                    (&json!("tap"), &json!("enrich"), &json!("s"))
                );
                assert_eq!(
                    flow["why"],
                    "decided by copies of its handshake: rule s says enrich"
                );
                asks(&mut c, version);
                eventually("it goes on", || counted(host, "s") == before + 2);
                c.ends();
            }
        }
    });
}

#[test]
fn what_meets_a_rule_that_does_not_read_is_let_go() {
    host(|host| {
        for (s, rest) in [("bypass", STATS), ("bypass", "action = \"observe\"")] {
            let s = format!("action = \"{s}\"");
            host.policy(&rules("user = [\"alice\"]", &s, rest));
            let asked = || host.metric("observed_requests", "opcode=\"query\",rule=\"s\"");
            let before = asked();
            let mut c = host.connect();
            logs_in(&mut c, 4, "alice");
            eventually("the agent knows", || {
                host.metric("sessions_decided", "action=\"bypass\",rule=\"s\"") > 0
            });
            // The kernel obeys with the next packet, and then looks at none.
            for _ in 0..5 {
                asks(&mut c, 4);
            }
            assert_eq!(flow_of(host, &c), None);
            let passed = asked() - before;
            assert!(
                passed <= 2,
                "USE, and the request that told the kernel: {passed}"
            );
            assert!(is_its_own(&c));
            c.ends();
            assert_eq!(counted(host, "s") + counted(host, "rest"), 0);
        }
        let mut c = host.connect();
        logs_in(&mut c, 4, "bob");
        let observes = || flow_of(host, &c).is_some_and(|f| f["rule"] == "rest");
        eventually("it is the other rule's", observes);
        for _ in 0..5 {
            c.client_sends(&query(4, 1, SELECT));
            c.server_sends(&void(4, 1));
        }
        let flow = host.flow(&c);
        assert_eq!(
            (&flow["path"], &flow["action"]),
            (&json!("untouched"), &json!("observe"))
        );
        assert!(host.metric("observed_requests", "opcode=\"query\",rule=\"rest\"") >= 5);
        c.ends();
    });
}

#[test]
fn a_session_that_cannot_be_known_is_decided_by_the_rules_behind() {
    host_with("tap_ring_bytes = 65536", |host| {
        host.policy(&rules("user = [\"alice\"]", "action = \"bypass\"", STATS));
        // It begins while nobody reads, and there is no room for all of it.
        host.agent
            .signal(nix::sys::signal::Signal::SIGSTOP)
            .unwrap();
        let mut c = host.connect();
        logs_in(&mut c, 4, "alice");
        for _ in 0..1_000 {
            asks(&mut c, 4);
        }
        let mut late = host.connect();
        logs_in(&mut late, 4, "alice");
        host.agent
            .signal(nix::sys::signal::Signal::SIGCONT)
            .unwrap();
        // Of the first one the log-in was copied.
        eventually("it is let go", || {
            asks(&mut c, 4);
            flow_of(host, &c).is_none()
        });
        eventually("the other one is read", || {
            asks(&mut late, 4);
            counted(host, "rest") > 0
        });
        c.ends();
        late.ends();
    });
}

#[test]
fn where_a_rule_may_deny_the_agent_takes_connections_in() {
    host(|host| {
        let deny = "fail = \"open\"\naction = \"deny\"";
        host.policy(&rules("user = [\"alice\"]", STATS, deny));
        let c = host.connect();
        assert_eq!(host.flow(&c)["path"], "enrich");
        drop(c);
    });
}
