//! The rings: the keys in force, by their origin.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        mpsc::{SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use cql_edit::protect::KeySet;
use parking_lot::{Mutex, RwLock};

use super::{Origin, file, metrics::ProtectMetrics, server};

/// The keys of one origin. A ring lives as long as a step or a flow has it.
#[derive(Debug)]
pub(super) struct Ring {
    held: RwLock<Option<Held>>,
    /// The time for which a server's keys are good.
    max_age: Option<Duration>,
    /// The sender that makes the server's thread ask soon. It is dropped with the ring, so that the
    /// thread ends.
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
        let held = self.held.read();
        let held = held.as_ref()?;
        let is_old = self.max_age.is_some_and(|max| held.since.elapsed() > max);
        (!is_old).then(|| held.keys.clone())
    }

    /// Makes the thread ask the server soon, because a key is missing.
    pub(super) fn hurry(&self) {
        if let Some(hurry) = &self.hurry {
            // A full channel means that the thread will ask anyway.
            let _ = hurry.try_send(());
        }
    }

    pub(super) fn metrics(&self) -> &ProtectMetrics {
        &self.metrics
    }

    /// Puts these keys in force. `since`: the time when the request for them began.
    ///
    /// # Errors
    /// A key differs from the one that is known under its id: values that it has encrypted could
    /// not be read any more.
    pub(super) fn put(&self, keys: KeySet, since: Instant) -> Result<(), String> {
        let mut held = self.held.write();
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

    /// Forgets keys that are too old. They are wiped once nobody uses them.
    pub(super) fn forget_old(&self) {
        if self.keys().is_none() {
            let mut held = self.held.write();
            *held = None;
        }
    }
}

/// The rings of all origins.
#[derive(Debug)]
pub struct Rings {
    rings: Mutex<HashMap<Origin, Weak<Ring>>>,
    metrics: ProtectMetrics,
}

impl Rings {
    /// Makes the register; there is no ring yet.
    pub fn new(metrics: ProtectMetrics) -> Self {
        Self {
            rings: Mutex::default(),
            metrics,
        }
    }

    /// Opens the ring of this origin. A file is read again each time; a server is asked by a
    /// thread, which starts the first time.
    pub(super) fn open(&self, from: &Origin) -> Result<Arc<Ring>, String> {
        let mut rings = self.rings.lock();
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
