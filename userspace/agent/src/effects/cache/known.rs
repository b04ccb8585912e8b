//! What is remembered between two frames: prepared statements by their ids, and what responses are awaited for. Both
//! are bounded, and what is forgotten is prepared again, or not kept.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use super::{
    envelope::{Generation, Key},
    statements::Means,
};

/// Ids of prepared statements. Each takes some 200 bytes.
const MAX_PREPARED: usize = 65_536;

/// Responses that are awaited. Each takes some 200 bytes.
const MAX_OUT: usize = 16_384;

/// A database's ids are of 16 bytes; longer ones than this are not remembered.
const MAX_ID_BYTES: usize = 256;

/// A statement that is being prepared, or is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Statement {
    pub(super) means: Means,
    /// Of its text, and the keyspace in which it was prepared.
    pub(super) digest: Key,
}

/// A read, while Redis and then the database are asked.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) key: Key,
    pub(super) table: usize,
    /// What Redis had before the database was asked; none: its answer is not kept.
    pub(super) generation: OnceLock<Generation>,
}

/// What a response is awaited for.
#[derive(Debug)]
pub(super) enum Awaited {
    Prepare(Statement),
    Read(Arc<Reading>),
}

/// See the module.
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
    /// Gives the number under which the response is to be shown: less than half of all that there are.
    pub(super) fn awaits(&self, what: Awaited) -> u64 {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let number = out.next;
        out.next = (out.next + 1) & (u64::MAX >> 1);
        out.awaited.put(number, what, MAX_OUT);
        number
    }

    /// None: it was forgotten.
    pub(super) fn awaited(&self, number: u64) -> Option<Awaited> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.awaited.entries.remove(&number)
    }

    pub(super) fn is_prepared(&self, id: &[u8], statement: Statement) {
        if id.len() <= MAX_ID_BYTES {
            let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
            prepared.put(id.into(), statement, MAX_PREPARED);
        }
    }

    /// None: its PREPARE was not seen.
    pub(super) fn prepared(&self, id: &[u8]) -> Option<Statement> {
        let prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        prepared.entries.get(id).copied()
    }
}

/// Of which the oldest go first.
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
        // What was taken has its place in the order still.
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
    use crate::effects::cache::statements::Chosen;

    const STATEMENT: Statement = Statement {
        means: Means::Writes(Chosen(1)),
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
            known.is_prepared(&n.to_be_bytes(), STATEMENT);
        }
        known.is_prepared(&[7; MAX_ID_BYTES + 1], STATEMENT);
        assert!(known.prepared(&0_usize.to_be_bytes()).is_none());
        assert!(known.prepared(&MAX_PREPARED.to_be_bytes()).is_some());
        assert!(known.prepared(&[7; MAX_ID_BYTES + 1]).is_none());
        assert!(known.out.lock().unwrap().awaited.order.len() <= MAX_OUT);
    }
}
