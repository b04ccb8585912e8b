//! [`Renames`]: keyspaces and tables that the database calls otherwise than its clients do.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::refusal::refusal;
use crate::{Caller, Names, Refused};
use cql::is_system_keyspace;
use cql::text::Name;

/// Most names that a step replaces. More are a migration, not a detour.
const MAX_RENAMES: usize = 256;

/// Cassandra's own limit for a keyspace and a table together, in bytes (`SchemaConstants.java`).
const MAX_NAME_BYTES: usize = 222;

/// Renamed keyspaces and tables, by the client's names and by the database's.
#[derive(Debug, Default)]
pub(super) struct Renames {
    keyspaces: HashMap<String, String>,
    /// By keyspace and table.
    tables: HashMap<(String, String), String>,
    told_keyspaces: HashMap<String, String>,
    /// The client's names of tables, by the database's names.
    told_tables: HashMap<(String, String), String>,
    /// The client's names in small letters: a text without them needs no change.
    words: HashSet<Vec<u8>>,
    /// How long those are, each length once.
    lengths: Vec<usize>,
}

impl Renames {
    /// Reads settings such as `shop = "shop_v2"` and `"shop.orders" = "shop_v2.orders_2026"`.
    pub(super) fn new(
        keyspaces: &BTreeMap<String, String>,
        tables: &BTreeMap<String, String>,
    ) -> Result<Self, String> {
        if keyspaces.len() + tables.len() > MAX_RENAMES {
            return Err(format!(
                "keyspaces, tables: expected at most {MAX_RENAMES} names, found {}",
                keyspaces.len() + tables.len()
            ));
        }
        let mut renames = Self::default();
        for (from, to) in keyspaces {
            for name in [from, to] {
                is_name(name).map_err(|why| format!("keyspaces: {why}"))?;
            }
            renames.add_keyspace(from, to)?;
        }
        for (from, to) in tables {
            renames
                .add_table(from, to)
                .map_err(|why| format!("tables: {why}"))?;
        }
        let names = renames.keyspaces.keys();
        let names = names.chain(renames.tables.keys().map(|(_, table)| table));
        let words = names.map(|name| name.to_ascii_lowercase().into_bytes());
        renames.words = words.collect();
        let lengths: BTreeSet<usize> = renames.words.iter().map(Vec::len).collect();
        renames.lengths = lengths.into_iter().collect();
        Ok(renames)
    }

    fn add_keyspace(&mut self, from: &str, to: &str) -> Result<(), String> {
        if from == to {
            return Err(format!("keyspaces: `{from}` is called the same"));
        }
        let told = self.told_keyspaces.insert(to.to_owned(), from.to_owned());
        if let Some(other) = told {
            return Err(format!(
                "keyspaces: expected another name for each; `{other}` and `{from}` are both `{to}`"
            ));
        }
        self.keyspaces.insert(from.to_owned(), to.to_owned());
        Ok(())
    }

    /// All keyspaces are known by now.
    fn add_table(&mut self, from: &str, to: &str) -> Result<(), String> {
        let (keyspace, table) = qualified(from)?;
        let (of, to) = qualified(to)?;
        let wanted = self.database_keyspace(keyspace);
        if of != wanted {
            return Err(format!(
                "`{from}`: expected a table of `{wanted}`, which is what the database calls its \
                 keyspace; found one of `{of}`"
            ));
        }
        if table == to {
            return Err(format!("`{from}` is called the same"));
        }
        let key = (of.to_owned(), to.to_owned());
        if let Some(other) = self.told_tables.insert(key, table.to_owned()) {
            return Err(format!(
                "expected another name for each; `{other}` and `{table}` are both `{of}.{to}`"
            ));
        }
        let key = (keyspace.to_owned(), table.to_owned());
        self.tables.insert(key, to.to_owned());
        Ok(())
    }

    pub(super) fn is_any(&self) -> bool {
        !self.words.is_empty()
    }

    /// The database's name of a client's keyspace.
    pub(super) fn database_keyspace<'n>(&'n self, keyspace: &'n str) -> &'n str {
        self.keyspaces
            .get(keyspace)
            .map_or(keyspace, String::as_str)
    }

    pub(super) fn renames_keyspace(&self, keyspace: &str) -> bool {
        self.keyspaces.contains_key(keyspace)
    }

    /// The database's name of a client's table, by the client's name of its keyspace; `None`: the same
    /// name.
    pub(super) fn database_table(&self, keyspace: &str, table: &str) -> Option<&str> {
        if self.tables.is_empty() {
            return None;
        }
        // A keyspace may be called by the database's name, too.
        let keyspace = self.told_keyspace(keyspace).unwrap_or(keyspace);
        let key = (keyspace.to_owned(), table.to_owned());
        self.tables.get(&key).map(String::as_str)
    }

