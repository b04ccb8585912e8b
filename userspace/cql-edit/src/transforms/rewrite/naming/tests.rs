//! Tests of `naming` on texts.

use super::super::renames::tests::renames;
use super::super::text::edited;
use super::*;
use proptest::prelude::*;

fn shop() -> Renames {
    renames(
        &[("shop", "shop_v2"), ("Yard", "Table")],
        &[("shop.orders", "shop_v2.orders_2026"), ("b.t", "b.T2")],
    )
}

/// Within `shop`, unless it says so.
fn made(renames: &Renames, text: &str, keyspace: Option<&str>) -> Result<String, &'static str> {
    let mut edits = Edits::new();
    let text_of = Text::new(text.as_bytes(), true);
    rename(renames, &text_of, keyspace, &mut edits).map_err(|refused| refused.reason)?;
    Ok(String::from_utf8(edited(text.as_bytes(), edits)).unwrap())
}

#[test]
fn each_name_that_is_a_keyspaces_or_a_tables_is_replaced() {
    let shop = shop();
    for (text, expected) in [
        // data
        (
            "SELECT * FROM shop.orders",
            "SELECT * FROM shop_v2.orders_2026",
        ),
        (
            "SELECT * FROM Shop . Orders",
            "SELECT * FROM shop_v2 . orders_2026",
        ),
        (
            "SELECT * FROM \"shop\".\"orders\"",
            "SELECT * FROM \"shop_v2\".\"orders_2026\"",
        ),
        ("SELECT * FROM \"Yard\".x", "SELECT * FROM \"Table\".x"),
        (
            "SELECT * FROM \"Shop\".orders",
            "SELECT * FROM \"Shop\".orders",
        ),
        ("SELECT * FROM Yard.orders", "SELECT * FROM Yard.orders"),
        (
            "SELECT shop, 'shop.orders' FROM orders",
            "SELECT shop, 'shop.orders' FROM orders_2026",
        ),
        (
            "SELECT orders FROM shop.other",
            "SELECT orders FROM shop_v2.other",
        ),
        ("SELECT * FROM b.t", "SELECT * FROM b.\"T2\""),
        ("SELECT * FROM b.orders", "SELECT * FROM b.orders"),
        (
            "SELECT * FROM shop_v2.orders",
            "SELECT * FROM shop_v2.orders_2026",
        ),
        (
            "SELECT shop.f(a), b FROM shop.x WHERE a = shop.g(?)",
            "SELECT shop_v2.f(a), b FROM shop_v2.x WHERE a = shop_v2.g(?)",
        ),
        (
            "INSERT INTO orders (shop) VALUES ('orders') USING TTL 3",
            "INSERT INTO orders_2026 (shop) VALUES ('orders') USING TTL 3",
        ),
        (
            "UPDATE shop.orders SET orders = 1 WHERE shop = 2",
            "UPDATE shop_v2.orders_2026 SET orders = 1 WHERE shop = 2",
        ),
        (
            "BEGIN BATCH DELETE FROM orders WHERE a = 1; INSERT INTO b.t (a) VALUES (1) \
             UPDATE shop.x SET a = 1 WHERE b = 2 APPLY BATCH",
            "BEGIN BATCH DELETE FROM orders_2026 WHERE a = 1; INSERT INTO b.\"T2\" (a) VALUES (1) \
             UPDATE shop_v2.x SET a = 1 WHERE b = 2 APPLY BATCH",
        ),
        // definitions and the like
        ("USE shop;", "USE shop_v2;"),
        ("use \"Yard\"", "use \"Table\""),
        (
            "TRUNCATE TABLE shop.orders",
            "TRUNCATE TABLE shop_v2.orders_2026",
        ),
        ("TRUNCATE orders;", "TRUNCATE orders_2026;"),
        (
            "CREATE KEYSPACE IF NOT EXISTS shop WITH replication = {'class': 'shop'}",
            "CREATE KEYSPACE IF NOT EXISTS shop_v2 WITH replication = {'class': 'shop'}",
        ),
        ("DROP SCHEMA shop", "DROP SCHEMA shop_v2"),
        (
            "CREATE TABLE shop.orders (orders int PRIMARY KEY, shop frozen<shop.kind>)",
            "CREATE TABLE shop_v2.orders_2026 (orders int PRIMARY KEY, shop frozen<shop_v2.kind>)",
        ),
        (
            "CREATE TABLE x LIKE shop.orders",
            "CREATE TABLE x LIKE shop_v2.orders_2026",
        ),
        (
            "ALTER TABLE orders ADD shop int",
            "ALTER TABLE orders_2026 ADD shop int",
        ),
        (
            "DROP TABLE IF EXISTS shop.orders",
            "DROP TABLE IF EXISTS shop_v2.orders_2026",
        ),
        (
            "CREATE CUSTOM INDEX orders ON shop.orders (shop) USING 'x'",
            "CREATE CUSTOM INDEX orders ON shop_v2.orders_2026 (shop) USING 'x'",
        ),
        (
            "CREATE INDEX ON orders (a)",
            "CREATE INDEX ON orders_2026 (a)",
        ),
        ("DROP INDEX shop.orders", "DROP INDEX shop_v2.orders"),
        (
            "CREATE MATERIALIZED VIEW shop.v AS SELECT (orders) FROM shop.orders WHERE a IS NOT NULL",
            "CREATE MATERIALIZED VIEW shop_v2.v AS SELECT (orders) FROM shop_v2.orders_2026 WHERE a IS \
             NOT NULL",
        ),
        (
            "DROP MATERIALIZED VIEW shop.v",
            "DROP MATERIALIZED VIEW shop_v2.v",
        ),
        (
            "CREATE TYPE shop.orders (a shop.b)",
            "CREATE TYPE shop_v2.orders (a shop_v2.b)",
        ),
        (
            "CREATE OR REPLACE FUNCTION shop.f (a shop.t) CALLED ON NULL INPUT RETURNS int LANGUAGE java \
             AS $$ shop.orders $$",
            "CREATE OR REPLACE FUNCTION shop_v2.f (a shop_v2.t) CALLED ON NULL INPUT RETURNS int LANGUAGE \
             java AS $$ shop.orders $$",
        ),
        (
            "DROP TRIGGER x ON shop.orders",
            "DROP TRIGGER x ON shop_v2.orders_2026",
        ),
        (
            "GRANT SELECT ON shop.orders TO shop",
            "GRANT SELECT ON shop_v2.orders_2026 TO shop",
        ),
        (
            "GRANT ALL ON KEYSPACE shop TO x",
            "GRANT ALL ON KEYSPACE shop_v2 TO x",
        ),
        (
            "REVOKE EXECUTE ON ALL FUNCTIONS IN KEYSPACE shop FROM x",
            "REVOKE EXECUTE ON ALL FUNCTIONS IN KEYSPACE shop_v2 FROM x",
        ),
        (
            "LIST ALL PERMISSIONS ON TABLE orders OF x",
            "LIST ALL PERMISSIONS ON TABLE orders_2026 OF x",
        ),
        ("GRANT shop TO orders", "GRANT shop TO orders"),
        (
            "CREATE ROLE shop WITH PASSWORD = 'x'",
            "CREATE ROLE shop WITH PASSWORD = 'x'",
        ),
        ("DESCRIBE KEYSPACES", "DESCRIBE KEYSPACES"),
    ] {
        assert_eq!(made(&shop, text, Some("shop")).as_deref(), Ok(expected));
    }
}

