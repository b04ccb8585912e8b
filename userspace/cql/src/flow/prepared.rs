//! Prepared statements by id.
//!
//! A driver prepares a statement on one connection and executes it on all of them, so all flows share one
//! [`PreparedStatements`], which believes a database no more than [`Told`] says. Where a rule changes texts, what is read here
//! is not what the database has got, and none of its ids is proven; so a database's own word goes first. Each flow keeps those that it uses at hand,
//! in [`PreparedCache`], and touches nothing shared while it goes on using them.

use crate::flow::details::MAX_TEXT_BYTES;
use crate::hash::{BuildSpread, Fnv};
use crate::proof::{Proof, prepared_in};
use crate::text::analysis::{Analysis, Fingerprint};
use crate::text::lex::MAX_NAME_BYTES;
use crate::text::statement::{Statement, Statements};
use crate::told::{Database, Holds, Kept, Told};
use crate::wire::header::StreamId;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError, RwLock};

/// How many statements a store remembers. Applications prepare hundreds, and Cassandra's own cache
/// is limited, too (by default to a 256th of its heap). Each takes about 300 bytes, 5 MiB in all; where
/// details are asked for, its fingerprint too, at most 2 KiB and usually 100 bytes.
pub const MAX_PREPARED_STATEMENTS: usize = 16_384;

/// The bytes of all texts that a store keeps, with their ids: those of some 20,000 usual statements. A further one takes the
/// place of others.
/// Such texts have markers in place of values, as a rule; what is shown of them is up to who asks for one.
pub const MAX_PREPARED_TEXTS_BYTES: usize = 6 << 20;

/// The approximate size of a text beside its bytes and those of its id and keyspace.
const TEXT_ENTRY_BYTES: usize = 150;

/// How many prepared statements a flow keeps at hand; beyond it, it starts over.
const MAX_RECENT: usize = 256;

/// The prepared statements of all databases, shared by their flows. Bounded: when it is full, a
/// statement that was not used lately makes room.
///
/// An id never changes its meaning for a flow that has it at hand, which does not ask again before its own database has
/// answered a PREPARE with it.
#[derive(Debug)]
pub struct PreparedStatements {
    known: RwLock<Told<Known>>,
    texts: RwLock<Told<Text>>,
}

/// The prepared statements as the flows to one database know them. The default is of a store of its own, for a database
/// that nobody knows.
#[derive(Clone, Debug, Default)]
pub struct PreparedAt {
    store: Arc<PreparedStatements>,
    database: Database,
}

/// A prepared statement as it is kept.
#[derive(Clone, Debug)]
pub struct PreparedText {
    /// The id.
    pub id: Arc<[u8]>,
    /// The database that calls the statement so. None: all do.
    pub at: Option<Database>,
    /// The keyspace in which it was prepared, where that is known.
    pub keyspace: Option<Box<str>>,
    /// The text.
    pub text: Arc<str>,
}

/// A statement as it is known.
#[derive(Debug, PartialEq)]
struct Known {
    statement: Statement,
    /// `None`: nobody asked for it when it was prepared.
    fingerprint: Option<Arc<Fingerprint>>,
}

/// The text of a statement as it was prepared, where that was seen whole and is no longer than [`MAX_TEXT_BYTES`].
#[derive(Debug, PartialEq)]
struct Text {
    keyspace: Option<Box<str>>,
    text: Arc<str>,
}

/// An id's meaning, as a database or a look-up tells it.
#[derive(Debug)]
pub(crate) struct Learnt<'l> {
    pub(crate) holds: Holds,
    pub(crate) statement: &'l Statement,
    pub(crate) fingerprint: Option<Arc<Fingerprint>>,
    /// The text, and the keyspace in which it was prepared, if that is known.
    pub(crate) text: Option<(Arc<str>, Option<Box<str>>)>,
}

impl Default for PreparedStatements {
    fn default() -> Self {
        Self::with_capacity(MAX_PREPARED_STATEMENTS)
    }
}

impl PreparedStatements {
    /// Remembers at most `capacity` statements, and at least one.
    pub fn with_capacity(capacity: usize) -> Self {
        let weigh = |id: &[u8], text: &Text| {
            let keyspace = text.keyspace.as_ref().map_or(0, |keyspace| keyspace.len());
            id.len() + keyspace + text.text.len() + TEXT_ENTRY_BYTES
        };
        let texts = capacity.saturating_mul(MAX_TEXT_BYTES);
        let texts = Told::weighing(texts.min(MAX_PREPARED_TEXTS_BYTES), weigh);
        Self {
            known: RwLock::new(Told::of_at_most(capacity).own_first()),
            texts: RwLock::new(texts.own_first()),
        }
    }

    /// How many statements are remembered.
    pub fn len(&self) -> usize {
        self.known
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// Nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The store as flows to this database know it.
    pub fn at(self: &Arc<Self>, database: Database) -> PreparedAt {
        PreparedAt {
            store: self.clone(),
            database,
        }
    }

    /// Every text that is kept.
    pub fn texts(&self) -> Vec<PreparedText> {
        let texts = self.texts.read().unwrap_or_else(PoisonError::into_inner);
        let kept = texts.iter().map(|(at, kept)| PreparedText {
            id: kept.id.clone(),
            at,
            keyspace: kept.value.keyspace.clone(),
            text: kept.value.text.clone(),
        });
        kept.collect()
    }
}

impl PreparedAt {
    /// The database.
    pub fn database(&self) -> Database {
        self.database
    }

