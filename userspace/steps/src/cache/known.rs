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
use parking_lot::Mutex;

/// The most ids of prepared statements. Each takes some 200 bytes.
const MAX_PREPARED: usize = 65_536;

/// The most awaited responses. Each takes some 200 bytes.
const MAX_OUT: usize = 16_384;

/// The longest id that is remembered. A database's ids have 16 bytes.
const MAX_ID_BYTES: usize = 256;

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
    Prepare(Statement),
    Read(Arc<Reading>),
}

/// The prepared statements and the awaited responses.
#[derive(Debug, Default)]
pub(super) struct Known {
    out: Mutex<Out>,
    prepared: Mutex<Oldest<Box<[u8]>, Statement>>,
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

    pub(super) fn remember_prepared(&self, id: &[u8], statement: Statement) {
        if id.len() <= MAX_ID_BYTES {
            let mut prepared = self.prepared.lock();
            prepared.put(id.into(), statement, MAX_PREPARED);
        }
    }

    /// Finds a prepared statement. None: its PREPARE was not seen, or is forgotten.
    pub(super) fn prepared(&self, id: &[u8]) -> Option<Statement> {
        let prepared = self.prepared.lock();
        prepared.entries.get(id).copied()
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
        let first = known.awaits(Awaited::Prepare(STATEMENT));
        for _ in 0..MAX_OUT {
            known.awaits(Awaited::Prepare(STATEMENT));
        }
        assert!(known.awaited(first).is_none());
        assert!(known.awaited(first + 1).is_some() && known.awaited(first + 1).is_none());
        for n in 0..=MAX_PREPARED {
            known.remember_prepared(&n.to_be_bytes(), STATEMENT);
        }
        known.remember_prepared(&[7; MAX_ID_BYTES + 1], STATEMENT);
        assert!(known.prepared(&0_usize.to_be_bytes()).is_none());
        assert!(known.prepared(&MAX_PREPARED.to_be_bytes()).is_some());
        assert!(known.prepared(&[7; MAX_ID_BYTES + 1]).is_none());
        assert!(known.out.lock().awaited.order.len() <= MAX_OUT);
    }
}