    /// Whether the keyspace, or something in it, is renamed; by the client's name of it.
    pub(super) fn concerns(&self, keyspace: &str) -> bool {
        self.keyspaces.contains_key(keyspace) || self.tables.keys().any(|(of, _)| of == keyspace)
    }

    /// A table of this name has another one in some keyspace.
    pub(super) fn renames_some_table(&self, table: &str) -> bool {
        self.tables.keys().any(|(_, renamed)| renamed == table)
    }

    /// Whether `name` is one of the client's names, of a keyspace or a table.
    pub(super) fn has_name(&self, name: Name<'_>) -> bool {
        let names = self.keyspaces.keys();
        let mut names = names.chain(self.tables.keys().map(|(_, table)| table));
        names.any(|known| name.is(known))
    }

    /// The client's name of the keyspace that a flow is in.
    pub(super) fn keyspace_of<'c>(
        &'c self,
        caller: &'c Caller,
    ) -> Result<Option<&'c str>, Refused> {
        let keyspace = caller.keyspace.as_deref();
        if self.keyspaces.is_empty() || !caller.keyspace_before {
            return Ok(keyspace);
        }
        match keyspace.filter(|keyspace| !self.hides(keyspace, None)) {
            Some(keyspace) => Ok(Some(Names::keyspace(self, keyspace).unwrap_or(keyspace))),
            None => Err(refusal(
                "keyspace_before",
                "the proxy's policy calls the keyspace otherwise that the connection was in before its rule \
                 was known; send USE again",
            )),
        }
    }

    fn told_keyspace(&self, keyspace: &str) -> Option<&str> {
        // What a swap makes of a name is not the name.
        match self.keyspaces.contains_key(keyspace) {
            true => None,
            false => self.told_keyspaces.get(keyspace).map(String::as_str),
        }
    }

    /// The database has a keyspace, or a table, of a name by which clients mean another one: they cannot
    /// reach it, and do not hear of it.
    pub(super) fn hides(&self, keyspace: &str, table: Option<&str>) -> bool {
        let is_hidden = |keyspace: &str| {
            self.keyspaces.contains_key(keyspace) && !self.told_keyspaces.contains_key(keyspace)
        };
        if is_hidden(keyspace) {
            return true;
        }
        let Some(table) = table.filter(|_| !self.tables.is_empty()) else {
            return false;
        };
        let client = Names::keyspace(self, keyspace).unwrap_or(keyspace);
        let (ours, theirs) = (
            (client.to_owned(), table.to_owned()),
            (keyspace.to_owned(), table.to_owned()),
        );
        self.tables.contains_key(&ours) && !self.told_tables.contains_key(&theirs)
    }

    /// Whether some of the client's names may stand in a text. False: none does.
    pub(super) fn may_be_in(&self, text: &[u8]) -> bool {
        let mut rest = text;
        while !rest.is_empty() {
            let word = rest.iter().take_while(|byte| is_of_name(**byte)).count();
            let (run, behind) = rest.split_at(word);
            if self.is_word(run) {
                return true;
            }
            let gap = behind.iter().take_while(|byte| !is_of_name(**byte)).count();
            rest = behind.get(gap..).unwrap_or_default();
        }
        false
    }

    /// Letters, digits and underscores between others.
    fn is_word(&self, run: &[u8]) -> bool {
        // A number may end where a name begins.
        let is_number = run
            .first()
            .is_some_and(|first| !first.is_ascii_alphabetic());
        self.lengths.iter().any(|length| {
            let before = run.len().checked_sub(*length);
            let end = before.filter(|before| *before == 0 || is_number);
            let end = end.and_then(|before| run.get(before..));
            end.is_some_and(|end| self.is_word_of_any_case(end))
        })
    }

    fn is_word_of_any_case(&self, word: &[u8]) -> bool {
        let mut lower = [0; MAX_NAME_BYTES];
        let Some(lower) = lower.get_mut(..word.len()) else {
            return false;
        };
        lower.copy_from_slice(word);
        lower.make_ascii_lowercase();
        self.words.contains(&*lower)
    }
}

impl Names for Renames {
    fn keyspace(&self, keyspace: &str) -> Option<&str> {
        self.told_keyspaces.get(keyspace).map(String::as_str)
    }