    /// Whether it is remembered what this id stands for.
    pub fn knows(&self, id: &[u8]) -> bool {
        self.get(id).is_some()
    }

    /// The text that was prepared as `id`, where it is kept.
    pub fn text(&self, id: &[u8]) -> Option<Arc<str>> {
        let texts = &self.store.texts;
        let texts = texts.read().unwrap_or_else(PoisonError::into_inner);
        Some(texts.get(id, self.database)?.value.text.clone())
    }

    /// Learns that `id` stands for this text, prepared in this keyspace. For flows to other databases only if that makes
    /// the id.
    pub fn learn(&self, id: &[u8], keyspace: Option<&str>, text: &[u8]) {
        let (keyspace, holds) = match prepared_in(id, keyspace, text) {
            Some(keyspace) => (keyspace, Holds::Everywhere),
            None => (keyspace, Holds::There),
        };
        let mut statement = Statement::of(text);
        if statement.table.is_some() && statement.keyspace.is_none() {
            let keyspace = keyspace.filter(|keyspace| keyspace.len() <= MAX_NAME_BYTES);
            statement.keyspace = keyspace.map(Into::into);
        }
        let fingerprint = Analysis::of(text, text.len()).fingerprint;
        let fingerprint = fingerprint.is_known().then(|| Arc::new(fingerprint));
        let text = kept_text(text).map(|text| (text, keyspace.map(Into::into)));
        let learnt = Learnt {
            holds,
            statement: &statement,
            fingerprint,
            text,
        };
        self.insert(id, learnt);
    }

    fn get(&self, id: &[u8]) -> Option<Arc<Kept<Known>>> {
        let known = &self.store.known;
        let known = known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(id, self.database).cloned()
    }

    /// True if another statement had to go.
    fn insert(&self, id: &[u8], learnt: Learnt<'_>) -> bool {
        let Learnt {
            holds,
            statement,
            fingerprint,
            text,
        } = learnt;
        if let Some((text, keyspace)) = text {
            self.insert_text(id, holds, Text { keyspace, text });
        }
        // Drivers prepare the same statement again on every host: usually it is there.
        let (before, is_proven) = {
            let known = &self.store.known;
            let known = known.read().unwrap_or_else(PoisonError::into_inner);
            (known.get(id, self.database).cloned(), known.is_proven(id))
        };
        let same = before
            .as_ref()
            .map(|before| &before.value)
            .filter(|before| before.statement == *statement);
        let is_there =
            same.is_some_and(|same| fingerprint.is_none() || same.fingerprint == fingerprint);
        if is_there && (is_proven || holds == Holds::There) {
            return false;
        }
        let value = Known {
            statement: statement.clone(),
            fingerprint: fingerprint.or_else(|| same?.fingerprint.clone()),
        };
        let known = &self.store.known;
        let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
        known.put(id, self.database, holds, value)
    }

    fn insert_text(&self, id: &[u8], holds: Holds, text: Text) {
        let texts = &self.store.texts;
        let is_there = {
            let texts = texts.read().unwrap_or_else(PoisonError::into_inner);
            let kept = texts.get(id, self.database);
            let is_same = kept.is_some_and(|kept| kept.value == text);
            is_same && (holds == Holds::There || texts.is_proven(id))
        };
        if !is_there {
            let mut texts = texts.write().unwrap_or_else(PoisonError::into_inner);
            texts.put(id, self.database, holds, text);
        }
    }
}

/// A flow's view of a [`PreparedStatements`].
#[derive(Debug)]
pub(crate) struct PreparedCache {
    shared: PreparedAt,
    /// By a hash of the id; the id is compared.
    recent: HashMap<u64, Recent, BuildSpread>,
}

/// A statement that the flow has executed lately.
#[derive(Debug)]
pub(crate) struct Recent {
    kept: Arc<Kept<Known>>,
    /// Equal to the kept one, but this flow's own: no reference count that other cores write to.
    statement: Arc<Statement>,
}

impl Recent {
    pub(crate) fn statement(&self) -> &Arc<Statement> {
        &self.statement
    }

    /// None: its text was not understood, or nobody asked for details when it was prepared.
    pub(crate) fn fingerprint(&self) -> Option<Arc<Fingerprint>> {
        self.kept.value.fingerprint.clone()
    }
}

impl PreparedCache {
    pub(crate) fn new(shared: PreparedAt) -> Self {
        Self {
            shared,
            recent: HashMap::default(),
        }
    }

    /// The statement that was prepared as `id`.
    pub(crate) fn get(&mut self, id: &[u8], statements: &mut Statements) -> Option<&Recent> {
        let hash = hash(id);
        let is_recent = |recent: &Recent| *recent.kept.id == *id;
        if !self.recent.get(&hash).is_some_and(is_recent) {
            self.look_up(hash, id, statements)?;
        }
        let recent = self.recent.get(&hash)?;
        recent.kept.mark_used();
        Some(recent)
    }

