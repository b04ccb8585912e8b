//! What a flow asks again and again, with what was made of it.

use std::sync::Arc;

use cql::{Fingerprint, Statement};

/// So many different things; of a flow that asks more, they are made again.
const AT_HAND: usize = 16;

/// See the module.
pub(super) struct AtHand<T> {
    entries: Vec<Entry<T>>,
    /// The next one to be replaced.
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

    /// What is made of this.
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
