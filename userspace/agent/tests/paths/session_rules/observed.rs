//! Session rules that observe: copies of the handshake decide, and from then on the kernel counts and copies nothing.

use std::process::Command;

use serde_json::json;

use super::*;
use crate::common::{eventually, wire::Host};

/// Users of whom each meets another outcome; everybody else is bypassed.
const RULES: &str = r#"
[[rule]]
name = "reads"
to = [":PORT"]
user = ["app*"]
action = "enrich"
pipeline = [{ transform = "stats" }]

[[rule]]
name = "counts"
to = [":PORT"]
user = ["alice"]
action = "observe"

[[rule]]
name = "rest"
to = [":PORT"]
action = "bypass"
"#;

const REQUESTS: u64 = 10;

fn logs_in(c: &mut Conversation, version: u8, user: &str) {
    c.client_sends(&startup(version, OPTIONS_SENT));
    c.server_sends(&authenticate(version));
    c.in_segments = version >= 5;
    let token = format!("\0{user}\0secret");
    c.client_sends(&auth_response(version, 1, token.as_bytes()));
    c.server_sends(&auth_success(version, 1));
}

fn asks(c: &mut Conversation, version: u8) {
    c.client_sends(&query(version, 1, SELECT));
    c.server_sends(&void(version, 1));
}

fn observed(host: &Host<'_>, rule: &str) -> u64 {
    host.metric(
        "observed_requests",
        &format!("opcode=\"query\",rule=\"{rule}\""),
    )
}

fn is_listed(host: &Host<'_>, c: &Conversation) -> bool {
    let client = c.client.local_addr().unwrap().to_string();
    let flows = host.agent.json("/flows").unwrap();
    let mut flows = flows.as_array().unwrap().iter();
    flows.any(|flow| flow["client"] == client.as_str())
}

#[test]
fn whom_a_session_rule_observes_is_counted_and_read_no_more() {
    host(|host| {
        host.policy(RULES);
        for version in [3, 4, 5] {
            let mut c = host.connect();
            assert!(c.is_direct());
            let flow = host.flow(&c);
            let undecided = (&json!("undecided"), &json!("tap"));
            assert_eq!((&flow["action"], &flow["path"]), undecided);
            logs_in(&mut c, version, "alice");
            host.meets(&c, "counts");
            // The kernel obeys with the next packet.
            asks(&mut c, version);
            eventually("nobody reads it", || {
                host.agent.metric("underpass_tap_flows").unwrap() == 0.0
            });
            let before = observed(host, "counts");
            (0..REQUESTS).for_each(|_| asks(&mut c, version));
            assert_eq!(observed(host, "counts"), before + REQUESTS);
            let flow = host.flow(&c);
            assert_eq!(
                [&flow["rule"], &flow["action"], &flow["path"], &flow["why"]],
                [
                    &json!("counts"),
                    &json!("observe"),
                    &json!("untouched"),
                    &json!("decided by copies of its handshake: rule counts says observe"),
                ]
            );
            assert_eq!((&flow["in_flight"], &flow["gaps"]), (&json!(0), &json!(0)));
            c.ends();
        }
        let decided = host.metric("sessions_decided", "action=\"observe\",rule=\"counts\"");
        assert_eq!(decided, 3);
        // Its handshake has been read, and nothing of what it asked.
        let rows = host.agent.json("/statements").unwrap();
        let mut rows = rows.as_array().unwrap().iter();
        assert!(rows.all(|row| row["table"] == ""));
    });
}

