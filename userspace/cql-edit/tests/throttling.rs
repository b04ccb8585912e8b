//! Tests of `throttle`: from which bucket a request's token is taken.

use std::sync::Arc;

use crate::support::edit::*;
use crate::support::*;
use cql_edit::{Caller, Transform, transforms::TransformSettings};
use limits::Member;

const AUTH_RESPONSE: u8 = 0x0F;
const AUTH_SUCCESS: u8 = 0x10;
const AUTH_CHALLENGE: u8 = 0x0E;

/// A flow under `throttle`: a single request of each bucket passes, as nothing is filled again while the
/// clock stands still.
fn flow(kind: Kind, per: &str) -> Edits {
    let settings = "transform = \"throttle\"\nrate = 1\nburst = 1\nmode = \"overloaded\"";
    Edits::of(kind, &format!("{settings}\nper = \"{per}\""))
}

/// Whether it passes, and how many have been refused since the last time.
fn passes(flow: &mut Edits, opcode: u8, body: &[u8]) -> bool {
    let sent = flow.kind.sent(0, 1, opcode, body);
    let passed = flow.requests(&sent);
    let answer = flow.editor.answers();
    assert_eq!(answer.is_some(), passed.is_empty());
    !passed.is_empty()
}

fn asks(flow: &mut Edits, text: &str) -> bool {
    let body = ask(flow.kind.version, text);
    passes(flow, QUERY, &body)
}

fn answered(flow: &mut Edits, opcode: u8, body: &[u8]) {
    let sent = flow.kind.sent(0x80, 1, opcode, body);
    assert_eq!(flow.responses(&sent), sent);
}

fn says(flow: &mut Edits, token: &[u8]) {
    let body = [&(token.len() as u32).to_be_bytes()[..], token].concat();
    let sent = flow.kind.sent(0, 1, AUTH_RESPONSE, &body);
    assert_eq!(flow.requests(&sent), sent);
}

#[test]
fn each_statement_has_the_bucket_of_what_it_is_on() {
    let [first, same_table, same_keyspace, other] = [
        "SELECT v FROM shop.a",
        "INSERT INTO shop.a (k) VALUES (1)",
        "SELECT v FROM shop.b",
        "SELECT v FROM yard.a",
    ];
    for kind in KINDS {
        for (per, passing) in [
            ("table", [false, true, true]),
            ("keyspace", [false, false, true]),
            ("kind", [true, false, false]),
            ("rule", [false, false, false]),
            ("client", [false, false, false]),
        ] {
            let mut flow = flow(kind, per);
            assert!(asks(&mut flow, first), "{kind:?} {per}");
            let others = [same_table, same_keyspace, other];
            let passed = others.map(|text| asks(&mut flow, text));
            assert_eq!(passed, passing, "{kind:?} {per}");
        }
    }
}

#[test]
fn what_was_prepared_is_known_and_what_cannot_be_told_shares_one() {
    for kind in KINDS {
        let mut flow = flow(kind, "table");
        let prepare = prepare(kind.version, "SELECT v FROM shop.a", None);
        assert!(passes(&mut flow, PREPARE, &prepare));
        answered(&mut flow, RESULT, &prepared(b"id"));
        // v5: the id of the result's description, and flags of four bytes.
        let execute = |id: &[u8]| match kind.version {
            5 => [&short_bytes(id)[..], &short_bytes(id), &[0, 1, 0, 0, 0, 0]].concat(),
            _ => [&short_bytes(id)[..], &[0, 1, 0]].concat(),
        };
        assert!(!passes(&mut flow, EXECUTE, &execute(b"id")), "{kind:?}");
        assert!(passes(&mut flow, EXECUTE, &execute(b"unknown")));
        // In which keyspace?
        assert!(!asks(&mut flow, "SELECT v FROM a"));
        assert!(!asks(&mut flow, "BEGIN BATCH APPLY BATCH"));
        assert!(asks(&mut flow, "SELECT v FROM shop.c"));
    }
}