#[test]
fn what_may_name_something_and_is_not_understood_is_refused() {
    let shop = shop();
    for text in [
        "DESCRIBE TABLE shop.orders",
        "DESC shop",
        "BEGIN TRANSACTION UPDATE shop.orders SET a = 1 WHERE b = 2; COMMIT TRANSACTION",
        "SELECT * FROM shop.orders USING SOMETHING 2s",
        "SELECT * FROM shop.orders.x",
        "SELECT shop.field FROM t",
        "SELECT a.shop.f(b) FROM t",
        "UPDATE t SET a = (shop.kind) {b: 1} WHERE c = 2",
        "SELECT 'open FROM shop.orders",
        "SELECT * FROM \"shop\u{e9}\".x, shop.y",
        "SELECT * FROM shop.orders -- and no end",
        "CREATE MATERIALIZED VIEW shop.v",
        "CREATE INDEX orders",
        "CREATE SOMETHING shop.orders",
        "USE shop shop",
        "shop",
    ] {
        assert_eq!(made(&shop, text, Some("shop")), Err("renamed"), "{text}");
    }
    let long = format!("SELECT * FROM shop.t WHERE a = '{}'", "x".repeat(300_000));
    assert_eq!(made(&shop, &long, None), Err("renamed"));
    // What stands far behind is found, too, whichever keyspace the connection is in.
    let far = |table: &str| format!("SELECT {}a FROM {table}", "a, ".repeat(10_000));
    let made_far = made(&shop, &far("shop.orders"), Some("system"));
    assert_eq!(made_far, Ok(far("shop_v2.orders_2026")));
    // In which keyspace is not known.
    for text in ["SELECT * FROM orders", "TRUNCATE orders", "DROP TABLE t"] {
        assert_eq!(made(&shop, text, None), Err("keyspace"), "{text}");
    }
}

