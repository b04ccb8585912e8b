//! A small cache of the things that a flow asks again and again, with what was made of each.

use std::sync::Arc;

use cql::{Fingerprint, Statement};

/// The number of entries; a flow that asks more different things has them made again.
const AT_HAND: usize = 16;

/// The entries of one flow.
pub(super) struct AtHand<T> {
    entries: Vec<Entry<T>>,
    /// The index of the entry that is replaced next.
    oldest: usize,
}

struct Entry<T> {
    statement: Arc<Statement>,
    fingerprint: Option<Arc<Fingerprint>>,
    made: T,
}

impl<T> AtHand<T> {
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::new(),
            oldest: 0,
        }
    }

    /// Returns what was made of this statement, or makes it.
    pub(super) fn of(
        &mut self,
        statement: &Arc<Statement>,
        fingerprint: Option<&Arc<Fingerprint>>,
        make: impl FnOnce(&Statement, Option<&Fingerprint>) -> T,
    ) -> Option<&T> {
        let is_it = |entry: &Entry<T>| {
            let same = match (&entry.fingerprint, fingerprint) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                (None, None) => true,
                _ => false,
            };
            same && Arc::ptr_eq(&entry.statement, statement)
        };
        let at = self.entries.iter().position(is_it).unwrap_or_else(|| {
            let entry = Entry {
                statement: statement.clone(),
                fingerprint: fingerprint.cloned(),
                made: make(statement, fingerprint.map(|f| &**f)),
            };
            let at = self.oldest;
            self.oldest = (at + 1) % AT_HAND;
            match self.entries.get_mut(at) {
                Some(oldest) => *oldest = entry,
                None => self.entries.push(entry),
            }
            at
        });
        self.entries.get(at).map(|entry| &entry.made)
    }
}
