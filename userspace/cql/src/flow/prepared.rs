//! Prepared statements by id.
//!
//! A driver prepares a statement on one connection and executes it on all of them, so the flows of
//! one cluster share a [`PreparedStatements`]. Each flow keeps those that it uses at hand, in
//! [`PreparedCache`], and touches nothing shared while it goes on using them.

use crate::flow::details::MAX_TEXT_BYTES;
use crate::hash::{BuildSpread, Fnv};
use crate::text::analysis::{Analysis, Fingerprint};
use crate::text::lex::MAX_NAME_BYTES;
use crate::text::statement::{Statement, Statements};
use crate::wire::header::StreamId;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// How many statements a store remembers. Applications prepare hundreds, and Cassandra's own cache
/// is limited, too (by default to a 256th of its heap). Each takes about 250 bytes, 4 MiB in all; where
/// details are asked for, its fingerprint too, at most 2 KiB and usually 100 bytes.
pub const MAX_PREPARED_STATEMENTS: usize = 16_384;

/// The bytes of all texts that a store keeps: those of some 20,000 usual statements. The text of a further one is not kept.
/// Such texts have markers in place of values, as a rule; what is shown of them is up to who asks for one.
pub const MAX_PREPARED_TEXTS_BYTES: usize = 4 << 20;

/// The longest id that is remembered. Cassandra's are 16 bytes (MD5).
pub const MAX_PREPARED_ID_BYTES: usize = 256;

/// How many statements a full store looks at to find one that nobody used lately. More would hold
/// up every flow behind the lock.
const MAX_LOOKS: usize = 64;

/// How many prepared statements a flow keeps at hand; beyond it, it starts over.
const MAX_RECENT: usize = 256;

/// The prepared statements of one cluster, shared by its flows. Bounded: when it is full, a
/// statement that was not used lately makes room.
///
/// An id is a digest of the keyspace and the text (`QueryProcessor.computeId`), so the servers of a
/// cluster agree on it and it never changes its meaning; a flow that has one at hand does not ask
/// again.
#[derive(Debug)]
pub struct PreparedStatements {
    capacity: usize,
    store: RwLock<Store>,
}

/// A prepared statement as it is kept.
#[derive(Clone, Debug)]
pub struct PreparedText {
    /// The id.
    pub id: Arc<[u8]>,
    /// The keyspace of its table, where that is known.
    pub keyspace: Option<Box<str>>,
    /// The text.
    pub text: Arc<str>,
}

#[derive(Debug, Default)]
struct Store {
    by_id: HashMap<Arc<[u8]>, Arc<Entry>>,
    /// Every id in `by_id` once; the front is the next to be looked at.
    queue: VecDeque<Arc<[u8]>>,
    /// Bytes of the texts in `by_id`.
    text_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    id: Arc<[u8]>,
    statement: Statement,
    /// `None`: nobody asked for it when it was prepared.
    fingerprint: Option<Arc<Fingerprint>>,
    /// The text as it was prepared. `None`: it was not seen whole, is longer than [`MAX_TEXT_BYTES`], or there was no room.
    text: Option<Arc<str>>,
    /// Since the queue last looked.
    used: AtomicBool,
}

impl Entry {
    fn text_bytes(&self) -> usize {
        self.text.as_ref().map_or(0, |text| text.len())
    }