#[test]
fn the_servers_own_tables_are_asked_for_the_databases_names() {
    let shop = shop();
    for (text, expected) in [
        (
            "SELECT * FROM system_schema.tables WHERE keyspace_name = 'shop' AND table_name = 'orders'",
            "SELECT * FROM system_schema.tables WHERE keyspace_name = 'shop_v2' AND table_name = \
             'orders_2026'",
        ),
        (
            "SELECT * FROM system_schema.columns WHERE keyspace_name IN ('shop', $$Yard$$, 'it''s', ?)",
            "SELECT * FROM system_schema.columns WHERE keyspace_name IN ('shop_v2', 'Table', 'it''s', ?)",
        ),
        (
            "SELECT shop FROM system.local WHERE key = 'shop'",
            "SELECT shop FROM system.local WHERE key = 'shop'",
        ),
        (
            "SELECT * FROM system_schema.tables WHERE keyspace_name = 'b' AND table_name = 'orders'",
            "SELECT * FROM system_schema.tables WHERE keyspace_name = 'b' AND table_name = 'orders'",
        ),
        (
            "SELECT shop.f(keyspace_name) FROM system_schema.tables",
            "SELECT shop_v2.f(keyspace_name) FROM system_schema.tables",
        ),
        (
            "SELECT * FROM system_schema.keyspaces USING TIMEOUT 2s",
            "SELECT * FROM system_schema.keyspaces USING TIMEOUT 2s",
        ),
        (
            "SELECT * FROM system_schema.tables WHERE keyspace_name = 'shop' BYPASS CACHE",
            "SELECT * FROM system_schema.tables WHERE keyspace_name = 'shop_v2' BYPASS CACHE",
        ),
        (
            "SELECT * FROM system_schema.tables WHERE keyspace_name = 'shop' AND table_name = 'orders' USING TIMEOUT 2000ms",
            "SELECT * FROM system_schema.tables WHERE keyspace_name = 'shop_v2' AND table_name = 'orders_2026' USING TIMEOUT \
             2000ms",
        ),
    ] {
        assert_eq!(made(&shop, text, None).as_deref(), Ok(expected));
    }
    for (text, reason) in [
        (
            "SELECT * FROM system_schema.tables WHERE keyspace_name IN ('a', 'b') AND table_name = 't'",
            "lookup",
        ),
        (
            "SELECT * FROM system_schema.tables WHERE table_name = 'orders' ALLOW FILTERING",
            "lookup",
        ),
        (
            "SELECT * FROM system_schema.tables WHERE keyspace_name = 'shop' SOMEHOW",
            "renamed",
        ),
        (
            "SELECT * FROM system_schema.tables WHERE keyspace_name = ? SOMEHOW",
            "renamed",
        ),
    ] {
        assert_eq!(made(&shop, text, None), Err(reason), "{text}");
    }
}

/// Texts that are understood, of these names.
fn texts() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec![
        "shop",
        "orders",
        "yard",
        "t",
        "x",
        "\"shop\"",
        "\"orders\"",
        "\"Shop\"",
        "\"x\"",
    ]);
    let table = prop_oneof![
        name.clone().prop_map(str::to_owned),
        (name.clone(), name.clone()).prop_map(|(a, b)| format!("{a}.{b}")),
    ];
    let form = prop::sample::select(vec![
        "SELECT {n}, 'shop' FROM {t} WHERE {n} = ?;",
        "insert into {t}({n})values(1) -- shop\n",
        "UPDATE/* orders */{t} USING TTL 1 SET {n} = 'orders' WHERE a = {s}",
        "BEGIN BATCH DELETE FROM {t} WHERE a = 1 APPLY BATCH",
        "TRUNCATE {t}",
        "DROP TABLE {t}",
        "USE {n}",
        "CREATE INDEX ON {t} ({n})",
        "GRANT SELECT ON {t} TO {n}",
    ]);
    let string = prop::sample::select(vec!["'it''s'", "$$shop.$$", "0xcafe", ":shop"]);
    (form, table, name, string).prop_map(|(form, table, name, string)| {
        form.replace("{t}", &table)
            .replace("{n}", name)
            .replace("{s}", string)
    })
}

proptest! {
    #[test]
    fn what_has_no_such_name_is_not_touched(text in texts(), noise in ".{0,40}") {
        let other = renames(&[("absent", "other")], &[("shop.nothing", "shop.everything")]);
        for text in [&text, &noise] {
            prop_assert_eq!(&made(&other, text, None).unwrap(), text);
        }
    }

    #[test]
    fn there_and_back_is_where_it_began(text in texts()) {
        let there = renames(&[("shop", "garage"), ("yard", "a_b")], &[("shop.orders", "garage.cars")]);
        let back = renames(&[("garage", "shop"), ("a_b", "yard")], &[("garage.cars", "shop.orders")]);
        let there = made(&there, &text, Some("shop"));
        prop_assert!(there.is_ok(), "{text}: {there:?}");
        let again = made(&back, &there.unwrap(), Some("garage"));
        prop_assert_eq!(again, Ok(text));
    }

    #[test]
    fn noise_does_no_harm(noise: Vec<u8>, keyspace: bool) {
        let text = [&b"select shop.orders "[..], &noise].concat();
        let text = Text::new(&text, true);
        let _ = rename(&shop(), &text, keyspace.then_some("shop"), &mut Edits::new());
    }
}
