//! The flows that the agent carries right now.

use std::{
    borrow::Cow,
    fmt,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    time::{Instant, SystemTime},
};

use cql::Undecodable;
use dataplane::{
    Application, Arrived, ClientAddr, Held, LegSide, Near, Netns, Opener, OrigDst, Process,
};
use parking_lot::Mutex;
use policy::{Action, Fact, Match, RuleName, Session, SessionKey, Shortcut};
use serde::Serialize;
use tls::{Seen, SeenBy, Side, Towards};

use super::standing::{LegNow, Standing};
use crate::{About, Handing, Holds, Known, Selector, Stays, commands::CommandSlot};

/// A flow's number within this agent's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FlowId(u64);

impl FlowId {
    /// The id of this number.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number under which the flow is shown. Each flow of an agent has the next one.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The path on which a flow's bytes travel. `untouched` flows never reach the agent, so they are
/// not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Path {
    /// Relayed and decoded.
    Enrich = 0,
    /// Relayed without being understood.
    Relay = 1,
    /// Carried by the kernel, past the agent.
    Splice = 2,
    /// The application's own connection, read from copies of its packets.
    Tap = 3,
}

impl Path {
    /// Returns the path's name in logs, metrics and `flows`.
    pub fn as_str(self) -> &'static str {
        match self {
            Path::Enrich => "enrich",
            Path::Relay => "relay",
            Path::Splice => "splice",
            Path::Tap => "tap",
        }
    }
}

/// A flow that the agent carries.
#[derive(Debug)]
pub struct Flow {
    /// The flow's number.
    pub id: FlowId,
    /// The client's socket.
    pub client: ClientAddr,
    /// The process that opened the flow.
    pub process: Process,
    /// The address that the client dialled.
    pub orig_dst: OrigDst,
    /// The client's network namespace, if it is not the agent's own.
    pub netns: Option<Arc<Netns>>,
    /// The time when the flow's SYN arrived.
    pub opened: Instant,
    /// Bytes passed on to the database.
    pub to_database: AtomicU64,
    /// Bytes passed on to the client.
    pub to_client: AtomicU64,
    /// The commands of marks to the flow.
    pub commands: CommandSlot,
    pub(crate) opened_at: SystemTime,
    path: AtomicU8,
    recalled: AtomicBool,
    given: AtomicBool,
    handing: AtomicU8,
    /// The reason why the flow stays with this process.
    stays: OnceLock<Stays>,
    /// The backend that was dialled for the flow, if the client dialled a virtual address.
    backend: OnceLock<SocketAddr>,
    /// The encryption towards the database, once that is known.
    towards: OnceLock<Towards>,
    /// Whether another agent began the flow.
    pub(crate) is_adopted: bool,
    standing: Mutex<Standing>,
}

/// A connection that is about to become a flow.
#[derive(Clone, Debug)]
pub struct Newcomer {
    /// The client's socket.
    pub client: ClientAddr,
    /// The application whose socket is on this host. None: neither side's is.
    pub application: Option<Application>,
    /// The address that the client dialled.
    pub orig_dst: OrigDst,
    /// The rule that marked the connection.
    pub rule: RuleName,
    /// The process that opened the connection.
    pub process: Process,
    /// The client's network namespace, if it is not the agent's own.
    pub netns: Option<Arc<Netns>>,
    /// The key under which a decision is remembered. None for a client on another host.
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
    /// Describes a connection of a client on another host.
    pub fn elsewhere(arrived: &Arrived, rule: &RuleName) -> Self {
        Self {
            client: arrived.client,
            application: arrived.netns().map(Application::Database),
            orig_dst: arrived.orig_dst,
            rule: rule.clone(),
            process: Process::elsewhere(),
            netns: None,
            opener: None,
        }
    }
}

/// The decision about a flow.
#[derive(Debug)]
pub struct Decided {
    /// The rule that decided.
    pub rule: RuleName,
    /// The rule that the flow met first, when it was opened.
    pub first: RuleName,
    /// The decided action. None while it depends on session facts that are not known yet.
    pub action: Option<Action>,
    /// The known session facts, where a session rule may match.
    pub session: Option<Box<Session>>,
}

/// The history of a flow before this process took it over.
#[derive(Debug)]
pub struct Past {
    /// The time when the flow's SYN arrived.
    pub opened_at: SystemTime,
    /// The client's network namespace, if it is not the agent's own.
    pub netns: Option<Arc<Netns>>,
    /// The decision about the flow.
    pub decided: Decided,
}

/// The explanation, in `flows`, for a flow that another agent began.
pub(crate) const ADOPTED: &str = "adopted: it has outlived the agent that took it in";

/// The name, in `flows`, of the action of a flow that is not decided yet.
pub const UNDECIDED: &str = "undecided";