    fn mark_used(&self) {
        // Reading first leaves the cache line shared between cores.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }
}

impl Default for PreparedStatements {
    fn default() -> Self {
        Self::with_capacity(MAX_PREPARED_STATEMENTS)
    }
}

impl PreparedStatements {
    /// Remembers at most `capacity` statements, and at least one.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            store: RwLock::default(),
        }
    }

    /// How many statements are remembered.
    pub fn len(&self) -> usize {
        self.store
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .by_id
            .len()
    }

    /// Nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is remembered what this id stands for.
    pub fn knows(&self, id: &[u8]) -> bool {
        self.get(id).is_some()
    }

    /// Learns that `id` stands for this text, prepared in this keyspace.
    pub fn learn(&self, id: &[u8], keyspace: Option<&str>, text: &[u8]) {
        if id.len() > MAX_PREPARED_ID_BYTES {
            return;
        }
        let mut statement = Statement::of(text);
        if statement.table.is_some() && statement.keyspace.is_none() {
            let keyspace = keyspace.filter(|keyspace| keyspace.len() <= MAX_NAME_BYTES);
            statement.keyspace = keyspace.map(Into::into);
        }
        let fingerprint = Analysis::of(text, text.len()).fingerprint;
        let fingerprint = fingerprint.is_known().then(|| Arc::new(fingerprint));
        self.insert(id, &statement, fingerprint, kept_text(text));
    }

    /// The text that was prepared as `id`, where it is kept.
    pub fn text(&self, id: &[u8]) -> Option<Arc<str>> {
        self.get(id)?.text.clone()
    }

    /// Every text that is kept.
    pub fn texts(&self) -> Vec<PreparedText> {
        let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
        let kept = store.by_id.values().filter_map(|entry| {
            Some(PreparedText {
                id: entry.id.clone(),
                keyspace: entry.statement.keyspace.as_deref().map(Into::into),
                text: entry.text.clone()?,
            })
        });
        kept.collect()
    }

    fn get(&self, id: &[u8]) -> Option<Arc<Entry>> {
        let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
        let entry = store.by_id.get(id)?;
        entry.mark_used();
        Some(Arc::clone(entry))
    }

    /// True if another statement had to go.
    fn insert(
        &self,
        id: &[u8],
        statement: &Statement,
        fingerprint: Option<Arc<Fingerprint>>,
        text: Option<Arc<str>>,
    ) -> bool {
        // Drivers prepare the same statement again on every host: usually it is there.
        let known = self.get(id).filter(|known| known.statement == *statement);
        if let Some(known) = &known
            && (known.fingerprint == fingerprint || fingerprint.is_none())
            && (known.text == text || text.is_none())
        {
            return false;
        }
        let known = known.as_deref();
        let id: Arc<[u8]> = id.into();
        let entry = Arc::new(Entry {
            id: Arc::clone(&id),
            statement: statement.clone(),
            fingerprint: fingerprint.or_else(|| known?.fingerprint.clone()),
            text: text.or_else(|| known?.text.clone()),
            used: AtomicBool::new(false),
        });
        let mut store = self.store.write().unwrap_or_else(PoisonError::into_inner);
        let replaced = store.by_id.contains_key(&id);
        let entry = store.with_room_for_text(entry);
        let evicted = !replaced && store.by_id.len() >= self.capacity && store.evict();
        if !replaced {
            store.queue.push_back(Arc::clone(&id));
        }
        store.text_bytes += entry.text_bytes();
        if let Some(before) = store.by_id.insert(id, entry) {
            store.text_bytes -= before.text_bytes();
        }
        evicted
    }
}

impl Store {
    /// An entry without its text, if there is no room for that.
    fn with_room_for_text(&self, entry: Arc<Entry>) -> Arc<Entry> {
        let replaced = self.by_id.get(&entry.id);
        let others = self.text_bytes - replaced.map_or(0, |entry| entry.text_bytes());
        match others + entry.text_bytes() <= MAX_PREPARED_TEXTS_BYTES {
            true => entry,
            false => Arc::new(Entry {
                id: Arc::clone(&entry.id),
                statement: entry.statement.clone(),
                fingerprint: entry.fingerprint.clone(),
                text: None,
                used: AtomicBool::new(false),
            }),
        }
    }

    /// Second chance: a used one goes to the back, unmarked; the first unused one is dropped.
    fn evict(&mut self) -> bool {
        for _ in 0..MAX_LOOKS {
            let used = self
                .queue
                .front()
                .and_then(|id| self.by_id.get(id))
                .is_some_and(|entry| entry.used.swap(false, Ordering::Relaxed));
            if !used {
                break;
            }
            self.queue.rotate_left(1);
        }
        match self.queue.pop_front() {
            Some(id) => {
                let gone = self.by_id.remove(&id);
                self.text_bytes -= gone.as_ref().map_or(0, |gone| gone.text_bytes());
                gone.is_some()
            }
            None => false,
        }
    }
}

/// A flow's view of a [`PreparedStatements`].
#[derive(Debug)]
pub(crate) struct PreparedCache {
    shared: Arc<PreparedStatements>,
    /// By a hash of the id; the id is compared.
    recent: HashMap<u64, Recent, BuildSpread>,
}

#[derive(Debug)]
struct Recent {
    entry: Arc<Entry>,
    /// Equal to the entry's, but this flow's own: no reference count that other cores write to.
    statement: Arc<Statement>,
}

impl PreparedCache {
    pub(crate) fn new(shared: Arc<PreparedStatements>) -> Self {
        Self {
            shared,
            recent: HashMap::default(),
        }
    }

