//! Values as the database gets them.

use cql_edit::protect::Fate;

use super::database::*;
use crate::support::edit::*;

#[test]
fn values_are_found_by_their_names() {
    for kind in KINDS {
        let vault = TestVault::new();
        let mut flow = protected(kind, &vault);
        let text = "UPDATE shop.customers SET iban = :what, photo = :other WHERE id = :iban";
        let specs = [("what", 0x0D), ("other", 0x03), ("iban", 0x09)];
        flow.prepares(b"u", text, &specs, &[]).unwrap();
        let id = &b"\0\0\0\x07"[..];
        let values = [Some(SECRET.as_bytes()), Some(&b"\xFF\xD8"[..]), Some(id)];
        let stored = flow.executes(b"u", &values, false).unwrap().values();
        assert_eq!(flow.opened("iban", &stored[0]), SECRET.as_bytes());
        assert_eq!(flow.opened("photo", &stored[1]), b"\xFF\xD8");
        assert_eq!(stored[2].as_deref(), Some(id));
        // What is only called as a protected column is none.
        let text = "SELECT id FROM shop.customers WHERE id = :iban";
        flow.prepares(b"s", text, &specs[2..], &CUSTOMERS[..1])
            .unwrap();
        flow.executes(b"s", &values[2..], true).unwrap();
        // By name, in another order.
        let named = [
            ("other", values[1]),
            ("iban", values[2]),
            ("what", values[0]),
        ];
        let sent = flow.executes_named(b"u", &named).unwrap();
        assert!(!sent.has(SECRET.as_bytes()));
        let stored = sent.values();
        assert_eq!(flow.opened("photo", &stored[0]), b"\xFF\xD8");
        assert_eq!(stored[1].as_deref(), Some(id));
        assert_eq!(flow.opened("iban", &stored[2]), SECRET.as_bytes());
        // What others are called, and how many of them there are, does not matter.
        let text = "UPDATE shop.customers SET iban = :what, a = :n, b = :n WHERE id = :iban";
        let named = [("iban", values[2]), ("what", values[0]), ("n", values[2])];
        let sent = flow.asks_named(text, &named).unwrap();
        assert!(!sent.has(SECRET.as_bytes()));
        // One whose name is another's, or that is there twice, could be any.
        for names in [["other", "iban", "What"], ["what", "what", "other"]] {
            let named = names.map(|name| (name, values[0]));
            let (code, message) = flow.executes_named(b"u", &named).unwrap_err();
            assert_eq!(code, 0x2200);
            assert!(message.contains("cannot be told"), "{message}");
        }
        let (_, message) = flow.executes(b"u", &values[..2], false).unwrap_err();
        assert!(message.contains("cannot be told"), "{message}");
    }
}

