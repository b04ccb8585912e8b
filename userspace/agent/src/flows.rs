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
    policy::{Action, Compression, Match, Protocol, RuleName, Session},
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
    /// When its SYN arrived.
    pub opened: Instant,
    /// Bytes passed on to the database.
    pub to_database: AtomicU64,
    /// Bytes passed on to the client.
    pub to_client: AtomicU64,
    opened_at: SystemTime,
    path: AtomicU8,
    recall: Notify,
    standing: Mutex<Standing>,
}

/// What was decided of a flow, and why.
#[derive(Clone, Debug)]
struct Standing {
    /// The rule that decided; the one that marked it until then.
    rule: RuleName,
    /// None while it depends on what is not known yet.
    action: Option<Action>,
    /// Only where a session rule may hold.
    session: Option<Box<Session>>,
}

/// What `flows` calls the action of a flow that is not decided yet.
const UNDECIDED: &str = "undecided";

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
            opened: Instant::now(),
            opened_at: SystemTime::now(),
            to_database: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
            path: AtomicU8::new(Path::Enrich as u8),
            recall: Notify::new(),
            standing: Mutex::new(Standing {
                rule,
                action: Some(Action::Enrich),
                session: None,
            }),
        }
    }

    /// The rule that decided; the one that marked it until then.
    pub fn rule(&self) -> RuleName {
        self.standing().rule.clone()
    }

    /// What was decided, as in `flows`.
    pub fn action(&self) -> &'static str {
        self.standing().action.map_or(UNDECIDED, Action::as_str)
    }

    /// It is to be decided by its session.
    pub fn await_session(&self) {
        let mut standing = self.standing();
        standing.action = None;
        standing.session = Some(Box::default());
    }

    /// What is known of its session by now.
    pub fn knows(&self, session: &Session) {
        self.standing().session = Some(Box::new(session.clone()));
    }

    /// It is decided.
    pub fn decide(&self, by: &Match) {
        let mut standing = self.standing();
        standing.rule = by.rule.clone();
        standing.action = Some(by.action);
    }

    fn standing(&self) -> std::sync::MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
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
    session: Option<Box<SessionView>>,
    age_ms: u64,
    opened_unix_ms: u64,
    bytes_to_database: u64,
    bytes_to_client: u64,
}

/// What is known of a flow's session. Absent: not known, or there is none.
#[derive(Debug, Serialize)]
struct SessionView {
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keyspace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    driver: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    driver_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    application: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compression: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<bool>,
}

impl From<&Session> for SessionView {
    fn from(session: &Session) -> Self {
        // A peer names itself: what is no letter could forge terminal output.
        let text = |text: &String| text.replace(char::is_control, "?");
        Self {
            user: session.user.value().map(text),
            keyspace: session.keyspace.value().map(text),
            driver: session.driver.value().map(text),
            driver_version: session.driver_version.value().map(text),
            application: session.application.value().map(text),
            protocol: session.protocol.value().map(|v: &Protocol| v.as_str()),
            compression: session
                .compression
                .value()
                .map(|c: &Compression| c.as_str()),
            tls: session.tls.value().copied(),
        }
    }
}

impl From<&Flow> for FlowView {
    fn from(flow: &Flow) -> Self {
        let standing = flow.standing().clone();
        let since_epoch = flow.opened_at.duration_since(SystemTime::UNIX_EPOCH);
        Self {
            id: flow.id,
            client: flow.client.to_string(),
            pid: flow.process.pid,
            process: flow.process.name.clone(),
            uid: flow.process.uid,
            orig_dst: flow.orig_dst.to_string(),
            action: standing.action.map_or(UNDECIDED, Action::as_str),
            path: flow.path().as_str(),
            rule: standing.rule.to_string(),
            session: standing.session.as_deref().map(|s| Box::new(s.into())),
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
