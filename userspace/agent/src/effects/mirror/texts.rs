//! The texts of prepared statements, by the id that the flows' own database has given them.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use cql::{Statement, StatementKind};

/// Texts in all, in bytes. Beyond that those that came first go, and are prepared again as their turn comes.
const MAX_BYTES: usize = 16 << 20;

/// A longer one is not mirrored.
pub(super) const MAX_TEXT_BYTES: usize = 64 << 10;

/// Beside its text, about.
const ENTRY_BYTES: usize = 256;

/// A statement.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) text: Box<[u8]>,
    pub(super) kind: StatementKind,
    /// In which it is to be prepared.
    pub(super) keyspace: Option<Arc<str>>,
    /// Whose table it is about, if the text says so.
    pub(super) names: Option<Box<str>>,
}

impl Text {
    /// `keyspace`: the flow's, or what is said with it.
    pub(super) fn new(text: &[u8], keyspace: Option<&str>) -> Self {
        let Statement { kind, keyspace: names, .. } = Statement::of(text);
        Self {
            text: text.into(),
            kind,
            keyspace: keyspace.map(Arc::from),
            names,
        }
    }
}

/// See the module. Shared by the flows of a rule: an id is a hash of keyspace and text.
#[derive(Debug, Default)]
pub(super) struct Texts(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    known: HashMap<Box<[u8]>, Option<Arc<Text>>>,
    order: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl Texts {
    /// None: too long to be remembered, which is remembered.
    pub(super) fn put(&self, id: &[u8], text: Option<Arc<Text>>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = cost(id, text.as_deref());
        match state.known.insert(id.into(), text) {
            Some(old) => state.bytes -= cost(id, old.as_deref()),
            None => state.order.push_back(id.into()),
        }
        state.bytes += bytes;
        while state.bytes > MAX_BYTES
            && let Some(oldest) = state.order.pop_front()
        {
            if let Some(gone) = state.known.remove(&oldest) {
                state.bytes -= cost(&oldest, gone.as_deref());
            }
        }
    }

    /// None: its PREPARE was not seen.
    pub(super) fn get(&self, id: &[u8]) -> Option<Option<Arc<Text>>> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.known.get(id).cloned()
    }
}

fn cost(id: &[u8], text: Option<&Text>) -> usize {
    id.len() * 2 + text.map_or(0, |text| text.text.len()) + ENTRY_BYTES
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
            texts.put(&n.to_be_bytes(), Some(Arc::new(text)));
        }
        assert!(texts.get(&0_u16.to_be_bytes()).is_none());
        assert!(texts.get(&299_u16.to_be_bytes()).is_some());
        texts.put(b"id", None);
        texts.put(b"id", None);
        assert!(texts.get(b"id").unwrap().is_none());
        let state = texts.0.lock().unwrap();
        assert!(state.bytes <= MAX_BYTES && state.known.len() == state.order.len());
    }
}