    fn table(&self, keyspace: &str, table: &str) -> Option<&str> {
        if self.told_tables.is_empty() {
            return None;
        }
        let key = (keyspace.to_owned(), table.to_owned());
        self.told_tables.get(&key).map(String::as_str)
    }
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Checks a name by Cassandra's rules (`SchemaConstants.java`), for names that are not the server's own.
fn is_name(name: &str) -> Result<(), String> {
    let is_one = (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_of_name);
    match is_one && !is_system_keyspace(name) {
        true => Ok(()),
        false => Err(format!(
            "expected a name of letters, digits and underscores that is not the server's own, as the \
             database stores it; found {name:?}"
        )),
    }
}

fn qualified(name: &str) -> Result<(&str, &str), String> {
    let Some((keyspace, table)) = name.split_once('.') else {
        return Err(format!("expected `keyspace.table`, found {name:?}"));
    };
    is_name(keyspace)?;
    is_name(table)?;
    Ok((keyspace, table))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn renames(keyspaces: &[(&str, &str)], tables: &[(&str, &str)]) -> Renames {
        tried(keyspaces, tables).unwrap()
    }

    fn tried(keyspaces: &[(&str, &str)], tables: &[(&str, &str)]) -> Result<Renames, String> {
        let map = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            pairs
                .map(|(from, to)| ((*from).to_owned(), (*to).to_owned()))
                .collect()
        };
        Renames::new(&map(keyspaces), &map(tables))
    }

    #[test]
    fn names_go_there_and_back() {
        let shop = renames(
            &[("shop", "shop_v2"), ("a", "b"), ("b", "a")],
            &[("shop.orders", "shop_v2.orders_2026"), ("yard.x", "yard.y")],
        );
        assert_eq!(shop.database_keyspace("shop"), "shop_v2");
        assert_eq!(shop.database_keyspace("other"), "other");
        assert_eq!(shop.database_table("shop", "orders"), Some("orders_2026"));
        assert_eq!(
            shop.database_table("shop_v2", "orders"),
            Some("orders_2026")
        );
        assert_eq!(shop.database_table("yard", "x"), Some("y"));
        assert_eq!(shop.database_table("shop", "x"), None);
        let told = |keyspace| Names::keyspace(&shop, keyspace);
        assert_eq!(
            (told("shop_v2"), told("a"), told("shop")),
            (Some("shop"), Some("b"), None)
        );
        let table = |keyspace, table| Names::table(&shop, keyspace, table);
        assert_eq!(table("shop_v2", "orders_2026"), Some("orders"));
        assert_eq!(table("shop", "orders_2026"), None);
        // The database's own `shop`, and its own `orders` in what clients call `shop`.
        assert!(shop.hides("shop", None) && shop.hides("shop_v2", Some("orders")));
        assert!(!shop.hides("shop_v2", None) && !shop.hides("shop_v2", Some("orders_2026")));
        assert!(!shop.hides("a", None) && shop.hides("yard", Some("x")));
    }

    #[test]
    fn a_text_without_the_names_is_known_by_its_words() {
        let shop = renames(&[("shop", "shop_v2")], &[("Yard.T1", "Yard.t2")]);
        for (text, may) in [
            ("SELECT * FROM shop.orders", true),
            ("SELECT * FROM \"SHOP\"", true),
            ("use shop", true),
            ("select * from t1", true),
            ("BATCH USING TIMESTAMP 1shop", true),
            ("\u{e9}shop\u{e9}", true),
            ("SELECT * FROM shops.ashop.shop_v2.t12", false),
            ("yard", false),
            ("", false),
        ] {
            assert_eq!(shop.may_be_in(text.as_bytes()), may, "{text}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (keyspaces, tables, expected) in [
            (
                &[("a b", "c")][..],
                &[][..],
                "keyspaces: expected a name of letters",
            ),
            (&[("a", "")], &[], "keyspaces: expected a name of letters"),
            (
                &[("system", "x")],
                &[],
                "keyspaces: expected a name of letters",
            ),
            (&[("a", "a")], &[], "keyspaces: `a` is called the same"),
            (
                &[("a", "c"), ("b", "c")],
                &[],
                "keyspaces: expected another name for each",
            ),
            (
                &[],
                &[("a", "b.c")],
                "tables: expected `keyspace.table`, found \"a\"",
            ),
            (
                &[],
                &[("a.b", "b.c")],
                "tables: `a.b`: expected a table of `a`",
            ),
            (
                &[("a", "x")],
                &[("a.b", "a.c")],
                "tables: `a.b`: expected a table of `x`",
            ),
            (&[], &[("a.b", "a.b")], "tables: `a.b` is called the same"),
            (
                &[],
                &[("a.b", "a.d"), ("a.c", "a.d")],
                "tables: expected another name for each",
            ),
        ] {
            let error = tried(keyspaces, tables).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
