//! The database's names in place of the client's, in the text of a statement.
//!
//! A text in which none of them stands goes on as it is. One that is followed to its end has each name
//! that is a table's or a keyspace's replaced; `definitions` are those that change no data. Whatever else
//! has one of them in it may mean something that is called otherwise, and is refused: it is never sent
//! to what the database has under that name.

use std::collections::HashSet;

use super::lookups::{self, Lookups};
use super::renames::Renames;
use super::text::{Edits, Text};
use super::{definitions, refusal};
use crate::analysis::{Part, Sites, Spot};
use crate::edit::Refused;
use crate::lex::Name;
use crate::parse::parse;
use crate::session::is_system_keyspace;
use crate::statement::StatementKind;

/// What came of a text.
#[derive(Debug, Default)]
pub(super) struct Named {
    /// Its response may have names in it.
    pub(super) answers_names: bool,
    /// It reads a table of the server's that tells of others.
    pub(super) lookups: Option<Lookups>,
}

/// Why a text is refused.
pub(super) fn refused() -> Refused {
    refusal(
        "renamed",
        "the proxy's policy calls something otherwise that the statement seems to name, and does not \
         understand the statement",
    )
}

/// `keyspace`: that of what has none, by the client's name.
pub(super) fn rename(
    renames: &Renames,
    text: &Text<'_>,
    keyspace: Option<&str>,
    edits: &mut Edits,
) -> Result<Named, Refused> {
    let bytes = text.bytes;
    let statement = parse(bytes, bytes.len()).statement;
    let stored = statement.keyspace.map(Name::to_boxed);
    let of = stored.as_deref().or(keyspace);
    let is_lookup = statement.kind == StatementKind::Select && of.is_some_and(is_system_keyspace);
    let changes_no_data = !matches!(
        statement.kind,
        StatementKind::Select
            | StatementKind::Insert
            | StatementKind::Update
            | StatementKind::Delete
            | StatementKind::Batch
    );
    let mut named = Named {
        answers_names: stored.is_none() || changes_no_data,
        lookups: None,
    };
    // By its beginning; what it is for sure is said by its sites.
    let is_named = renames.may_be_in(bytes);
    if !is_named && !is_lookup {
        return Ok(named);
    }
    named.answers_names = true;
    let Some((spots, sites)) = text.sites() else {
        if is_lookup {
            // Without names, and without markers for them, only its rows matter.
            let may_pass = !is_named && !bytes.iter().any(|byte| b"?:".contains(byte));
            named.lookups = may_pass.then(Lookups::default);
            return named.lookups.is_some().then_some(named).ok_or_else(refused);
        }
        let spots = text.spots().ok_or_else(refused)?;
        let mut naming = Naming::new(renames, keyspace, spots, edits);
        definitions::name(&mut naming)?;
        return Ok(named);
    };
    if is_of_the_server(sites, spots, keyspace) {
        named.lookups = Some(lookups::find(renames, bytes, spots, sites, edits)?);
        Naming::new(renames, keyspace, spots, edits).qualifiers(false)?;
    } else {
        Naming::new(renames, keyspace, spots, edits).data(sites)?;
    }
    Ok(named)
}

/// Whether it is a SELECT from one of the server's own tables.
fn is_of_the_server(sites: &Sites<'_>, spots: &[Spot<'_>], keyspace: Option<&str>) -> bool {
    let [part] = &*sites.parts else {
        return false;
    };
    let own = part.keyspace.and_then(|at| spots.get(at)?.name());
    let own = own.map(Name::to_boxed);
    part.kind == StatementKind::Select
        && own.as_deref().or(keyspace).is_some_and(is_system_keyspace)
}

/// One text is given other names.
pub(super) struct Naming<'n, 't> {
    pub(super) renames: &'n Renames,
    /// Of what has none.
    pub(super) keyspace: Option<&'n str>,
    pub(super) spots: &'n [Spot<'t>],
    edits: &'n mut Edits,
    /// Tokens that are known to be names of keyspaces or tables.
    done: HashSet<usize>,
}

