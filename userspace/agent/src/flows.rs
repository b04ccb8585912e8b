//! The flows that the agent carries right now.

mod all;
mod standing;
mod view;

pub use all::Flows;
pub use view::FlowView;

use std::{
    borrow::Cow,
    fmt,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    time::{Instant, SystemTime},
};

use dataplane::{Application, Arrived, ClientAddr, Held, Near, Netns, Opener, OrigDst, Process};
use policy::{Action, Match, RuleName, Session, SessionKey};
use serde::Serialize;

use crate::{
    marks::{Holds, Known, Selector},
    orders::Mailbox,
    pipelines::About,
    tls::{Seen, SeenBy, Side, Towards},
};
use standing::Standing;

/// A flow's number within this agent's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FlowId(u64);

impl FlowId {
    /// This number.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// As which it is shown; each flow of an agent has the next.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

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
    /// In which network namespace, if not the agent's own.
    pub netns: Option<Arc<Netns>>,
    /// When its SYN arrived.
    pub opened: Instant,
    /// Bytes passed on to the database.
    pub to_database: AtomicU64,
    /// Bytes passed on to the client.
    pub to_client: AtomicU64,
    /// What marks ask of it.
    pub mailbox: Mailbox,
    opened_at: SystemTime,
    path: AtomicU8,
    recalled: AtomicBool,
    given: AtomicBool,
    /// What was dialled for it, if that was a virtual address.
    backend: OnceLock<SocketAddr>,
    /// How it speaks to its database, once that is known.
    towards: OnceLock<Towards>,
    /// Another agent began it.
    is_adopted: bool,
    standing: Mutex<Standing>,
}

/// A connection that is about to become a flow.
#[derive(Clone, Debug)]
pub struct Newcomer {
    /// The client's socket.
    pub client: ClientAddr,
    /// Whose socket is on this host; None: nobody's.
    pub application: Option<Application>,
    /// Where it was dialled to.
    pub orig_dst: OrigDst,
    /// The rule that marked it.
    pub rule: RuleName,
    /// Who opened it.
    pub process: Process,
    /// In which network namespace, if not the agent's own.
    pub netns: Option<Arc<Netns>>,
    /// As whom it is remembered; None on another host.
    pub opener: Option<Opener>,
}

impl From<&Held> for Newcomer {
    fn from(held: &Held) -> Self {
        Self {
            client: held.client,
            application: Some(held.application()),
            orig_dst: held.orig_dst,
            rule: held.rule.clone(),
            process: held.process.clone(),
            netns: held.netns().cloned(),
            opener: Some(held.opener),
        }
    }
}

impl Newcomer {
    /// A client on another host.
    pub fn elsewhere(arrived: &Arrived, rule: &RuleName) -> Self {
        Self {
            client: arrived.client,
            application: arrived.space().map(Application::Database),
            orig_dst: arrived.orig_dst,
            rule: rule.clone(),
            process: Process::elsewhere(),
            netns: None,
            opener: None,
        }
    }
}

/// What was decided of a flow.
#[derive(Debug)]
pub struct Decided {
    /// The rule that decided.
    pub rule: RuleName,
    /// None while it depends on what is not known yet.
    pub action: Option<Action>,
    /// What is known of its session, where a session rule may hold.
    pub session: Option<Box<Session>>,
}

/// What was before this process knew of a flow.
#[derive(Debug)]
pub struct Past {
    /// When its SYN arrived.
    pub opened_at: SystemTime,
    /// In which network namespace its client is, if not the agent's own.
    pub netns: Option<Arc<Netns>>,
    /// What was decided of it.
    pub decided: Decided,
}

