//! The keys that are in force, by where they come from.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, RwLock, Weak,
        mpsc::{SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use cql_edit::protect::KeySet;

use super::{Origin, file, metrics::ProtectMetrics, server};

/// See the module. It lives for as long as a step, or a flow, has it.
#[derive(Debug)]
pub(super) struct Ring {
    held: RwLock<Option<Held>>,
    /// Of those that a server has given.
    max_age: Option<Duration>,
    /// Who asks a server for more. Gone with the ring, so that its thread ends.
    hurry: Option<SyncSender<()>>,
    metrics: ProtectMetrics,
}

#[derive(Debug)]
struct Held {
    keys: Arc<KeySet>,
    since: Instant,
}

impl Ring {
    pub(super) fn keys(&self) -> Option<Arc<KeySet>> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        let held = held.as_ref()?;
        let is_old = self.max_age.is_some_and(|max| held.since.elapsed() > max);
        (!is_old).then(|| held.keys.clone())
    }

    /// Has a server asked soon, because some key is missing.
    pub(super) fn hurry(&self) {
        if let Some(hurry) = &self.hurry {
            // Full: it will be.
            let _ = hurry.try_send(());
        }
    }

    pub(super) fn metrics(&self) -> &ProtectMetrics {
        &self.metrics
    }

    /// These hold, as they were when somebody began to ask for them.
    ///
    /// # Errors
    /// One of them is another than it was: what it has encrypted could not be read any more.
    pub(super) fn put(&self, keys: KeySet, since: Instant) -> Result<(), String> {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        let changed = held.as_ref().and_then(|held| keys.differs_from(&held.keys));
        if let Some(id) = changed {
            return Err(format!(
                "key {id} is another than before: give a new key an id of its own"
            ));
        }
        *held = Some(Held {
            keys: Arc::new(keys),
            since,
        });
        Ok(())
    }

    /// What is too old is wiped, once nobody uses it.
    pub(super) fn forget_old(&self) {
        if self.keys().is_none() {
            let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
            *held = None;
        }
    }
}

/// All of an agent's.
#[derive(Debug)]
pub struct Rings {
    rings: Mutex<HashMap<Origin, Weak<Ring>>>,
    metrics: ProtectMetrics,
}

impl Rings {
    /// None yet.
    pub fn new(metrics: ProtectMetrics) -> Self {
        Self {
            rings: Mutex::default(),
            metrics,
        }
    }

    /// The one of this place. A file is read again, a server is asked by a thread from the first time on.
    pub(super) fn open(&self, from: &Origin) -> Result<Arc<Ring>, String> {
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.retain(|_, ring| ring.strong_count() > 0);
        let known = rings.get(from).and_then(Weak::upgrade);
        let ring = match (from, known) {
            (Origin::File(path), known) => {
                let keys = file::read(path)?;
                let ring = known.unwrap_or_else(|| self.made(None, None));
                let put = ring.put(keys, Instant::now());
                put.map_err(|why| format!("{}: {why}", from.shown()))?;
                ring
            }
            (Origin::Server(_), Some(known)) => known,
            (Origin::Server(server), None) => {
                let (hurry, hurried) = sync_channel(1);
                let ring = self.made(Some(server.max_age), Some(hurry));
                server::ask(server.clone(), Arc::downgrade(&ring), hurried)
                    .map_err(|e| format!("{}: no thread to ask it: {e}", from.shown()))?;
                ring
            }
        };
        rings.insert(from.clone(), Arc::downgrade(&ring));
        Ok(ring)
    }

    fn made(&self, max_age: Option<Duration>, hurry: Option<SyncSender<()>>) -> Arc<Ring> {
        Arc::new(Ring {
            held: RwLock::new(None),
            max_age,
            hurry,
            metrics: self.metrics.clone(),
        })
    }
}