impl Flow {
    /// Makes a flow that begins now.
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
            commands: CommandSlot::default(),
            path: AtomicU8::new(Path::Enrich as u8),
            recalled: AtomicBool::new(false),
            given: AtomicBool::new(false),
            handing: AtomicU8::new(Handing::No as u8),
            stays: OnceLock::new(),
            backend: OnceLock::new(),
            towards: OnceLock::new(),
            is_adopted: false,
            standing: Mutex::new(Standing::of(rule)),
        }
    }

    /// Makes a flow that another process began.
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
        let mut flow = Self::begin(number, client, process, orig_dst, decided.first);
        let age = opened_at.elapsed().unwrap_or_default();
        flow.opened = Instant::now().checked_sub(age).unwrap_or(flow.opened);
        flow.opened_at = opened_at;
        flow.netns = netns;
        flow.is_adopted = true;
        let mut standing = flow.standing();
        standing.rule = decided.rule;
        standing.action = decided.action;
        standing.session = decided.session;
        drop(standing);
        flow.travels(Path::Relay);
        flow
    }

    /// Returns which of the flow's two applications is on this host.
    pub fn near(&self) -> Near {
        self.process.near()
    }

    /// Notes the backend that the flow goes to. Only the first call counts.
    pub fn goes_to(&self, backend: SocketAddr) {
        let _ = self.backend.set(backend);
    }

    /// Returns the backend that the flow goes to, if its client dialled a virtual address.
    pub fn backend(&self) -> Option<SocketAddr> {
        self.backend.get().copied()
    }

    /// Notes how the flow speaks to its database. Only the first call counts.
    pub fn speaks(&self, towards: Towards) {
        let _ = self.towards.set(towards);
    }

    /// Returns the address at which another connection to the flow's database can be opened from
    /// this host and this namespace, and how the flow speaks there. None: that cannot be done, or
    /// it is not known yet how the flow will speak.
    pub fn database(&self) -> Option<(SocketAddr, &Towards)> {
        if self.netns.is_some() || self.process.is_elsewhere() {
            return None;
        }
        let at = self.backend().unwrap_or(self.orig_dst.socket_addr());
        Some((at, self.towards.get()?))
    }

    /// Returns the time when the flow's SYN arrived.
    pub fn opened_at(&self) -> SystemTime {
        self.opened_at
    }

    /// Returns the decision about the flow.
    pub fn decided(&self) -> Decided {
        let standing = self.standing();
        Decided {
            rule: standing.rule.clone(),
            first: standing.first.clone(),
            action: standing.action,
            session: standing.session.clone(),
        }
    }

    /// Returns the rule that decided; until then the rule that marked the flow.
    pub fn rule(&self) -> RuleName {
        self.standing().rule.clone()
    }

    /// Explains why the flow is on its path, and not on a faster one.
    pub fn why(&self) -> String {
        self.standing().why(self.path(), self.near())
    }

    /// Whether the flow's session is to decide which rule it meets, and its log-in is not over.
    pub fn is_logging_in(&self) -> bool {
        let standing = self.standing();
        let user = standing.session.as_deref().map(|session| &session.user);
        standing.action.is_none() && matches!(user, Some(Fact::Open))
    }

    /// Returns the decided action's name, as in `flows`.
    pub fn action(&self) -> &'static str {
        self.standing().action.map_or(UNDECIDED, Action::as_str)
    }

    /// Leaves the flow undecided until its session decides it.
    pub fn await_session(&self) {
        let mut standing = self.standing();
        standing.action = None;
        standing.session = Some(Box::default());
    }

    /// Notes the session facts that are known by now.
    pub fn knows(&self, session: &Session) {
        self.standing().session = Some(Box::new(session.clone()));
    }

    /// Notes the session facts that are not known yet and have to be known to decide the flow.
    pub fn waits_for(&self, keys: Vec<SessionKey>) {
        self.standing().waits_for = keys;
    }

    /// Notes the decision.
    pub fn decide(&self, by: &Match) {
        self.set_action(&by.rule, by.action);
    }

    /// Notes that this rule or mark has given the flow this action.
    pub fn set_action(&self, rule: &RuleName, action: Action) {
        let mut standing = self.standing();
        standing.rule = rule.clone();
        standing.action = Some(action);
        standing.is_left = false;
    }

    /// Notes whose sockets the rule that decided lets into a sockmap.
    pub fn opt_in(&self, shortcut: Shortcut) {
        self.standing().opted_in = shortcut;
    }

    /// Returns whose sockets the rule that decided lets into a sockmap.
    pub fn opted_in(&self) -> Shortcut {
        self.standing().opted_in
    }

    /// Notes the pipeline that the flow passes, or that it passes none.
    pub fn comes_to(&self, pipeline: Option<Arc<About>>) {
        self.standing().pipeline = pipeline;
    }

    /// Notes that the flow is decided, and not in the sample that its rule enriches.
    pub fn leave_out_of_sample(&self) {
        self.standing().is_left = true;
    }

    /// Notes that the flow cannot be decoded, for this reason.
    pub fn set_undecodable(&self, reason: &'static str) {
        self.standing().undecodable = Some(reason);
    }

    /// Whether what was said first is CQL of no version that is known, and no TLS either.
    pub fn is_unknown_protocol(&self) -> bool {
        let unknown = [Undecodable::NotCql, Undecodable::Version].map(Undecodable::as_str);
        let undecodable = self.standing().undecodable;
        undecodable.is_some_and(|reason| unknown.contains(&reason))
    }

    /// Notes the reason why the flow shares no connection with others, though its pipeline has it do so. `None`: it does.
    pub fn set_alone(&self, reason: Option<&'static str>) {
        self.standing().alone = reason;
    }

    /// Notes that the flow is relayed and not spliced, for this reason.
    pub fn set_relayed(&self, reason: impl Into<Cow<'static, str>>) {
        self.standing().relayed = Some(reason.into());
    }

    /// Notes the state of a leg that was to skip TCP.
    pub fn set_leg(&self, side: LegSide, now: LegNow) {
        let [client, database] = &mut self.standing().legs;
        *match side {
            LegSide::Client => client,
            LegSide::Database => database,
        } = Some(now);
    }

    /// Notes that TLS is spoken between this side and the agent.
    pub fn set_tls(&self, side: Side, seen: SeenBy) {
        let mut standing = self.standing();
        *standing.tls.get_or_insert_default().side(side) = Some(seen);
    }

    /// Whether the client's TLS ends in the agent.
    pub fn client_encrypts(&self) -> bool {
        let standing = self.standing();
        standing
            .tls
            .as_ref()
            .is_some_and(|tls| tls.client.is_some())
    }

    /// Returns the TLS that is seen on the flow, where TLS ends in the agent.
    pub fn tls(&self) -> Option<Seen> {
        self.standing().tls.as_deref().cloned()
    }

    /// Whether a mark's selector matches the flow. `cgroup` looks up the process's cgroup.
    pub fn is_meant_by(
        &self,
        selector: &Selector,
        cgroup: impl FnOnce() -> Option<PathBuf>,
    ) -> Holds {
        let standing = self.standing().clone();
        let known = Known {
            to: self.orig_dst,
            process: &self.process,
            rules: [&standing.first, &standing.rule],
            session: standing.session.as_deref(),
            undecided: standing.action.is_none(),
        };
        selector.holds(&known, cgroup)
    }

    pub(crate) fn standing(&self) -> parking_lot::MutexGuard<'_, Standing> {
        self.standing.lock()
    }

    /// Makes the agent take the flow back from the kernel, at once if the kernel has it.
    pub fn recall(&self) {
        self.recalled.store(true, Relaxed);
        self.commands.wake();
    }

    /// Whether the flow was recalled since the last call. The flow's task is woken when it is.
    pub fn is_recalled(&self) -> bool {
        self.recalled.load(Relaxed) && self.recalled.swap(false, Relaxed)
    }

    /// Gives the flow to another process as soon as the kernel carries it.
    pub fn give(&self) {
        self.given.store(true, Relaxed);
        self.commands.wake();
    }

    /// Takes [`Self::give`] back: no other process goes on with the flow.
    pub fn do_not_give(&self) {
        self.given.store(false, Relaxed);
    }

    /// Whether another process is to go on with the flow. The flow's task is woken when one is.
    pub fn is_given(&self) -> bool {
        self.given.load(Relaxed)
    }

    /// Has the flow's task hand the flow to the agent that has taken over, as soon as it may, or not any more.
    pub fn hand_over(&self, when: Handing) {
        self.handing.store(when as u8, Relaxed);
        self.commands.wake();
    }

    /// Returns when the flow is to be handed over. The flow's task is woken when that changes.
    pub fn handing(&self) -> Handing {
        match self.handing.load(Relaxed) {
            n if n == Handing::AtRest as u8 => Handing::AtRest,
            n if n == Handing::Held as u8 => Handing::Held,
            _ => Handing::No,
        }
    }

    /// Notes why the flow is not handed over, but stays with this process until it ends. Only the first call counts.
    pub fn stay(&self, why: Stays) {
        let _ = self.stays.set(why);
        // What was held goes on.
        self.hand_over(Handing::No);
    }

    /// Returns that reason.
    pub fn stays(&self) -> Option<Stays> {
        self.stays.get().copied()
    }

    /// Returns the flow's path.
    pub fn path(&self) -> Path {
        match self.path.load(Relaxed) {
            n if n == Path::Relay as u8 => Path::Relay,
            n if n == Path::Splice as u8 => Path::Splice,
            n if n == Path::Tap as u8 => Path::Tap,
            _ => Path::Enrich,
        }
    }

    /// Notes that the kernel carries the flow from now on. `not_by_sender`: the reason why not by
    /// its sender's engine, or empty.
    pub fn set_spliced(&self, not_by_sender: &'static str) {
        self.standing().not_by_sender = not_by_sender;
        self.travels(Path::Splice);
    }

    /// Notes the flow's path from now on.
    pub fn travels(&self, path: Path) {
        self.path.store(path as u8, Relaxed);
    }
}