/// Of a flow that another agent began.
const ADOPTED: &str = "adopted: it has outlived the agent that took it in";

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
            netns: None,
            opened: Instant::now(),
            opened_at: SystemTime::now(),
            to_database: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
            mailbox: Mailbox::default(),
            path: AtomicU8::new(Path::Enrich as u8),
            recalled: AtomicBool::new(false),
            given: AtomicBool::new(false),
            backend: OnceLock::new(),
            towards: OnceLock::new(),
            is_adopted: false,
            standing: Mutex::new(Standing::of(rule)),
        }
    }

    /// One that another process began.
    pub fn resumed(
        number: u64,
        client: ClientAddr,
        process: Process,
        orig_dst: OrigDst,
        Past {
            opened_at,
            netns,
            decided,
        }: Past,
    ) -> Self {
        let mut flow = Self::begin(number, client, process, orig_dst, decided.rule);
        let age = opened_at.elapsed().unwrap_or_default();
        flow.opened = Instant::now().checked_sub(age).unwrap_or(flow.opened);
        flow.opened_at = opened_at;
        flow.netns = netns;
        flow.is_adopted = true;
        let mut standing = flow.standing();
        standing.action = decided.action;
        standing.session = decided.session;
        drop(standing);
        flow.travels(Path::Relay);
        flow
    }

    /// Which of its two applications is on this host.
    pub fn near(&self) -> Near {
        self.process.near()
    }

    /// Goes to this backend. Said once.
    pub fn goes_to(&self, backend: SocketAddr) {
        let _ = self.backend.set(backend);
    }

    /// Where it goes, if it was dialled to a virtual address.
    pub fn backend(&self) -> Option<SocketAddr> {
        self.backend.get().copied()
    }

    /// Speaks to its database in this way. Said once.
    pub fn speaks(&self, towards: Towards) {
        let _ = self.towards.set(towards);
    }

    /// Where another connection to its database can be had as its own was, on this host and in this namespace, and how
    /// its own speaks there. None: it cannot be, or nobody knows yet how it will speak.
    pub fn database(&self) -> Option<(SocketAddr, &Towards)> {
        if self.netns.is_some() || self.process.is_elsewhere() {
            return None;
        }
        let at = self.backend().unwrap_or(self.orig_dst.socket_addr());
        Some((at, self.towards.get()?))
    }

    /// When its SYN arrived.
    pub fn opened_at(&self) -> SystemTime {
        self.opened_at
    }

    /// What was decided of it.
    pub fn decided(&self) -> Decided {
        let standing = self.standing();
        Decided {
            rule: standing.rule.clone(),
            action: standing.action,
            session: standing.session.clone(),
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

    /// What of its session is not known yet, and has to be to decide it.
    pub fn waits_for(&self, keys: Vec<SessionKey>) {
        self.standing().waits_for = keys;
    }

    /// It is decided.
    pub fn decide(&self, by: &Match) {
        self.is_by(&by.rule, by.action);
    }

    /// It is this now, by this rule or mark.
    pub fn is_by(&self, rule: &RuleName, action: Action) {
        let mut standing = self.standing();
        standing.rule = rule.clone();
        standing.action = Some(action);
        standing.is_left = false;
    }

    /// It passes this pipeline, or none.
    pub fn comes_to(&self, pipeline: Option<Arc<About>>) {
        self.standing().pipeline = pipeline;
    }

    /// It is decided, and none of those that its rule enriches.
    pub fn is_not_sampled(&self) {
        self.standing().is_left = true;
    }

    /// It cannot be decoded, for this reason.
    pub fn is_undecodable(&self, reason: &'static str) {
        self.standing().undecodable = Some(reason);
    }

    /// It is relayed and not spliced, for this reason.
    pub fn is_relayed(&self, reason: impl Into<Cow<'static, str>>) {
        self.standing().relayed = Some(reason.into());
    }

    /// TLS is spoken between this side and the agent.
    pub fn is_encrypted(&self, side: Side, seen: SeenBy) {
        let mut standing = self.standing();
        *standing.tls.get_or_insert_default().side(side) = Some(seen);
    }

    /// Whether its client's TLS ends in the agent.
    pub fn client_encrypts(&self) -> bool {
        let standing = self.standing();
        standing
            .tls
            .as_ref()
            .is_some_and(|tls| tls.client.is_some())
    }

    /// What of it is encrypted, where TLS ends in the agent.
    pub fn tls(&self) -> Option<Seen> {
        self.standing().tls.as_deref().cloned()
    }

    /// Whether a mark means it. `cgroup` looks its cgroup up.
    pub fn is_meant_by(
        &self,
        selector: &Selector,
        cgroup: impl FnOnce() -> Option<PathBuf>,
    ) -> Holds {
        let standing = self.standing().clone();
        let known = Known {
            to: self.orig_dst,
            process: &self.process,
            rule: &standing.rule,
            session: standing.session.as_deref(),
            undecided: standing.action.is_none(),
        };
        selector.holds(&known, cgroup)
    }

    fn standing(&self) -> std::sync::MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the agent take it back from the kernel, which it does at once if it is there.
    pub fn recall(&self) {
        self.recalled.store(true, Relaxed);
        self.mailbox.wake();
    }

    /// Whether it was recalled, since this was last asked. The flow's task is woken when it is.
    pub fn is_recalled(&self) -> bool {
        self.recalled.load(Relaxed) && self.recalled.swap(false, Relaxed)
    }

    /// As soon as it rides, another process goes on with it.
    pub fn give(&self) {
        self.given.store(true, Relaxed);
        self.mailbox.wake();
    }

    /// No other process goes on with it after all.
    pub fn do_not_give(&self) {
        self.given.store(false, Relaxed);
    }

    /// Whether another process is to go on with it. The flow's task is woken when one is.
    pub fn is_given(&self) -> bool {
        self.given.load(Relaxed)
    }

    /// How its bytes travel.
    pub fn path(&self) -> Path {
        match self.path.load(Relaxed) {
            n if n == Path::Relay as u8 => Path::Relay,
            n if n == Path::Splice as u8 => Path::Splice,
            _ => Path::Enrich,
        }
    }

    /// From now on the kernel carries it; why not by its sender's engine, or empty.
    pub fn is_spliced(&self, not_by_sender: &'static str) {
        self.standing().not_by_sender = not_by_sender;
        self.travels(Path::Splice);
    }

    /// From now on its bytes travel this way.
    pub fn travels(&self, path: Path) {
        self.path.store(path as u8, Relaxed);
    }
}