    fn look_up(&mut self, hash: u64, id: &[u8], statements: &mut Statements) -> Option<()> {
        let kept = self.shared.get(id)?;
        let known = &kept.value.statement;
        let statement = statements.get(known.as_kind(known.kind));
        if self.recent.len() >= MAX_RECENT {
            self.recent.clear();
        }
        self.recent.insert(hash, Recent { kept, statement });
        Some(())
    }

    /// Remembers what is told of `id`; true if another one was forgotten for it.
    pub(crate) fn insert(&mut self, id: &[u8], learnt: Learnt<'_>) -> bool {
        self.recent.remove(&hash(id));
        self.shared.insert(id, learnt)
    }
}

/// A statement's text as it is kept. `None`: it is none, or too long.
fn kept_text(text: &[u8]) -> Option<Arc<str>> {
    let text = std::str::from_utf8(text).ok()?;
    (text.len() <= MAX_TEXT_BYTES).then(|| text.into())
}

/// PREPAREs of one flow that wait for their responses, at most, with a text of at most [`MAX_TEXT_BYTES`] each; of further
/// ones no text is kept. Drivers that prepare all they know on a new connection have some dozens out.
const MAX_PREPARING: usize = 64;

/// PREPAREs of one flow that wait for their responses, at most, with what proves their ids. What is answered to a further
/// one holds for the flows to its database alone. Each takes 64 bytes.
const MAX_PROVING: usize = 1_024;

/// Texts that a flow remembers to have prepared lately; beyond it, it starts over. Each takes some 60 bytes.
const MAX_PREPARED_LATELY: usize = 64;

/// The flow's PREPAREs that wait for their responses, by stream. Few flows have any, and the others have no
/// table. Of what a flow prepares again the text is in the store already.
#[derive(Debug, Default)]
pub(crate) struct Preparing {
    waiting: HashMap<i16, Waits, BuildSpread>,
    /// The number of those in `waiting` that have a text.
    texts: usize,
    /// The proofs of ids that were given lately, by hashes of text and keyspace with keys that nobody can choose.
    known: HashMap<u64, Proof, BuildSpread>,
    hashing: RandomState,
}

/// A PREPARE that waits for its response.
#[derive(Debug)]
pub(crate) struct Waits {
    hash: u64,
    pub(crate) proof: Proof,
    /// With the keyspace.
    pub(crate) text: Option<(Arc<str>, Option<Box<str>>)>,
}

impl Preparing {
    /// A PREPARE of this text passes. `keyspace`: that of names without one, if it is known.
    pub(crate) fn asks(&mut self, stream: StreamId, text: &[u8], keyspace: Option<&str>) {
        // Of one on this stream that was not answered, nothing is known.
        self.remove(stream);
        if self.waiting.len() >= MAX_PROVING {
            return;
        }
        let hash = self.hashing.hash_one((text, keyspace));
        let proof = self.known.get(&hash).copied();
        let keeps_text = proof.is_none() && self.texts < MAX_PREPARING;
        let text_to_keep = if keeps_text { kept_text(text) } else { None };
        self.texts += usize::from(text_to_keep.is_some());
        let waits = Waits {
            hash,
            proof: proof.unwrap_or_else(|| Proof::of(text, keyspace)),
            text: text_to_keep.map(|text| (text, keyspace.map(Into::into))),
        };
        self.waiting.insert(stream.0, waits);
    }

    /// The response on this stream passes: takes the PREPARE that waits for it.
    #[inline]
    pub(crate) fn take(&mut self, stream: StreamId) -> Option<Waits> {
        match self.waiting.is_empty() {
            true => None,
            false => self.remove(stream),
        }
    }

    fn remove(&mut self, stream: StreamId) -> Option<Waits> {
        let waits = self.waiting.remove(&stream.0)?;
        self.texts -= usize::from(waits.text.is_some());
        Some(waits)
    }

    /// A statement was prepared.
    pub(crate) fn note(&mut self, waits: &Waits) {
        if waits.text.is_none() {
            return;
        }
        if self.known.len() >= MAX_PREPARED_LATELY {
            self.known.clear();
        }
        self.known.insert(waits.hash, waits.proof);
    }
}

/// A hash of an id, by its first bytes and its last: ids are digests, and two with the same hash cost each a look at the
/// shared store.
fn hash(id: &[u8]) -> u64 {
    let (Some(first), Some(last)) = (id.first_chunk(), id.last_chunk()) else {
        return id
            .iter()
            .fold(Fnv::default(), |hash, byte| hash.with(*byte))
            .0;
    };
    // Multiplied, each bit reaches most others; the constants keep zeros from doing away with the other half.
    let first = u128::from(u64::from_le_bytes(*first) ^ 0x9E37_79B9_7F4A_7C15);
    let last = u128::from(u64::from_le_bytes(*last) ^ 0xD1B5_4A32_D192_ED03);
    let product = first * last;
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests;
