//! The connected clients, for `Node::clients` and `system_views.clients`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One connection, as the database sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// The address the database sees; behind a proxy that is not transparent, the proxy's.
    pub peer: SocketAddr,
    /// User that logged in; `None` without credentials, or before.
    pub user: Option<String>,
    /// The protocol version of STARTUP; 0 before it.
    pub version: u8,
    /// `DRIVER_NAME` of STARTUP.
    pub driver_name: Option<String>,
    /// `DRIVER_VERSION` of STARTUP.
    pub driver_version: Option<String>,
    /// The keyspace of the session.
    pub keyspace: Option<String>,
    /// Requests received, STARTUP included.
    pub requests: u64,
    /// The consistency level of the last QUERY or EXECUTE; `None` before.
    pub consistency: Option<u16>,
}

/// The connections of one node. The node's thread writes; any thread reads.
#[derive(Debug, Default)]
pub(super) struct Clients {
    open: Mutex<BTreeMap<u64, Arc<Entry>>>,
    total: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    client: Mutex<Client>,
    requests: AtomicU64,
    /// Above `u16::MAX`: none yet.
    consistency: AtomicU32,
}

/// A connection's own entry, which leaves the list when dropped.
#[derive(Debug)]
pub(super) struct Registration {
    clients: Arc<Clients>,
    id: u64,
    entry: Arc<Entry>,
}

impl Clients {
    pub(super) fn register(self: &Arc<Self>, peer: SocketAddr) -> Registration {
        let client = Client {
            peer,
            user: None,
            version: 0,
            driver_name: None,
            driver_version: None,
            keyspace: None,
            requests: 0,
            consistency: None,
        };
        let entry = Arc::new(Entry {
            client: Mutex::new(client),
            requests: AtomicU64::new(0),
            consistency: AtomicU32::new(u32::MAX),
        });
        let id = self.total.fetch_add(1, Relaxed);
        lock(&self.open).insert(id, Arc::clone(&entry));
        Registration {
            clients: Arc::clone(self),
            id,
            entry,
        }
    }

    /// The clients that are connected now, in the order they came.
    pub(super) fn snapshot(&self) -> Vec<Client> {
        let read = |e: &Arc<Entry>| Client {
            requests: e.requests.load(Relaxed),
            consistency: e.consistency.load(Relaxed).try_into().ok(),
            ..lock(&e.client).clone()
        };
        lock(&self.open).values().map(read).collect()
    }

    /// Connections accepted since the start.
    pub(super) fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    pub(super) fn open(&self) -> usize {
        lock(&self.open).len()
    }
}

impl Registration {
    /// The client's port, as the node sees it.
    pub(super) fn port(&self) -> u16 {
        lock(&self.entry.client).peer.port()
    }

    pub(super) fn count_request(&self) {
        self.entry.requests.fetch_add(1, Relaxed);
    }

    pub(super) fn asks_at(&self, consistency: u16) {
        self.entry.consistency.store(consistency.into(), Relaxed);
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut Client)) {
        change(&mut lock(&self.entry.client));
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        lock(&self.clients.open).remove(&self.id);
    }
}

/// A panic elsewhere leaves these maps whole: no call that can panic is made under the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
