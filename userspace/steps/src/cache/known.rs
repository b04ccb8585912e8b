//! The memory between two frames: prepared statements by their ids, and the purposes of awaited
//! responses. Both are bounded; a forgotten statement is prepared again, a forgotten response is
//! not kept.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::{Arc, OnceLock},
};

use super::{
    envelope::{Generation, Key},
    statements::CacheEffect,
};
use cql::{Database, Told};
use cql_edit::transforms::Preparing;
use parking_lot::Mutex;

/// The most ids of prepared statements. Each takes some 200 bytes.
const MAX_PREPARED: usize = 65_536;

/// The most awaited responses. Each takes some 200 bytes.
const MAX_OUT: usize = 16_384;

/// A statement that is prepared, or is being prepared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Statement {
    pub(super) effect: CacheEffect,
    /// The digest of the statement's text, and of the keyspace in which it was prepared.
    pub(super) digest: Key,
}

/// A read, while Redis and then the database are asked.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) key: Key,
    pub(super) table: usize,
    /// The generation that Redis had before the database was asked. None: the database's answer is
    /// not kept.
    pub(super) generation: OnceLock<Generation>,
}

/// The purpose for which a response is awaited.
#[derive(Debug)]
pub(super) enum Awaited {
    Prepare(Preparing, Statement),
    Read(Arc<Reading>),
}

/// The prepared statements and the awaited responses.
#[derive(Debug)]
pub(super) struct Known {
    out: Mutex<Out>,
    prepared: Mutex<Told<Statement>>,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            out: Mutex::default(),
            prepared: Mutex::new(Told::of_at_most(MAX_PREPARED)),
        }
    }
}

#[derive(Debug, Default)]
struct Out {
    next: u64,
    awaited: Oldest<u64, Awaited>,
}

impl Known {
    /// Awaits a response. Returns the number under which it is to be shown, which is in the lower
    /// half of all numbers.
    pub(super) fn awaits(&self, what: Awaited) -> u64 {
        let mut out = self.out.lock();
        let number = out.next;
        out.next = (out.next + 1) & (u64::MAX >> 1);
        out.awaited.put(number, what, MAX_OUT);
        number
    }

    /// Takes the purpose of a response. None: it was forgotten.
    pub(super) fn awaited(&self, number: u64) -> Option<Awaited> {
        let mut out = self.out.lock();
        out.awaited.entries.remove(&number)
    }

    pub(super) fn remember_prepared(&self, id: &[u8], preparing: &Preparing, statement: Statement) {
        let mut prepared = self.prepared.lock();
        prepared.put(id, preparing.database(), preparing.holds(id), statement);
    }

    /// Finds a prepared statement of this database. None: its PREPARE was not seen, or is forgotten.
    pub(super) fn prepared(&self, id: &[u8], database: Database) -> Option<Statement> {
        let prepared = self.prepared.lock();
        Some(prepared.get(id, database)?.value)
    }
}

/// A bounded map from which the oldest entries are removed first.
#[derive(Debug)]
struct Oldest<K, V> {
    entries: HashMap<K, V>,
    order: VecDeque<K>,
}

impl<K, V> Default for Oldest<K, V> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<K: Clone + Eq + Hash, V> Oldest<K, V> {
    fn put(&mut self, key: K, value: V, most: usize) {
        if self.entries.insert(key.clone(), value).is_none() {
            self.order.push_back(key);
        }
        // An entry that was taken is still in the order.
        while self.order.len() > most
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::statements::Chosen;

    const STATEMENT: Statement = Statement {
        effect: CacheEffect::Writes(Chosen(1)),
        digest: [0; 32],
    };

    #[test]
    fn the_oldest_are_forgotten() {
        let known = Known::default();
        let prepare = || Awaited::Prepare(Preparing::unknown(), STATEMENT);
        let first = known.awaits(prepare());
        for _ in 0..MAX_OUT {
            known.awaits(prepare());
        }
        assert!(known.awaited(first).is_none());
        assert!(known.awaited(first + 1).is_some() && known.awaited(first + 1).is_none());
        for n in 0..=MAX_PREPARED {
            known.remember_prepared(&n.to_be_bytes(), &Preparing::unknown(), STATEMENT);
        }
        let prepared = |n: usize| known.prepared(&n.to_be_bytes(), Database::default());
        assert!(prepared(0).is_none() && prepared(MAX_PREPARED).is_some());
        let other = Database::new(([127, 0, 0, 2], 9042).into(), 0);
        assert!(known.prepared(&MAX_PREPARED.to_be_bytes(), other).is_none());
        assert!(known.out.lock().awaited.order.len() <= MAX_OUT);
    }
}