impl<'n, 't> Naming<'n, 't> {
    fn new(
        renames: &'n Renames,
        keyspace: Option<&'n str>,
        spots: &'n [Spot<'t>],
        edits: &'n mut Edits,
    ) -> Self {
        Self {
            renames,
            keyspace,
            spots,
            edits,
            done: HashSet::new(),
        }
    }

    fn data(&mut self, sites: &Sites<'t>) -> Result<(), Refused> {
        for Part {
            keyspace, table, ..
        } in &sites.parts
        {
            self.table(*keyspace, *table)?;
        }
        self.qualifiers(false)
    }

    /// A table's name, and that of its keyspace if there is one; by the places of their tokens.
    pub(super) fn table(&mut self, keyspace: Option<usize>, table: usize) -> Result<(), Refused> {
        let table_name = self.name(table)?.to_boxed();
        let of = match keyspace {
            Some(at) => {
                let of = self.name(at)?.to_boxed();
                self.keyspace(at)?;
                Some(of)
            }
            None => self.keyspace.map(Box::from),
        };
        self.done.insert(table);
        match of {
            Some(of) => {
                let renames = self.renames;
                if let Some(called) = renames.database_table(&of, &table_name) {
                    self.write(table, called);
                }
                Ok(())
            }
            None if self.renames.renames_some_table(&table_name) => Err(refusal(
                "keyspace",
                "the proxy's policy calls a table of that name otherwise, and does not know in which \
                 keyspace the connection is; name the keyspace",
            )),
            None => Ok(()),
        }
    }

    /// A keyspace's name.
    pub(super) fn keyspace(&mut self, at: usize) -> Result<(), Refused> {
        let name = self.name(at)?.to_boxed();
        let renames = self.renames;
        self.done.insert(at);
        if renames.renames_keyspace(&name) {
            self.write(at, renames.database_keyspace(&name));
        }
        Ok(())
    }

    /// What else is qualified by a keyspace: functions, and `types` where such may stand.
    pub(super) fn qualifiers(&mut self, types: bool) -> Result<(), Refused> {
        for (at, spot) in self.spots.iter().enumerate() {
            let is_sign =
                |at: usize, sign| self.spots.get(at).is_some_and(|spot| spot.is_sign(sign));
            let Some(name) = spot.name() else {
                continue;
            };
            let is_keyspace = self.renames.renames_keyspace(&name.to_boxed());
            if !is_keyspace || !is_sign(at + 1, b'.') || self.done.contains(&at) {
                continue;
            }
            let is_part = at
                .checked_sub(1)
                .is_some_and(|before| is_sign(before, b'.'));
            // What is called is a function, whatever stands before the dot.
            if is_part || !(types || is_sign(at + 3, b'(')) {
                return Err(refused());
            }
            self.keyspace(at)?;
        }
        Ok(())
    }

    /// Nothing of it is a name that could mean something else.
    pub(super) fn has_no_name(&self) -> Result<(), Refused> {
        let mut names = self.spots.iter().filter_map(Spot::name);
        match names.any(|name| self.renames.has_name(name)) {
            true => Err(refused()),
            false => Ok(()),
        }
    }

    fn name(&self, at: usize) -> Result<Name<'t>, Refused> {
        let spot = self.spots.get(at);
        spot.and_then(Spot::name).ok_or_else(refused)
    }

    fn write(&mut self, at: usize, name: &str) {
        let Some(spot) = self.spots.get(at) else {
            return;
        };
        let is_quoted = matches!(spot.name(), Some(Name::Quoted(_)));
        let first = name.bytes().next().unwrap_or_default();
        let needs_quotes = !first.is_ascii_lowercase()
            || name.bytes().any(|byte| byte.is_ascii_uppercase())
            || crate::analysis::is_reserved(name);
        let written = match is_quoted || needs_quotes {
            true => format!("\"{name}\""),
            false => name.to_owned(),
        };
        self.edits.push((spot.at.clone(), written));
    }
}

#[cfg(test)]
mod tests {
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
            "SELECT * FROM shop.orders BYPASS CACHE",
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
                "SELECT * FROM system_schema.tables WHERE keyspace_name = 'shop' BYPASS CACHE",
                "renamed",
            ),
            (
                "SELECT * FROM system_schema.tables WHERE keyspace_name = ? BYPASS CACHE",
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
}