#[test]
fn each_user_meets_the_outcome_of_his_rule() {
    host(|host| {
        host.policy(RULES);
        let users = ["alice", "app1", "bob"];
        let mut all = users.map(|user| {
            let mut c = host.connect();
            logs_in(&mut c, 4, user);
            asks(&mut c, 4);
            c
        });
        let [alice, app, bob] = &mut all;
        host.meets(alice, "counts");
        host.meets(app, "reads");
        eventually("bob is let go", || {
            asks(bob, 4);
            !is_listed(host, bob)
        });
        let count = || {
            let rows = host.agent.json("/statements").unwrap();
            let mut rows = rows.as_array().unwrap().iter();
            let row = rows.find(|row| row["table"] == "orders" && row["rule"] == "reads");
            row.map_or(0, |row| row["count"].as_u64().unwrap())
        };
        eventually("what was asked is told", || count() == 1);
        let before = observed(host, "rest");
        for c in &mut all {
            (0..REQUESTS).for_each(|_| asks(c, 4));
        }
        eventually("of whom is read each request is told", || {
            count() == 1 + REQUESTS
        });
        assert!(observed(host, "counts") >= REQUESTS);
        assert_eq!(
            observed(host, "rest"),
            before,
            "nobody looks at what is bypassed"
        );
        all.into_iter().for_each(Conversation::ends);
    });
}

/// Two rules that read nothing of what follows the handshake: `s`, with this, and `rest`.
fn observes(session: &str) -> String {
    policy(session, "observe", "observe").replace("fail = \"closed\"\n", "")
}

/// Has copies of a handshake decide: the connection meets `rule`, and nobody is in between.
fn decides(host: &Host<'_>, session: &str, rule: &str, says: impl FnOnce(&mut Conversation)) {
    host.policy(&observes(session));
    let mut c = host.connect();
    assert!(c.is_direct());
    says(&mut c);
    let told = || host.flow(&c);
    eventually("it is decided", || told()["action"] == "observe");
    let flow = told();
    assert_eq!(flow["rule"], rule, "{session}: {flow}");
    c.ends();
}

#[test]
fn every_key_decides_by_copies() {
    host(|host| {
        for version in [4, 5] {
            for (key, holds, misses) in KEYS {
                for (value, rule) in [(holds, "s"), (misses, "rest")] {
                    let value = value.replace("VERSION", &format!("v{version}"));
                    decides(host, &format!("{key} = [{value}]"), rule, |c| {
                        converse(c, version);
                    });
                }
            }
            for (value, rule) in [("false", "s"), ("true", "rest")] {
                decides(host, &format!("tls = {value}"), rule, |c| {
                    converse(c, version)
                });
            }
        }
        for (version, compression) in COMPRESSED {
            for (key, holds, misses) in [
                ("user", "alice", "bob"),
                ("keyspace", "shop", "other"),
                ("compression", compression.as_str().unwrap(), "none"),
            ] {
                for (value, rule) in [(holds, "s"), (misses, "rest")] {
                    decides(host, &format!("{key} = [\"{value}\"]"), rule, |c| {
                        converse_compressed(c, version, compression);
                    });
                }
            }
        }
    });
}

#[test]
fn what_is_encrypted_is_decided_by_copies() {
    let hello = b"\x16\x03\x01\x00\x05hello";
    host(|host| {
        for (value, rule) in [("true", "s"), ("false", "rest")] {
            decides(host, &format!("tls = {value}"), rule, |c| {
                c.client_sends(hello)
            });
        }
    });
}

#[test]
fn check_says_who_is_observed_and_why_a_rule_cannot() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    let check = |rules: &str, user: &[&str]| {
        std::fs::write(&file, rules.replace("PORT", "9042")).unwrap();
        let mut check = Command::new(BINARY);
        check
            .arg("check")
            .arg(&file)
            .args(["--to", "10.0.0.1:9042"]);
        let output = check.args(user).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    };
    let (is_good, said) = check(RULES, &["--user", "alice"]);
    assert!(is_good, "{said}");
    for line in [
        "counts: observe, fail = open",
        "decided from copies of its handshake",
        "left alone: copies of its handshake say which rule holds",
    ] {
        assert!(said.contains(line), "{said}");
    }
    let (_, said) = check(RULES, &[]);
    assert!(
        said.contains("candidate: counts: observe, by `user`"),
        "{said}"
    );
    let deny = RULES.replace("action = \"bypass\"", "action = \"deny\"\nfail = \"open\"");
    let (is_good, said) = check(&deny, &[]);
    assert!(!is_good, "{said}");
    for part in [
        "rule.action: expected",
        "rule rest may deny",
        "nothing is observed",
    ] {
        assert!(said.contains(part), "{said}");
    }
}
