//! The flows that the agent carries right now.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    time::{Instant, SystemTime},
};

use dataplane::{
    ClientAddr, Held, OrigDst, Process,
    policy::{Action, RuleName},
};
use serde::Serialize;
use tokio::sync::Notify;

/// A flow's number within this agent's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FlowId(u64);

/// How the bytes travel. `untouched` flows never reach the agent, so they are not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Path {
    /// Relayed and decoded.
    Enrich = 0,
    /// Relayed without being understood.
    Relay = 1,
    /// Carried by the kernel, past the agent.
    Splice = 2,
}

impl Path {
    /// As in logs, metrics and `flows`.
    pub fn as_str(self) -> &'static str {
        match self {
            Path::Enrich => "enrich",
            Path::Relay => "relay",
            Path::Splice => "splice",
        }
    }
}

/// One flow.
#[derive(Debug)]
pub struct Flow {
    /// Its number.
    pub id: FlowId,
    /// The client's socket.
    pub client: ClientAddr,
    /// Who opened it.
    pub process: Process,
    /// Where it was dialled to.
    pub orig_dst: OrigDst,
    /// The rule that marked it.
    pub rule: RuleName,
    /// When its SYN arrived.
    pub opened: Instant,
    /// Bytes passed on to the database.
    pub to_database: AtomicU64,
    /// Bytes passed on to the client.
    pub to_client: AtomicU64,
    opened_at: SystemTime,
    path: AtomicU8,
    recall: Notify,
}

impl Flow {
    /// One that begins now.
    pub fn begin(
        number: u64,
        client: ClientAddr,
        process: Process,
        orig_dst: OrigDst,
        rule: RuleName,
    ) -> Self {
        Self {
            id: FlowId(number),
            client,
            process,
            orig_dst,
            rule,
            opened: Instant::now(),
            opened_at: SystemTime::now(),
            to_database: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
            path: AtomicU8::new(Path::Enrich as u8),
            recall: Notify::new(),
        }
    }

    /// Has the agent take it back from the kernel, which it does at once if it is there.
    pub fn recall(&self) {
        self.recall.notify_one();
    }

    /// Waits until it is recalled.
    pub async fn recalled(&self) {
        self.recall.notified().await;
    }

    /// How its bytes travel.
    pub fn path(&self) -> Path {
        match self.path.load(Relaxed) {
            n if n == Path::Relay as u8 => Path::Relay,
            n if n == Path::Splice as u8 => Path::Splice,
            _ => Path::Enrich,
        }
    }

    /// From now on its bytes travel this way.
    pub fn travels(&self, path: Path) {
        self.path.store(path as u8, Relaxed);
    }
}

/// A flow as `/flows` and `underpass flows --json` give it.
#[derive(Debug, Serialize)]
pub struct FlowView {
    id: FlowId,
    client: String,
    pid: u32,
    process: String,
    uid: u32,
    orig_dst: String,
    action: &'static str,
    path: &'static str,
    rule: String,
    age_ms: u64,
    opened_unix_ms: u64,
    bytes_to_database: u64,
    bytes_to_client: u64,
}

impl From<&Flow> for FlowView {
    fn from(flow: &Flow) -> Self {
        let since_epoch = flow.opened_at.duration_since(SystemTime::UNIX_EPOCH);
        Self {
            id: flow.id,
            client: flow.client.to_string(),
            pid: flow.process.pid,
            process: flow.process.name.clone(),
            uid: flow.process.uid,
            orig_dst: flow.orig_dst.to_string(),
            action: Action::Enrich.as_str(),
            path: flow.path().as_str(),
            rule: flow.rule.to_string(),
            age_ms: flow.opened.elapsed().as_millis() as u64,
            opened_unix_ms: since_epoch.unwrap_or_default().as_millis() as u64,
            bytes_to_database: flow.to_database.load(Relaxed),
            bytes_to_client: flow.to_client.load(Relaxed),
        }
    }
}

/// All of them. Bounded by the agent's admission.
#[derive(Debug, Default)]
pub struct Flows {
    next: AtomicU64,
    live: Mutex<BTreeMap<FlowId, Arc<Flow>>>,
}

impl Flows {
    /// Enters a flow.
    pub fn enter(&self, held: &Held) -> Arc<Flow> {
        let flow = Arc::new(Flow::begin(
            self.next.fetch_add(1, Relaxed) + 1,
            held.client,
            held.process.clone(),
            held.orig_dst,
            held.rule.clone(),
        ));
        self.lock().insert(flow.id, flow.clone());
        flow
    }

    /// Takes it out.
    pub fn leave(&self, id: FlowId) {
        self.lock().remove(&id);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All, oldest first.
    pub fn views(&self) -> Vec<FlowView> {
        let live: Vec<Arc<Flow>> = self.lock().values().cloned().collect();
        live.iter()
            .map(|flow| FlowView::from(flow.as_ref()))
            .collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<FlowId, Arc<Flow>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
