//! Statements that do not reach the database, because values would, or would be looked for among what is
//! encrypted.

use cql_edit::protect::Fate;

use super::database::*;
use crate::support::edit::*;

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