#[test]
fn a_user_is_who_the_database_says_has_logged_in() {
    for kind in KINDS {
        // Whom nobody knows shares a bucket with all like it.
        let asks = |flow: &mut Edits| asks(flow, "SELECT v FROM shop.a");
        let mut flow = flow(kind, "user");
        assert!(asks(&mut flow));
        assert!(!asks(&mut flow));
        flow.frees(1);
        says(&mut flow, b"\0eve\0wrong");
        answered(&mut flow, ERROR, &[0, 0, 1, 0, 0, 0]);
        assert!(!asks(&mut flow), "{kind:?}: it was refused");
        flow.frees(1);
        says(&mut flow, b"PLAIN");
        answered(&mut flow, AUTH_CHALLENGE, &[0xFF; 4]);
        says(&mut flow, b"\0alice\0secret");
        assert!(!asks(&mut flow), "{kind:?}: not answered yet");
        answered(&mut flow, AUTH_SUCCESS, &[0xFF; 4]);
        assert!(asks(&mut flow), "{kind:?}: alice's first");
        assert!(!asks(&mut flow));
    }
}

#[test]
fn of_two_log_ins_at_once_none_is_believed() {
    let mut flow = flow(KINDS[2], "user");
    says(&mut flow, b"\0alice\0wrong");
    says(&mut flow, b"\0bob\0right");
    answered(&mut flow, ERROR, &[0, 0, 1, 0, 0, 0]);
    answered(&mut flow, AUTH_SUCCESS, &[0xFF; 4]);
    assert!(asks(&mut flow, "SELECT v FROM shop.a"));
    says(&mut flow, b"\0carol\0right");
    answered(&mut flow, AUTH_SUCCESS, &[0xFF; 4]);
    assert!(!asks(&mut flow, "SELECT v FROM shop.a"));
}

#[test]
fn a_host_has_its_share_of_what_a_fleet_has() {
    let settings = "transform = \"throttle\"\nrate = 100\nmode = \"overloaded\"\nscope = \"fleet\"";
    let settings: TransformSettings = toml::from_str(settings).unwrap();
    let step = settings.of_rule("shop").build().unwrap();
    let limit = step.limit().unwrap().clone();
    assert_eq!((limit.name(), limit.rate()), ("shop.rule", 100.0));
    let mut flow = Edits::new(KINDS[1], vec![step]);
    let mut passed = 0;
    for _ in 0..20 {
        if asks(&mut flow, "SELECT v FROM shop.a") {
            passed += 1;
            flow.frees(1);
        }
    }
    // A twentieth of rate and burst, before anything is heard of the fleet.
    assert_eq!(passed, 5);
    let mut member = Member::default();
    member.hold([&limit]);
    member.look(1.0);
    let held: Vec<_> = member.held().collect();
    // Three quarters have found no token, so there is more to come.
    assert_eq!(held[0].wanted, 20.0 * (1.0 + 3.0 * 0.75 * 0.75));
}

/// A flow of this client through a step that others go through, too.
fn flow_of(kind: Kind, step: &Arc<dyn Transform>, client: &str) -> Edits {
    let mut flow = Edits::new(kind, vec![step.clone()]);
    let caller = Caller {
        client: client.into(),
        ..Caller::default()
    };
    flow.editor.becomes(vec![step.clone()].into(), caller);
    flow
}

#[test]
fn each_client_has_its_own_bucket() {
    for kind in KINDS {
        let step =
            step("transform = \"throttle\"\nrate = 1\nmode = \"overloaded\"\nper = \"client\"");
        for client in ["192.0.2.1", "192.0.2.2"] {
            let mut flow = flow_of(kind, &step, client);
            assert!(asks(&mut flow, "SELECT v FROM shop.a"), "{client}: first");
            // However many connections it has.
            let mut other = flow_of(kind, &step, client);
            for flow in [&mut flow, &mut other] {
                assert!(!asks(flow, "SELECT v FROM shop.a"), "{client}");
            }
        }
    }
}

#[test]
fn who_asks_for_much_does_not_delay_the_others() {
    for kind in KINDS {
        let step = step("transform = \"throttle\"\nrate = 1000\nburst = 1");
        let mut greedy = flow_of(kind, &step, "192.0.2.1");
        let mut modest = flow_of(kind, &step, "192.0.2.2");
        let waits_ms = |flow: &mut Edits| {
            assert!(asks(flow, "SELECT v FROM shop.a"));
            flow.editor.pause_ns(0) / 1_000_000
        };
        assert_eq!(waits_ms(&mut greedy), 0, "{kind:?}");
        for n in 1..100 {
            assert_eq!(waits_ms(&mut greedy), n, "{kind:?}");
        }
        // Two wait, and each has half of what comes in.
        assert_eq!(waits_ms(&mut modest), 2, "{kind:?}");
    }
}
