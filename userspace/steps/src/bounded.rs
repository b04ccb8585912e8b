//! Series that are bounded in number, though whoever is counted may invent any number of them.

use std::{
    collections::HashMap,
    hash::Hash,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;

/// Series, at most so many. A further one takes the place of the one that was not used for longest, of those of the owner who has
/// most: whoever invents names pushes his own out.
#[derive(Debug)]
pub struct Bounded<K, O, V> {
    series: Mutex<Map<K, O, V>>,
    most: usize,
    /// The series that were made so far.
    made: AtomicU64,
}

type Map<K, O, V> = HashMap<K, Arc<Series<K, O, V>>>;

/// One series, with what it counts.
#[derive(Debug)]
pub struct Series<K, O, V> {
    /// The key.
    pub key: K,
    owner: O,
    /// The number of series that had been made when this one was used last.
    used: AtomicU64,
    /// Whether another one has its place: what is counted here, nobody sees.
    is_gone: AtomicBool,
    counts: V,
}

impl<K: Clone + Eq + Hash, O: Clone + Eq + Hash, V> Bounded<K, O, V> {
    /// Makes room for so many.
    pub fn new(most: usize) -> Self {
        Self {
            series: Mutex::default(),
            most,
            made: AtomicU64::new(0),
        }
    }

    /// Returns the series with this key, which is made if there is none. `forget` gets the one that leaves for it.
    pub fn find(
        &self,
        key: K,
        owner: O,
        make: impl FnOnce(&K) -> V,
        forget: impl FnOnce(&Series<K, O, V>),
    ) -> Arc<Series<K, O, V>> {
        let mut series = self.series.lock();
        if let Some(found) = series.get(&key) {
            return found.clone();
        }
        if series.len() >= self.most
            && let Some(leaves) = least_used_of_a_crowd(&series)
        {
            series.remove(&leaves.key);
            leaves.is_gone.store(true, Relaxed);
            // While nobody can make it again.
            forget(&leaves);
        }
        let new = Arc::new(Series {
            counts: make(&key),
            key: key.clone(),
            owner,
            used: AtomicU64::new(self.made.fetch_add(1, Relaxed) + 1),
            is_gone: AtomicBool::new(false),
        });
        series.insert(key, new.clone());
        new
    }

    /// Notes that a series was used.
    pub fn note_use(&self, series: &Series<K, O, V>) {
        let made = self.made.load(Relaxed);
        if series.used.load(Relaxed) != made {
            series.used.store(made, Relaxed);
        }
    }

    /// Returns all series.
    pub fn all(&self) -> Vec<Arc<Series<K, O, V>>> {
        self.series.lock().values().cloned().collect()
    }
}

fn least_used_of_a_crowd<K, O: Eq + Hash, V>(
    series: &Map<K, O, V>,
) -> Option<Arc<Series<K, O, V>>> {
    let mut shares = HashMap::new();
    for one in series.values() {
        *shares.entry(&one.owner).or_insert(0_usize) += 1;
    }
    let most = shares.values().max().copied()?;
    let of_a_crowd = series
        .values()
        .filter(|one| shares.get(&one.owner) == Some(&most));
    of_a_crowd.min_by_key(|one| one.used.load(Relaxed)).cloned()
}

impl<K, O, V> Series<K, O, V> {
    /// Whether another series has its place, so that this one has to be looked up again.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Relaxed)
    }
}

impl<K, O, V> Deref for Series<K, O, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.counts
    }
}