    /// The statement that was prepared as `id`.
    pub(crate) fn get(&mut self, id: &[u8], statements: &mut Statements) -> Option<Arc<Statement>> {
        let hash = hash(id);
        if let Some(recent) = self.recent.get(&hash)
            && *recent.entry.id == *id
        {
            recent.entry.mark_used();
            return Some(Arc::clone(&recent.statement));
        }
        let entry = self.shared.get(id)?;
        let statement = statements.get(entry.statement.as_kind(entry.statement.kind));
        if self.recent.len() >= MAX_RECENT {
            self.recent.clear();
        }
        self.recent.insert(
            hash,
            Recent {
                entry,
                statement: Arc::clone(&statement),
            },
        );
        Some(statement)
    }

    /// The fingerprint of a statement that this flow has just [got](Self::get).
    pub(crate) fn fingerprint(&self, id: &[u8]) -> Option<Arc<Fingerprint>> {
        let recent = self.recent.get(&hash(id))?;
        match *recent.entry.id == *id {
            true => recent.entry.fingerprint.clone(),
            false => None,
        }
    }

    /// Remembers `statement` as `id`; true if another one was forgotten for it.
    pub(crate) fn insert(
        &mut self,
        id: &[u8],
        statement: &Statement,
        fingerprint: Option<Arc<Fingerprint>>,
        text: Option<Arc<str>>,
    ) -> bool {
        if id.len() > MAX_PREPARED_ID_BYTES {
            return false;
        }
        self.recent.remove(&hash(id));
        self.shared.insert(id, statement, fingerprint, text)
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

/// The texts of a flow's PREPAREs that wait for their responses, by stream. Few flows have any, and the others have no
/// table. What a flow prepares again is in the store already, and takes nothing here.
#[derive(Debug, Default)]
pub(crate) struct Preparing {
    waiting: HashMap<i16, Arc<str>, BuildSpread>,
    /// Hashes of texts that were prepared lately, by keys that nobody can choose.
    known: HashMap<u64, (), BuildSpread>,
    hashing: RandomState,
}

impl Preparing {
    /// A PREPARE of this text passes.
    pub(crate) fn asks(&mut self, stream: StreamId, text: &[u8]) {
        if self.waiting.len() < MAX_PREPARING
            && !self.known.contains_key(&self.hashing.hash_one(text))
            && let Some(text) = kept_text(text)
        {
            self.waiting.insert(stream.0, text);
        }
    }

    /// The response on this stream passes: takes the text that was to be prepared.
    #[inline]
    pub(crate) fn take(&mut self, stream: StreamId) -> Option<Arc<str>> {
        match self.waiting.is_empty() {
            true => None,
            false => self.waiting.remove(&stream.0),
        }
    }

    /// A text was prepared.
    pub(crate) fn note(&mut self, text: &str) {
        if self.known.len() >= MAX_PREPARING {
            self.known.clear();
        }
        self.known
            .insert(self.hashing.hash_one(text.as_bytes()), ());
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
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::text::statement::StatementKind;

    fn statement(table: &str) -> Statement {
        Statement {
            kind: StatementKind::Select,
            keyspace: None,
            table: Some(table.into()),
        }
    }

    fn knows(store: &PreparedStatements, id: &[u8]) -> bool {
        let store = store.store.read().unwrap();
        assert_eq!(store.by_id.len(), store.queue.len());
        store.by_id.contains_key(id)
    }

    #[test]
    fn ids_that_differ_little_have_hashes_of_their_own() {
        let filled = (0..=255).map(|n| vec![n; 16]);
        let counted = (0..256_u128).map(|n| n.to_be_bytes().to_vec());
        let shifted = (1..128).map(|n| (1_u128 << n << 8).to_le_bytes().to_vec());
        let short = (0..256_u16).map(|n| n.to_be_bytes().to_vec());
        let ids: HashSet<Vec<u8>> = filled.chain(counted).chain(shifted).chain(short).collect();
        let hashes: HashSet<u64> = ids.iter().map(|id| hash(id)).collect();
        assert_eq!(hashes.len(), ids.len());
    }

    #[test]
    fn what_one_flow_prepares_another_executes() {
        let shared = Arc::new(PreparedStatements::default());
        let mut preparing = PreparedCache::new(Arc::clone(&shared));
        let mut executing = PreparedCache::new(Arc::clone(&shared));
        let mut statements = Statements::default();
        assert_eq!(executing.get(b"id", &mut statements), None);
        assert!(!preparing.insert(b"id", &statement("t"), None, None));
        let first = executing.get(b"id", &mut statements).unwrap();
        assert_eq!(*first, statement("t"));
        assert!(Arc::ptr_eq(
            &first,
            &executing.get(b"id", &mut statements).unwrap()
        ));
    }

    #[test]
    fn preparing_again_replaces() {
        let mut cache = PreparedCache::new(Arc::default());
        let mut statements = Statements::default();
        for table in ["t", "t", "u"] {
            assert!(!cache.insert(b"id", &statement(table), None, None));
            assert_eq!(
                cache.get(b"id", &mut statements).as_deref(),
                Some(&statement(table))
            );
        }
        assert_eq!(cache.shared.len(), 1);
        assert!(knows(&cache.shared, b"id"));
    }

    #[test]
    fn the_unused_go_first_and_the_bound_holds() {
        let shared = PreparedStatements::with_capacity(3);
        for id in [b"1", b"2", b"3"] {
            assert!(!shared.insert(id, &statement("t"), None, None));
        }
        shared.get(b"1");
        assert!(shared.insert(b"4", &statement("t"), None, None));
        assert!(knows(&shared, b"1") && !knows(&shared, b"2") && knows(&shared, b"4"));
        for i in 0..1000_u32 {
            shared.get(b"1");
            shared.insert(&i.to_be_bytes(), &statement("t"), None, None);
            assert_eq!(shared.len(), 3);
        }
        assert!(knows(&shared, b"1"), "a statement in use stays");
    }

    #[test]
    fn texts_are_kept_as_long_as_there_is_room() {
        let shared = PreparedStatements::with_capacity(1_000);
        let text: Arc<str> = "x".repeat(MAX_TEXT_BYTES).into();
        let fit = MAX_PREPARED_TEXTS_BYTES / MAX_TEXT_BYTES;
        let id = |n: usize| n.to_be_bytes();
        let inserts = |n: usize, text: &Arc<str>| {
            shared.insert(&id(n), &statement("t"), None, Some(text.clone()));
        };
        (0..fit + 1).for_each(|n| inserts(n, &text));
        assert!(shared.text(&id(fit - 1)).is_some() && shared.text(&id(fit)).is_none());
        assert!(shared.knows(&id(fit)));
        // What comes without a text does not take it away, and one that is replaced makes room.
        shared.insert(&id(0), &statement("t"), None, None);
        assert_eq!(shared.text(&id(0)), Some(text.clone()));
        inserts(0, &"y".into());
        inserts(fit, &text);
        assert_eq!(shared.text(&id(0)).as_deref(), Some("y"));
        assert!(shared.text(&id(fit)).is_none(), "one byte is missing");
        inserts(1, &"y".into());
        inserts(fit, &text);
        assert!(shared.text(&id(fit)).is_some());
        // With the statement its text goes.
        for n in fit + 1..fit + 2_000 {
            shared.insert(&id(n), &statement("u"), None, None);
        }
        let store = shared.store.read().unwrap();
        assert_eq!(store.text_bytes, 0);
    }

    #[test]
    fn a_flow_that_has_it_at_hand_keeps_it_in_use() {
        let shared = Arc::new(PreparedStatements::with_capacity(2));
        let mut cache = PreparedCache::new(Arc::clone(&shared));
        let mut statements = Statements::default();
        cache.insert(b"hot", &statement("t"), None, None);
        for i in 0..100_u32 {
            cache.get(b"hot", &mut statements);
            cache.insert(&i.to_be_bytes(), &statement("u"), None, None);
        }
        assert!(knows(&shared, b"hot"));
    }

    #[test]
    fn a_store_full_of_used_statements_still_makes_room() {
        let shared = PreparedStatements::with_capacity(2 * MAX_LOOKS);
        for i in 0..2 * MAX_LOOKS {
            shared.insert(&i.to_be_bytes(), &statement("t"), None, None);
            shared.get(&i.to_be_bytes());
        }
        assert!(shared.insert(b"new", &statement("t"), None, None));
        assert_eq!(shared.len(), 2 * MAX_LOOKS);
    }

    #[test]
    fn a_flows_memory_is_bounded() {
        let mut cache = PreparedCache::new(Arc::default());
        let mut statements = Statements::default();
        for i in 0..3 * MAX_RECENT {
            cache.insert(&i.to_be_bytes(), &statement("t"), None, None);
            cache.get(&i.to_be_bytes(), &mut statements);
            assert!(cache.recent.len() <= MAX_RECENT);
        }
        assert!(!cache.insert(&[0; MAX_PREPARED_ID_BYTES + 1], &statement("t"), None, None));
        assert_eq!(cache.shared.len(), 3 * MAX_RECENT);
    }
}
