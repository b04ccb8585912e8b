//! Encrypted columns: what the database gets, and what the client.

#[cfg(test)]
#[allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of it"
)]
mod support;

#[cfg(test)]
#[path = "protecting/database.rs"]
mod database;

#[cfg(test)]
mod tests {
    use super::database::*;
    use super::support::edit::*;
    use cql::Analysis;
    use cql::protect::{Failures, Fate};

    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    const SECRET: &str = "DE89 3704 0044 0532 0130 00";

    const CUSTOMERS: [Spec; 3] = [("id", 0x09), ("iban", 0x0D), ("photo", 0x03)];

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
            assert!(
                new.starts_with("INSERT INTO shop.customers (id, iban, photo) VALUES (7, 'up1.")
            );
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

    /// As many as a BATCH can have: each is looked at once.
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
    fn what_cannot_be_followed_is_refused() {
        const BY_TEXT: &[(&str, &str)] = &[
            (
                "SELECT id FROM shop.customers WHERE iban = 'secret'",
                "shop.customers.iban is encrypted and cannot be compared",
            ),
            (
                "SELECT id FROM customers WHERE iban IN ('secret') ALLOW FILTERING",
                "cannot be compared",
            ),
            (
                "SELECT id FROM shop.customers WHERE \"iban\" > 'secret'",
                "cannot be compared",
            ),
            (
                "SELECT id FROM shop.customers WHERE token(iban) > 1",
                "cannot be compared",
            ),
            (
                "SELECT id FROM shop.customers ORDER BY iban",
                "cannot be compared",
            ),
            (
                "SELECT id FROM shop.customers GROUP BY id, iban",
                "cannot be compared",
            ),
            (
                "UPDATE shop.customers SET photo = 0x WHERE id = 1 IF iban = 'secret'",
                "cannot be compared",
            ),
            (
                "DELETE FROM shop.customers WHERE id = 1 IF iban = 'secret'",
                "cannot be compared",
            ),
            (
                "SELECT blobAsText(photo) FROM shop.customers",
                "only the column itself",
            ),
            (
                "SELECT max(iban) AS m FROM shop.customers",
                "only the column itself",
            ),
            (
                "SELECT CAST(iban AS ascii) FROM shop.customers",
                "only the column itself",
            ),
            (
                "SELECT id, (iban, id) FROM shop.customers",
                "only the column itself",
            ),
            (
                "SELECT ks.count(iban) FROM shop.customers",
                "only the column itself",
            ),
            ("SELECT JSON * FROM shop.customers", "as JSON"),
            ("SELECT JSON id, iban FROM shop.customers", "as JSON"),
            (
                "INSERT INTO shop.customers JSON '{\"id\": 1, \"iban\": \"secret\"}'",
                "as JSON",
            ),
            (
                "INSERT INTO shop.customers (id, iban) VALUES (1, (text)'secret')",
                "bind the value",
            ),
            (
                "INSERT INTO shop.customers (id, iban) VALUES (1, blobAsText(0x736563726574))",
                "bind the value",
            ),
            (
                "UPDATE shop.customers SET iban = iban + 'secret' WHERE id = 1",
                "bind the value",
            ),
            (
                "UPDATE shop.customers SET iban += 'secret' WHERE id = 1",
                "bind the value",
            ),
            (
                "UPDATE shop.customers SET iban['k'] = 'secret' WHERE id = 1",
                "bind the value",
            ),
            (
                "UPDATE shop.customers SET iban.f = 'secret' WHERE id = 1",
                "bind the value",
            ),
            (
                "UPDATE shop.customers SET iban = 'secret' 'more' WHERE id = 1",
                "is not understood",
            ),
            (
                "INSERT INTO shop.customers (id, iban) VALUES (1, 'secret') BYPASS CACHE",
                "is not understood",
            ),
            (
                "INSERT INTO shop.customers (id, iban) VALUES (1, 'secret",
                "is not understood",
            ),
            (
                "BEGIN TRANSACTION INSERT INTO shop.customers (id, iban) VALUES (1, 'secret'); COMMIT TRANSACTION",
                "is not understood",
            ),
            ("PRUNE shop.customers", "is not understood"),
            (
                "BEGIN BATCH INSERT INTO shop.t (a) VALUES (1) INSERT INTO shop.customers JSON 'secret' APPLY BATCH",
                "as JSON",
            ),
            (
                "CREATE INDEX ON shop.customers (iban)",
                "an index over it would find nothing",
            ),
            (
                "CREATE CUSTOM INDEX IF NOT EXISTS i ON shop.customers (\"iban\") USING 'sai'",
                "would find nothing",
            ),
            (
                "CREATE MATERIALIZED VIEW shop.v AS SELECT * FROM shop.customers WHERE id IS NOT NULL PRIMARY KEY (id)",
                "a materialized view would hide",
            ),
            (
                "CREATE MATERIALIZED VIEW shop.v AS SELECT id, iban FROM shop.customers WHERE id IS NOT NULL PRIMARY KEY (id)",
                "a materialized view would hide",
            ),
        ];
        for kind in KINDS {
            let vault = TestVault::new();
            let mut flow = protected(kind, &vault);
            flow.uses("shop");
            for (text, expected) in BY_TEXT {
                let by_query = flow.asks(text, &[]).unwrap_err();
                let by_prepare = flow.prepares(b"id", text, &[], &[]).unwrap_err();
                let children: [Child<'_>; 1] = [(Ok(text), &[])];
                let by_batch = flow.batches(&children).unwrap_err();
                assert_eq!(by_query, by_batch);
                for (code, message) in [by_query, by_prepare] {
                    assert_eq!(code, 0x2200, "{text}");
                    assert!(message.contains(expected), "{text}: {message}");
                    assert!(!message.contains("secret"), "{message}");
                    assert!(
                        message.starts_with("underpass: refused by rule r: "),
                        "{message}"
                    );
                }
            }
            let long = format!(
                "SELECT id FROM shop.customers WHERE id IN ({}1)",
                "1,".repeat(200_000)
            );
            assert!(flow.asks(&long, &[]).unwrap_err().1.contains("256 KiB"));
            let two = ["INSERT INTO shop.customers (id, iban) VALUES (1, 'secret')"; 8_000];
            let two: Vec<Child<'_>> = two.iter().map(|text| (Ok(*text), &[][..])).collect();
            assert!(flow.batches(&two).unwrap_err().1.contains("too large"));
            assert_eq!(vault.counted(Fate::Encrypted), 0);
        }
    }

    #[test]
    fn what_is_prepared_is_refused_for_what_the_database_says_of_it() {
        for kind in KINDS {
            let vault = TestVault::new();
            let mut flow = protected(kind, &vault);
            let insert = "INSERT INTO shop.customers (id, iban) VALUES (?, ?)";
            let refused = |flow: &mut Protected, text: &str, specs: &[Spec], result: &[Spec]| {
                flow.prepares(b"id", text, specs, result).unwrap_err().1
            };
            let message = refused(&mut flow, insert, &[("id", 9), ("iban", 9)], &[]);
            assert!(message.contains("neither text nor blob"), "{message}");
            let select = "SELECT iban AS x FROM shop.customers";
            let message = refused(&mut flow, select, &[], &[("x", 0x0C)]);
            assert!(message.contains("neither text nor blob"), "{message}");
            // Other values than the text has.
            for specs in [
                &[("iban", 0x0D), ("id", 9)][..],
                &[("iban", 0x0D)],
                &[("id", 9), ("iban", 0x0D), ("photo", 3)],
            ] {
                let message = refused(&mut flow, insert, specs, &[]);
                assert!(message.contains("cannot be told"), "{message}");
            }
            // A column of which the text says nothing.
            let other = "INSERT INTO shop.t (id) VALUES (?)";
            let message = refused(&mut flow, other, &[("iban", 0x0D)], &[]);
            assert!(
                message.contains("shop.customers.iban is encrypted"),
                "{message}"
            );
            let text = "INSERT INTO shop.customers (id, iban) VALUES (?, 'secret')";
            let message = refused(&mut flow, text, &[("id", 9)], &[]);
            assert!(
                message.contains("cannot have a value of it in its text"),
                "{message}"
            );
            for text in [
                "INSERT INTO shop.customers (id, iban) VALUES (:x, :x)",
                "INSERT INTO shop.customers (id, iban) VALUES (:x, ?)",
            ] {
                let message = refused(&mut flow, text, &CUSTOMERS[..2], &[]);
                assert!(message.contains("cannot be told"), "{text}: {message}");
            }
            let message = refused(&mut flow, "USE shop", &[], &[]);
            assert!(message.contains("USE cannot be prepared"), "{message}");
            if kind.version > 3 {
                let insert = "INSERT INTO shop.customers (iban, id) VALUES (?, ?)";
                let specs = [("iban", 0x0D), ("id", 0x0D)];
                let message = refused(&mut flow, insert, &specs, &[]);
                assert!(message.contains("part of the partition key"), "{message}");
            }
            // None of them can be executed.
            let (code, _) = flow.executes(b"id", &[], false).unwrap_err();
            assert_eq!(code, 0x2500);
        }
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

    #[test]
    fn a_result_is_read_by_what_was_selected() {
        for kind in KINDS {
            let vault = TestVault::new();
            let mut flow = protected(kind, &vault);
            let sealed = flow.sealed("iban", SECRET.as_bytes());
            let id = Some(&b"\0\0\0\x01"[..]);
            let (cell, plain) = (Some(&sealed[..]), Some(SECRET.as_bytes()));
            type Case<'a> = (&'a str, &'a [Spec], &'a [Value<'a>], &'a [Value<'a>]);
            let cases: [Case<'_>; 4] = [
                (
                    "SELECT * FROM shop.customers",
                    &CUSTOMERS,
                    &[id, cell, None],
                    &[id, plain, None],
                ),
                (
                    "SELECT iban AS photo, iban, id FROM shop.customers",
                    &[("photo", 0x0D), ("iban", 0x0D), ("id", 9)],
                    &[cell, cell, id],
                    &[plain, plain, id],
                ),
                // What is only called so is another's.
                (
                    "SELECT iban AS x, note AS iban FROM shop.customers",
                    &[("x", 0x0D), ("iban", 0x0D)],
                    &[cell, cell],
                    &[plain, cell],
                ),
                (
                    "SELECT note AS iban, id FROM shop.customers",
                    &[("iban", 0x0D), ("id", 9)],
                    &[cell, id],
                    &[cell, id],
                ),
            ];
            for (text, found, stored, expected) in cases {
                flow.asks(text, &[]).unwrap();
                let read = flow.reads(found, &[stored, stored]).unwrap();
                assert_eq!(
                    read,
                    rows_body(found, &[expected, expected]),
                    "{kind:?} {text}"
                );
            }
            let text = "SELECT id, iban FROM shop.customers";
            flow.asks(text, &[]).unwrap();
            let (_, message) = flow.reads(&CUSTOMERS, &[&[id, cell, None]]).unwrap_err();
            assert!(
                message.contains("other columns than were asked for"),
                "{message}"
            );
            flow.asks(text, &[]).unwrap();
            let (_, message) = flow
                .reads(&[("id", 9), ("iban", 0x0C)], &[&[id, cell]])
                .unwrap_err();
            assert!(message.contains("neither text nor blob"), "{message}");
            // Rows that cannot be read, and what are none.
            flow.asks(text, &[]).unwrap();
            let no_metadata = [2_i32, 4, 2, 0].map(i32::to_be_bytes).concat();
            let (_, message) = flow.answered(&no_metadata).unwrap_err();
            assert!(message.contains("cannot be read"), "{message}");
            flow.asks(text, &[]).unwrap();
            let void = 1_i32.to_be_bytes();
            assert_eq!(flow.answered(&void).unwrap(), void);
        }
    }

    #[test]
    fn what_cannot_be_decrypted_is_an_error_or_passes_as_it_is_said() {
        let kind = KINDS[3];
        let id = Some(&b"\0\0\0\x01"[..]);
        let strict = Failures {
            unencrypted_passes: false,
            keyless_passes: false,
        };
        let lenient = Failures {
            unencrypted_passes: true,
            keyless_passes: true,
        };
        for (failures, passes) in [(strict, false), (lenient, true)] {
            let vault = TestVault::new();
            let mut flow = protected_with(kind, &vault, failures);
            let sealed = flow.sealed("iban", SECRET.as_bytes());
            let text = String::from_utf8(sealed.clone()).unwrap();
            let gone = text.replace("up1.old.", "up1.gone.").into_bytes();
            let mut bent = sealed.clone();
            *bent.last_mut().unwrap() ^= 1;
            for (cell, fate, may_pass) in [
                (
                    &b"a plain one"[..],
                    if passes {
                        Fate::Unencrypted
                    } else {
                        Fate::UnencryptedRefused
                    },
                    true,
                ),
                (&gone, Fate::UnknownKey, true),
                (&bent, Fate::Tampered, false),
            ] {
                flow.asks("SELECT * FROM shop.customers", &[]).unwrap();
                let row = [id, Some(cell), None];
                let read = flow.reads(&CUSTOMERS, &[&row]);
                match passes && may_pass {
                    true => assert_eq!(read.unwrap(), rows_body(&CUSTOMERS, &[&row])),
                    false => {
                        let (code, message) = read.unwrap_err();
                        assert_eq!(code, 0x2200);
                        assert!(message.contains("shop.customers.iban"), "{message}");
                        let secret = String::from_utf8_lossy(cell).into_owned();
                        assert!(!message.contains(&secret), "{message}");
                    }
                }
                assert_eq!(vault.counted(fate), 1, "{fate}");
            }
            assert_eq!(vault.missed(), ["gone"]);
            // Without keys nothing is written, whatever the setting.
            vault.lose_keys();
            flow.asks("SELECT * FROM shop.customers", &[]).unwrap();
            let row = [id, Some(&sealed[..]), None];
            let read = flow.reads(&CUSTOMERS, &[&row]);
            assert_eq!(read.is_ok(), passes);
            let text = "INSERT INTO shop.customers (id, iban) VALUES (1, 'secret')";
            let (code, message) = flow.asks(text, &[]).unwrap_err();
            assert_eq!(code, 0x1001);
            assert!(message.contains("no keys"), "{message}");
        }
    }

    /// It passes as it is, with other values, or not at all; gives how many values were encrypted, and whether
    /// it was refused.
    fn same_statement(text: &str, table: &str, column: &str) -> Option<(u64, bool)> {
        let vault = TestVault::new();
        let mut flow = protected_columns(KINDS[3], &vault, table, &[column])?;
        flow.uses("shop");
        let sent = match flow.asks(text, &[]) {
            Err((0x2200, _)) => return Some((0, true)),
            Err(other) => panic!("{text}: {other:?}"),
            Ok(sent) => sent,
        };
        let new = sent.text();
        let fingerprint = |text: &str| Analysis::of(text.as_bytes(), text.len()).fingerprint;
        assert_eq!(fingerprint(&new), fingerprint(text), "{text}\n{new}");
        let sealed = ["up1.old.", "0x7570312e6f6c642e"].map(|begins| new.matches(begins).count());
        let sealed = sealed.iter().sum::<usize>() as u64;
        assert_eq!(vault.counted(Fate::Encrypted), sealed, "{text}\n{new}");
        assert_eq!(new == text, sealed == 0, "{text}\n{new}");
        Some((sealed, false))
    }

    /// Every statement of the fuzzer's corpus, with each of its words as an encrypted column of its table.
    #[test]
    fn what_is_changed_is_the_same_statement_with_other_values() {
        const MAX_WORDS: usize = 40;
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/statement");
        let (mut changed, mut refused) = (0, 0);
        for file in fs::read_dir(corpus).unwrap() {
            let bytes = fs::read(file.unwrap().path()).unwrap();
            let Ok(text) = std::str::from_utf8(bytes.get(1..).unwrap_or_default()) else {
                continue;
            };
            let statement = Analysis::of(text.as_bytes(), text.len()).statement;
            let Some(table) = statement.table else {
                continue;
            };
            let table = format!(
                "{}.{table}",
                statement.keyspace.as_deref().unwrap_or("shop")
            );
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let words: BTreeSet<String> = words.map(str::to_ascii_lowercase).collect();
            for word in words.iter().filter(|word| !word.is_empty()).take(MAX_WORDS) {
                let (values, is_refused) = same_statement(text, &table, word).unwrap_or_default();
                changed += values;
                refused += u64::from(is_refused);
            }
        }
        assert!(
            changed > 0 && refused > 100,
            "{changed} changed, {refused} refused"
        );
    }

    /// The same of statements in which a byte is another, is missing, or is there twice; a value that is
    /// still where it was is never in what goes on.
    #[test]
    fn a_mistake_lets_no_value_past() {
        const PLAIN: &str = "plain5ecret";
        let texts = [
            "INSERT INTO shop.customers (id, iban) VALUES (1, 'plain5ecret') IF NOT EXISTS USING TTL 5",
            "UPDATE shop.customers SET iban = 'plain5ecret', n = n + {'x'} WHERE id = 1 IF n = 2",
            "BEGIN BATCH UPDATE shop.customers SET iban = $$plain5ecret$$ WHERE id = 1; APPLY BATCH",
            "BEGIN BATCH INSERT INTO t (a) VALUES ('b') INSERT INTO shop.customers (iban) VALUES ('plain5ecret') APPLY BATCH;",
        ];
        let (mut changed, mut refused) = (0, 0);
        for text in texts {
            for at in 0..text.len() {
                for new in [
                    "", "''", "$", "/*", "--", ";", " ", ":", "(", ")", "?", "\"", "x",
                ] {
                    let text = format!("{}{new}{}", &text[..at], &text[at + 1..]);
                    let (values, is_refused) =
                        same_statement(&text, "shop.customers", "iban").unwrap();
                    changed += values;
                    refused += u64::from(is_refused);
                    // Neither the table nor the column is another one, and the value is written.
                    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                    let words: BTreeSet<&str> = words.collect();
                    let names = ["shop", "customers", "iban"].map(|name| words.contains(name));
                    let names = !names.contains(&false);
                    if names && text.contains(PLAIN) && values == 0 && !is_refused {
                        let analysis = Analysis::of(text.as_bytes(), text.len());
                        panic!("it passes: {text}: {analysis:?}");
                    }
                }
            }
        }
        assert!(
            changed > 500 && refused > 1_000,
            "{changed} changed, {refused} refused"
        );
    }

    /// Whoever asks twice on one stream may have one answer taken for the other, and what was prepared for
    /// one for the other; for all flows of the rule.
    #[test]
    fn a_stream_has_one_request_at_a_time() {
        for kind in KINDS {
            let vault = TestVault::new();
            let mut flow = protected(kind, &vault);
            flow.asks("SELECT iban FROM shop.customers", &[]).unwrap();
            let text = "INSERT INTO shop.t (id) VALUES (:x)";
            let (code, message) = flow.prepares(b"id", text, &[], &[]).unwrap_err();
            assert_eq!(
                (code, message.as_str()),
                (0x000A, "stream 7 waits for a response")
            );
            flow.answered(&1_i32.to_be_bytes()).unwrap();
            flow.prepares(b"id", text, &[], &[]).unwrap();
        }
    }

    /// Where chunks are cut changes nothing; nothing of a value is in any of them.
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

    #[test]
    fn a_result_that_is_too_large_to_be_seen_is_withheld() {
        for kind in [KINDS[0], KINDS[3]] {
            let vault = TestVault::new();
            let mut flow = protected(kind, &vault);
            flow.asks("SELECT iban FROM shop.customers", &[]).unwrap();
            let large = vec![b'x'; cql::edit::MAX_SEEN_BYTES + 1];
            let body = rows_body(&[("iban", 0x0D)], &[&[Some(&large)]]);
            let (code, message) = flow.answered(&body).unwrap_err();
            assert_eq!(code, 0x2200);
            assert!(message.contains("smaller pages"), "{message}");
            // The flow goes on.
            flow.asks("SELECT iban FROM shop.customers", &[]).unwrap();
            let void = 1_i32.to_be_bytes();
            assert_eq!(flow.answered(&void).unwrap(), void);
        }
    }
}
