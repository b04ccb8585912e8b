//! Encrypted columns: what the database gets, and what the client.

pub mod database;
mod read;
mod refused;
mod statements;
mod written;

use cql_edit::protect::Fate;
use md5::{Digest, Md5};

use crate::support::edit::*;
use database::*;

#[test]
fn what_is_prepared_is_stored_encrypted_and_read_plain() {
    for kind in KINDS {
        let vault = TestVault::new();
        let mut flow = protected(kind, &vault);
        let text = "INSERT INTO shop.customers (id, iban, photo) VALUES (?, ?, ?)";
        flow.prepares(b"insert", text, &CUSTOMERS, &[]).unwrap();
        let values = [Some(&b"\0\0\0\x07"[..]), Some(SECRET.as_bytes()), None];
        let sent = flow.executes(b"insert", &values, false).unwrap();
        assert!(!sent.has(SECRET.as_bytes()), "{kind:?}");
        let stored = sent.values();
        assert_eq!(stored[0].as_deref(), values[0], "{kind:?}");
        let iban = stored[1].clone().unwrap();
        assert!(iban.starts_with(b"up1.old."), "{kind:?}");
        assert_eq!(stored[2], None);

        let text = "SELECT id, iban, photo FROM shop.customers WHERE id = ?";
        flow.prepares(b"select", text, &CUSTOMERS[..1], &CUSTOMERS)
            .unwrap();
        let sent = flow.executes(b"select", &values[..1], true).unwrap();
        assert!(!sent.skips_metadata(), "{kind:?}");
        let rows = [
            &[values[0], Some(&iban[..]), None][..],
            &[values[0], None, Some(&iban)],
        ];
        // The second row's is another column's value.
        let (code, message) = flow.reads(&CUSTOMERS, &rows).unwrap_err();
        assert_eq!(code, 0x2200);
        assert!(
            message.contains("shop.customers.photo is not what was encrypted"),
            "{message}"
        );
        assert_eq!(vault.counted(Fate::Tampered), 1);
        flow.executes(b"select", &values[..1], true).unwrap();
        let read = flow.reads(&CUSTOMERS, &rows[..1]).unwrap();
        let expected = rows_body(&CUSTOMERS, &[&[values[0], Some(SECRET.as_bytes()), None]]);
        assert_eq!(read, expected, "{kind:?}");
        assert_eq!(vault.counted(Fate::Encrypted), 1);
    }
}

/// Two nodes of a cluster, and an address at which anybody may listen, are under one rule.
const DATABASES: [&str; 3] = ["192.0.2.1:9042", "192.0.2.2:9042", "127.0.0.2:9042"];

#[test]
fn no_other_database_says_that_nothing_is_to_be_encrypted() {
    const UNPREPARED: i32 = 0x2500;
    for kind in KINDS {
        let vault = TestVault::new();
        let [mut real, mut node, mut hostile] = protected_at(kind, &vault, DATABASES);
        let text = "INSERT INTO customers (id, iban) VALUES (?, ?)";
        let id = Md5::digest(format!("shop{text}"));
        let values = [Some(&b"\0\0\0\x07"[..]), Some(SECRET.as_bytes())];
        let mut invents = || {
            hostile
                .prepares(&id, "SELECT v FROM x.y", &[], &[])
                .unwrap()
        };
        invents();
        for flow in [&mut real, &mut node] {
            let (code, _) = flow.executes(&id, &values, false).unwrap_err();
            assert_eq!(code, UNPREPARED, "{kind:?}");
        }
        real.uses("shop");
        real.prepares(&id, text, &CUSTOMERS[..2], &[]).unwrap();
        invents();
        // Nodes of a cluster share what the text proves.
        for flow in [&mut real, &mut node, &mut hostile] {
            let sent = flow.executes(&id, &values, false).unwrap();
            assert!(!sent.has(SECRET.as_bytes()), "{kind:?}");
        }
    }
}

/// Where values are of which the markers have names, only the database says.
#[test]
fn no_other_database_says_where_the_values_are() {
    for kind in KINDS {
        let vault = TestVault::new();
        let [mut real, _, mut hostile] = protected_at(kind, &vault, DATABASES);
        let text = "INSERT INTO shop.customers (id, iban) VALUES (:i, :v)";
        let id = Md5::digest(text);
        let [i, v] = [("i", 0x09), ("v", 0x0D)];
        hostile.prepares(&id, text, &[v, i], &[]).unwrap();
        let values = [Some(&b"\0\0\0\x07"[..]), Some(SECRET.as_bytes())];
        assert!(real.executes(&id, &values, false).is_err());
        real.prepares(&id, text, &[i, v], &[]).unwrap();
        hostile.prepares(&id, text, &[v, i], &[]).unwrap();
        let sent = real.executes(&id, &values, false).unwrap();
        assert!(!sent.has(SECRET.as_bytes()), "{kind:?}");
    }
}

/// A stream has one request at a time. If a client asks twice on one stream, one answer could be taken for
/// the other, and what was prepared for one for the other; for all flows of the rule.
#[test]
fn a_stream_has_one_request_at_a_time() {
    for kind in KINDS {
        let vault = TestVault::new();
        let mut flow = protected(kind, &vault);
        flow.reuses = true;
        flow.asks("SELECT iban FROM shop.customers", &[]).unwrap();
        let text = "INSERT INTO shop.t (id) VALUES (:x)";
        let (code, message) = flow.prepares(b"id", text, &[], &[]).unwrap_err();
        assert_eq!(
            (code, message.as_str()),
            (
                0x000A,
                "underpass: refused by rule r: stream 7 waits for a response"
            )
        );
        flow.answered(&1_i32.to_be_bytes()).unwrap();
        flow.prepares(b"id", text, &[], &[]).unwrap();
    }
}

/// Cuts of chunks change nothing, and nothing of a value is in any chunk.
#[test]
fn at_any_cut() {
    for kind in KINDS {
        for size in [1, 7, 100] {
            let vault = TestVault::new();
            let mut flow = protected(kind, &vault);
            flow.chunks = size;
            let text = format!("INSERT INTO shop.customers (id, iban) VALUES (1, '{SECRET}')");
            assert!(!flow.asks(&text, &[]).unwrap().has(SECRET.as_bytes()));
            let sealed = flow.sealed("iban", SECRET.as_bytes());
            flow.asks("SELECT iban FROM shop.customers", &[]).unwrap();
            let found = [("iban", 0x0D)];
            let read = flow.reads(&found, &[&[Some(&sealed[..])]]).unwrap();
            assert_eq!(read, rows_body(&found, &[&[Some(SECRET.as_bytes())]]));
        }
    }
}
