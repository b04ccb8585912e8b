//! A guard in shadow mode only reads, and is shown copies: it counts what it counts inline, and does nothing to a flow.

use super::*;
use crate::common::{frames::RESULT, wire::PREPARE};

const GUARD: &str = "{ transform = \"guard\", mode = \"shadow\", refuse = [\"ddl\", \"truncate\"], max_batch = 1, \
                     tables = [\"shop\"] }, { transform = \"stats\" }";

const REASONS: [&str; 4] = ["ddl", "truncate", "batch", "table"];

fn shadows(path: &str) -> String {
    policy(&format!("fail = \"open\"\npath = \"{path}\""), GUARD)
}

fn would_refuse(host: &Host<'_>) -> [u64; 4] {
    REASONS.map(|reason| transforms(host, "guard", "would_refuse", reason))
}

fn prepares(c: &mut Conversation, version: u8, text: &str, id: &[u8]) {
    let mut body = (text.len() as u32).to_be_bytes().to_vec();
    body.extend(text.as_bytes());
    body.extend(if version < 5 { &[][..] } else { &[0; 4] });
    c.client_sends(&frame(version, 1, PREPARE, &body));
    // With more behind it than is copied of a RESULT.
    let length = (id.len() as u16).to_be_bytes();
    let body = [&4_u32.to_be_bytes()[..], &length, id, &[0; 20_000]].concat();
    c.server_sends(&frame(RESPONSE | version, 1, RESULT, &body));
}

fn executes(c: &mut Conversation, version: u8, id: &[u8]) {
    let mut body = [&(id.len() as u16).to_be_bytes()[..], id].concat();
    body.extend(if version < 5 { &[][..] } else { &[0, 0] });
    body.extend([0, 1]);
    body.extend(if version < 5 { &[0][..] } else { &[0; 4] });
    c.client_sends(&frame(version, 1, 0x0A, &body));
    c.server_sends(&void(version, 1));
}

fn asks(c: &mut Conversation, version: u8, text: &str) {
    c.client_sends(&query(version, 1, text));
    c.server_sends(&void(version, 1));
}

/// The counts of a guard, of a flow that does this on a path.
fn counted(path: &str) -> [u64; 4] {
    let mut counted = [0; 4];
    host(|host| {
        host.policy(&shadows(path));
        for version in [3, 4, 5] {
            let mut c = begin(host, version);
            prepares(&mut c, version, "TRUNCATE shop.orders", b"a");
            executes(&mut c, version, b"a");
            executes(&mut c, version, b"never seen");
            asks(&mut c, version, "DROP TABLE shop.orders");
            asks(&mut c, version, "SELECT v FROM private.orders");
            asks(&mut c, version, SELECT);
            let travels = if path == "tap" { "tap" } else { "enrich" };
            assert_eq!(host.flow(&c)["path"], travels);
            c.ends();
        }
        eventually("all is counted", || would_refuse(host)[3] == 3);
        counted = would_refuse(host);
    });
    counted
}

#[test]
fn a_shadow_counts_the_same_by_copies() {
    let inline = counted("inline");
    assert_eq!(inline, [3, 6, 0, 3]);
    assert_eq!(counted("tap"), inline);
}

#[test]
fn a_shadow_is_shown_copies_unless_another_step_needs_the_bytes() {
    host(|host| {
        host.policy(&shadows("auto"));
        let c = begin(host, 4);
        let flow = host.flow(&c);
        assert_eq!(flow["path"], "tap");
        let why = flow["why"].as_str().unwrap();
        assert!(why.contains("every step only reads"), "{why}");
        c.ends();
        let enforces = GUARD.replace("shadow", "enforce");
        host.policy(&policy("fail = \"open\"\npath = \"auto\"", &enforces));
        let c = begin(host, 4);
        let flow = host.flow(&c);
        assert_eq!(flow["path"], "enrich");
        let why = flow["why"].as_str().unwrap();
        assert!(why.contains("inline, because `guard` may"), "{why}");
        c.ends();
    });
}

/// Nobody has seen the keyspace of a running connection: a table without one is not judged by where it is.
#[test]
fn a_shadow_does_not_guess_keyspaces() {
    host(|host| {
        let mut c = begin(host, 4);
        host.policy(&shadows("tap"));
        asks(&mut c, 4, "SELECT v FROM orders");
        asks(&mut c, 4, "TRUNCATE orders");
        asks(&mut c, 4, "SELECT v FROM private.orders");
        eventually("it is read", || would_refuse(host)[3] > 0);
        assert_eq!(would_refuse(host), [0, 1, 0, 1]);
        c.ends();
    });
}
