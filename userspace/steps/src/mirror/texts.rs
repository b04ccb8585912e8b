//! The texts of prepared statements, by the id that the flows' own database has given them.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use cql::{Statement, StatementKind};
use parking_lot::Mutex;

/// The most bytes of all texts. Beyond that the oldest are dropped, and are prepared again as their
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

/// The texts of prepared statements. Shared by the flows of a rule, because an id is a hash of
/// keyspace and text.
#[derive(Debug, Default)]
pub(super) struct Texts(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    known: HashMap<Box<[u8]>, Arc<Text>>,
    order: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl Texts {
    pub(super) fn put(&self, id: &[u8], text: Arc<Text>) {
        let mut state = self.0.lock();
        let bytes = cost(id, &text);
        match state.known.insert(id.into(), text) {
            Some(old) => state.bytes -= cost(id, &old),
            None => state.order.push_back(id.into()),
        }
        state.bytes += bytes;
        while state.bytes > MAX_BYTES
            && let Some(oldest) = state.order.pop_front()
        {
            if let Some(gone) = state.known.remove(&oldest) {
                state.bytes -= cost(&oldest, &gone);
            }
        }
    }

    /// Finds a statement. None: its PREPARE was not seen.
    pub(super) fn get(&self, id: &[u8]) -> Option<Arc<Text>> {
        let state = self.0.lock();
        state.known.get(id).cloned()
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
        let long = "x".repeat(MAX_TEXT_BYTES);
        for n in 0..300_u16 {
            let text = Text::new(long.as_bytes(), None);
            texts.put(&n.to_be_bytes(), Arc::new(text));
        }
        assert!(texts.get(&0_u16.to_be_bytes()).is_none());
        assert!(texts.get(&299_u16.to_be_bytes()).is_some());
        let longer = format!("SELECT v FROM ks.t WHERE {long}");
        for _ in 0..2 {
            let text = Text::new(longer.as_bytes(), None);
            texts.put(b"id", Arc::new(text));
        }
        let found = texts.get(b"id").unwrap();
        assert!(found.is_too_long && found.text.is_empty());
        assert_eq!(
            (found.kind, found.names.as_deref()),
            (StatementKind::Select, Some("ks"))
        );
        let state = texts.0.lock();
        assert!(state.bytes <= MAX_BYTES && state.known.len() == state.order.len());
    }
}