#[test]
fn texts_have_their_values_encrypted() {
    for kind in KINDS {
        let vault = TestVault::new();
        let mut flow = protected(kind, &vault);
        let text = "INSERT INTO shop.customers (id, iban, photo) VALUES (7, 'it''s secret', 0xC0FFEE) \
                    IF NOT EXISTS";
        let sent = flow.asks(text, &[]).unwrap();
        for plain in [&b"secret"[..], b"C0FFEE", b"c0ffee"] {
            assert!(!sent.has(plain), "{kind:?}");
        }
        let new = sent.text();
        let stored = new.split('\'').nth(1).unwrap();
        assert_eq!(flow.opened("iban", &Some(stored.into())), b"it's secret");
        let blob = new.split("0x").nth(1).unwrap().split(')').next().unwrap();
        let blob: Vec<u8> = (0..blob.len() / 2)
            .map(|at| u8::from_str_radix(&blob[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        assert_eq!(flow.opened("photo", &Some(blob)), [0xC0, 0xFF, 0xEE]);
        assert!(new.starts_with("INSERT INTO shop.customers (id, iban, photo) VALUES (7, 'up1."));
        assert!(new.ends_with(") IF NOT EXISTS"));
        // It is answered by what is there.
        let found = [("[applied]", 0x04), ("id", 0x09), ("iban", 0x0D)];
        let row = [Some(&[0][..]), None, Some(stored.as_bytes())];
        let read = flow.reads(&found, &[&row]).unwrap();
        let plain = [Some(&[0][..]), None, Some(&b"it's secret"[..])];
        assert_eq!(read, rows_body(&found, &[&plain]), "{kind:?}");

        let text = "UPDATE shop.customers USING TTL ? SET iban = ? WHERE id = ?";
        let values = [Some(&b"\0\0\0\x09"[..]), Some(SECRET.as_bytes()), None];
        let sent = flow.asks(text, &values).unwrap();
        assert!(!sent.has(SECRET.as_bytes()));
        let stored = sent.values();
        assert_eq!(stored[0].as_deref(), values[0]);
        assert_eq!(flow.opened("iban", &stored[1]), SECRET.as_bytes());
        assert!(flow.asks(text, &values[..2]).is_err(), "too few");
        // What touches none of it goes on as it is.
        for text in [
            "SELECT id FROM shop.customers WHERE id = 7",
            "INSERT INTO other.customers (iban) VALUES ('x')",
            "INSERT INTO shop.customers (id, iban) VALUES (7, NULL)",
            "SELECT count(iban), writetime(iban), ttl(iban) FROM shop.customers",
            "DELETE iban FROM shop.customers WHERE id = 7",
            "TRUNCATE shop.customers",
            "ALTER TABLE shop.customers ADD x int",
            "CREATE INDEX ON shop.customers (id)",
            "CREATE MATERIALIZED VIEW shop.v AS SELECT id FROM shop.customers WHERE id IS NOT NULL \
             PRIMARY KEY (id)",
            "anything at all, which no database understands",
        ] {
            assert_eq!(flow.asks(text, &[]).unwrap().text(), text, "{kind:?}");
        }
    }
}

#[test]
fn a_batch_has_all_of_its_statements_encrypted() {
    for kind in KINDS {
        let vault = TestVault::new();
        let mut flow = protected(kind, &vault);
        let text = "INSERT INTO shop.customers (id, iban) VALUES (?, ?)";
        flow.prepares(b"insert", text, &CUSTOMERS[..2], &[])
            .unwrap();
        flow.prepares(
            b"other",
            "INSERT INTO shop.t (a, b) VALUES (?, ?)",
            &[],
            &[],
        )
        .unwrap();
        let id = Some(&b"\0\0\0\x07"[..]);
        let values = [id, Some(SECRET.as_bytes())];
        let children: [Child<'_>; 4] = [
            (Err(b"insert"), &values),
            (Err(b"other"), &values[..1]),
            (
                Ok("UPDATE shop.customers SET iban = 'DE02 secret' WHERE id = 1"),
                &[],
            ),
            (
                Ok("UPDATE shop.customers SET iban = ? WHERE id = ?"),
                &[values[1], id],
            ),
        ];
        let sent = flow.batches(&children).unwrap();
        assert!(
            !sent.has(SECRET.as_bytes()) && !sent.has(b"DE02"),
            "{kind:?}"
        );
        let batch = sent.batch();
        assert_eq!(batch[0].1[0].as_deref(), values[0]);
        assert_eq!(flow.opened("iban", &batch[0].1[1]), SECRET.as_bytes());
        assert_eq!(batch[1].1, [values[0].map(<[u8]>::to_vec)]);
        let stored = batch[2].0.split('\'').nth(1).unwrap();
        assert_eq!(flow.opened("iban", &Some(stored.into())), b"DE02 secret");
        assert_eq!(flow.opened("iban", &batch[3].1[0]), SECRET.as_bytes());
        assert_eq!(vault.counted(Fate::Encrypted), 3);

        let text = "BEGIN BATCH INSERT INTO shop.t (a) VALUES (?); UPDATE shop.customers SET iban = ? \
                    WHERE id = ? APPLY BATCH";
        let sent = flow.asks(text, &[id, values[1], id]).unwrap();
        assert!(!sent.has(SECRET.as_bytes()));
        assert_eq!(flow.opened("iban", &sent.values()[1]), SECRET.as_bytes());

        let unknown: [Child<'_>; 1] = [(Err(b"nobody's"), &values)];
        assert_eq!(flow.batches(&unknown).unwrap_err().0, 0x2500);
    }
}

/// A BATCH with as many statements as there can be: each is looked at once.
#[test]
fn a_batch_may_be_very_long() {
    let vault = TestVault::new();
    let mut flow = protected(KINDS[3], &vault);
    let text = "INSERT INTO shop.customers (id, iban) VALUES (?, ?)";
    flow.prepares(b"insert", text, &CUSTOMERS[..2], &[])
        .unwrap();
    let values = [Some(&b"\0\0\0\x07"[..]), Some(SECRET.as_bytes())];
    let one: Child<'_> = (Err(b"insert"), &values);
    let all = vec![one; usize::from(u16::MAX)];
    let sent = flow.batches(&all).unwrap();
    assert!(!sent.has(SECRET.as_bytes()));
    assert_eq!(vault.counted(Fate::Encrypted), all.len() as u64);
}

#[test]
fn a_table_is_that_of_the_keyspace_that_the_flow_is_in() {
    for kind in KINDS {
        let vault = TestVault::new();
        let mut flow = protected(kind, &vault);
        let text = "INSERT INTO customers (id, iban) VALUES (1, 'secret')";
        let (_, message) = flow.asks(text, &[]).unwrap_err();
        assert!(message.contains("write keyspace.table"), "{message}");
        flow.uses("other");
        assert_eq!(flow.asks(text, &[]).unwrap().text(), text);
        flow.uses("shop");
        assert!(!flow.asks(text, &[]).unwrap().has(b"secret"));
        let text = "INSERT INTO \"Customers\" (id, iban) VALUES (1, 'secret')";
        assert_eq!(flow.asks(text, &[]).unwrap().text(), text);
    }
}
