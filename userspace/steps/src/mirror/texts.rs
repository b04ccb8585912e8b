//! The texts of prepared statements, by the id that the flows' own databases have given them.

use std::sync::Arc;

use cql::{Database, Statement, StatementKind, Told};
use cql_edit::transforms::Preparing;
use parking_lot::Mutex;

/// The most bytes of all texts. Beyond that others are dropped ([`Told`]), and are prepared again as their
/// turn comes.
const MAX_BYTES: usize = 16 << 20;

/// The longest text that is mirrored.
const MAX_TEXT_BYTES: usize = 64 << 10;

/// The approximate size of an entry beside its text.
const ENTRY_BYTES: usize = 256;

/// A prepared statement.
#[derive(Debug)]
pub(super) struct Text {
    /// The text; empty if it is too long.
    pub(super) text: Box<[u8]>,
    pub(super) is_too_long: bool,
    pub(super) kind: StatementKind,
    /// The keyspace in which the statement is to be prepared.
    pub(super) keyspace: Option<Arc<str>>,
    /// The keyspace of the statement's table, if the text names it.
    pub(super) names: Option<Box<str>>,
}

impl Text {
    /// Reads a text. `keyspace`: the flow's, or the one that the request names.
    pub(super) fn new(text: &[u8], keyspace: Option<&str>) -> Self {
        let Statement {
            kind,
            keyspace: names,
            ..
        } = Statement::of(text);
        let is_too_long = text.len() > MAX_TEXT_BYTES;
        let kept = if is_too_long { &[] } else { text };
        Self {
            text: kept.into(),
            is_too_long,
            kind,
            keyspace: keyspace.map(Arc::from),
            names,
        }
    }
}

/// The texts of prepared statements, shared by the flows of a rule.
#[derive(Debug)]
pub(super) struct Texts(Mutex<Told<Arc<Text>>>);

impl Default for Texts {
    fn default() -> Self {
        Self(Mutex::new(Told::weighing(MAX_BYTES, |id, text| {
            cost(id, text)
        })))
    }
}

impl Texts {
    pub(super) fn put(&self, id: &[u8], preparing: &Preparing, text: Arc<Text>) {
        let mut texts = self.0.lock();
        texts.put(id, preparing.database(), preparing.holds(id), text);
    }

    /// Finds a statement of this database. None: its PREPARE was not seen.
    pub(super) fn get(&self, id: &[u8], database: Database) -> Option<Arc<Text>> {
        let texts = self.0.lock();
        Some(texts.get(id, database)?.value.clone())
    }
}

fn cost(id: &[u8], text: &Text) -> usize {
    let names = [text.names.as_deref(), text.keyspace.as_deref()];
    let names: usize = names.into_iter().flatten().map(str::len).sum();
    id.len() * 2 + text.text.len() + names + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_bytes_are_bounded() {
        let texts = Texts::default();
        let get = |id: &[u8]| texts.get(id, Database::default());
        let put = |id: &[u8], text: &str| {
            let text = Arc::new(Text::new(text.as_bytes(), None));
            texts.put(id, &Preparing::unknown(), text);
        };
        let long = "x".repeat(MAX_TEXT_BYTES);
        (0..300_u16).for_each(|n| put(&n.to_be_bytes(), &long));
        assert!(get(&0_u16.to_be_bytes()).is_none());
        assert!(get(&299_u16.to_be_bytes()).is_some());
        for _ in 0..2 {
            put(b"id", &format!("SELECT v FROM ks.t WHERE {long}"));
        }
        let found = get(b"id").unwrap();
        assert!(found.is_too_long && found.text.is_empty());
        assert_eq!(
            (found.kind, found.names.as_deref()),
            (StatementKind::Select, Some("ks"))
        );
        let other = Database::new(([127, 0, 0, 2], 9042).into(), 0);
        assert!(texts.get(b"id", other).is_none());
    }
}
