//! The pools: flows that share connections. A pool lives as long as one of its flows, and so does
//! what it needs to begin a connection, a password among it.

use std::{
    collections::HashMap,
    fmt, io,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use cql_edit::{Carrier, Ticket, transforms::Prepared};
use dataplane::{Legs, backends::Probe};
use parking_lot::{Mutex, MutexGuard};
use policy::RuleName;
use tokio::runtime::Handle;

use super::{
    begin::Connects,
    identity::Identity,
    metrics::{Became, Counters, FoldMetrics},
    room::Room,
    settings::Checked,
    shared_connection::{Out, SharedConnection, Standing},
    task,
};
use crate::register::Register;

/// The most identities of a rule at the same time. With a connection each, that is fewer than an
/// application's own.
const MAX_POOLS: usize = 256;

/// The requests that a flow has to ask by its own connection before another connection is begun for
/// it: a flow that asks once or twice and ends would cost the database a second log-in.
const MIN_ASKED: usize = 8;

/// The first and the longest pause between two attempts to begin a connection.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The pools of all rules, and what they need of the agent.
#[derive(Debug)]
pub struct Folds {
    open: Register<Shared>,
    legs: Arc<OnceLock<Legs>>,
    metrics: FoldMetrics,
    room: Arc<Room>,
}

/// The state that the flows of a rule share.
pub(super) struct Shared {
    pub(super) rule: RuleName,
    pub(super) settings: Checked,
    pub(super) counters: Counters,
    pub(super) connects: Connects,
    pub(super) room: Arc<Room>,
    /// The prepared statements: whether each is a read, or None if it cannot be folded.
    pub(super) statements: Prepared<Option<bool>>,
    pools: Mutex<HashMap<Arc<Identity>, Weak<Pool>>>,
    /// A bit for each outcome that has kept a whole flow alone.
    said: AtomicUsize,
}

/// The connections that flows of one identity share.
pub(super) struct Pool {
    pub(super) identity: Arc<Identity>,
    shared: Arc<Shared>,
    connections: Mutex<Connections>,
}

struct Connections {
    all: Vec<Arc<SharedConnection>>,
    /// The time before which no connection is begun.
    not_before: Option<Instant>,
    pause: Duration,
}

/// A flow's membership in a pool.
pub(super) struct Member {
    pub(super) pool: Arc<Pool>,
    connection: Mutex<Option<Arc<SharedConnection>>>,
    /// The number of requests for which there was no connection.
    missed: AtomicUsize,
    standing: Arc<Standing>,
}

impl Folds {
    /// Makes the register; no rule is open yet.
    pub fn new(metrics: FoldMetrics) -> Self {
        Self {
            open: Register::new(),
            legs: Arc::default(),
            metrics,
            room: Room::new(),
        }
    }

    /// Gives the probe with which databases are reached from now on, and the way in which connections to them skip TCP.
    pub fn dial_by(&self, probe: Probe, legs: Legs) {
        self.open.dial_by(probe);
        // An agent has one for its whole life.
        let _ = self.legs.set(legs);
    }

    /// Gives each metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        self.metrics.declare_for_docs();
    }

    /// Opens the state that the flows of this rule share, or returns the one that is open.
    pub(super) fn open(&self, rule: &RuleName, settings: &Checked) -> io::Result<Arc<Shared>> {
        let is_same = |shared: &Shared| shared.rule == *rule && shared.settings == *settings;
        self.open.one(is_same, |dials| {
            let counters = self.metrics.of(rule.as_str());
            let connects = Connects::ByProbe(dials, self.legs.clone());
            let room = self.room.clone();
            Ok(Shared::new(rule, settings, counters, connects, room))
        })
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shared = f.debug_struct("Shared");
        shared.field("rule", &self.rule).finish_non_exhaustive()
    }
}

impl Shared {
    /// Makes the state of a rule that has no flow yet.
    pub(super) fn new(
        rule: &RuleName,
        settings: &Checked,
        counters: Counters,
        connects: Connects,
        room: Arc<Room>,
    ) -> Self {
        Self {
            rule: rule.clone(),
            settings: settings.clone(),
            counters,
            connects,
            room,
            statements: Prepared::default(),
            pools: Mutex::default(),
            said: AtomicUsize::new(0),
        }
    }

    /// Whether this is the first time that a flow of the rule stays alone for this reason.
    pub(super) fn is_first(&self, why: Became) -> bool {
        let bit = 1 << why as usize;
        self.said.fetch_or(bit, Relaxed) & bit == 0
    }

    /// Adds a flow to the pool of its identity. `None`: there are as many pools as may be.
    pub(super) fn join(self: &Arc<Self>, identity: Identity) -> Option<Member> {
        let mut pools = self.pools();
        let found = pools.get(&identity).and_then(Weak::upgrade);
        let pool = match found {
            Some(pool) => pool,
            None if pools.len() >= MAX_POOLS => return None,
            None => {
                let identity = Arc::new(identity);
                let pool = Arc::new(Pool {
                    identity: identity.clone(),
                    shared: self.clone(),
                    connections: Mutex::new(Connections {
                        all: Vec::new(),
                        not_before: None,
                        pause: FIRST_PAUSE,
                    }),
                });
                // The key of a pool that is just being dropped is replaced together with its entry.
                pools.remove(&identity);
                pools.insert(identity, Arc::downgrade(&pool));
                pool
            }
        };
        Some(Member {
            pool,
            connection: Mutex::default(),
            missed: AtomicUsize::new(0),
            standing: Arc::default(),
        })
    }

    fn pools(&self) -> MutexGuard<'_, HashMap<Arc<Identity>, Weak<Pool>>> {
        self.pools.lock()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pool = f.debug_struct("Pool");
        pool.field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let connections = self.connections.get_mut();
        for connection in &connections.all {
            connection.mark_unused();
        }
        let mut pools = self.shared.pools();
        // Another pool may have taken this one's entry.
        if let Some(found) = pools.get(&self.identity)
            && found.strong_count() == 0
        {
            pools.remove(&self.identity);
        }
    }
}

impl Pool {
    /// Chooses a connection, which may be just beginning: one on the flow's own thread if there is
    /// one. While there are fewer connections than there may be, a flow that may not begin another
    /// gets none; otherwise there would never be more than the first.
    fn connection(&self, may_begin: bool) -> Option<Arc<SharedConnection>> {
        let here = thread::current().id();
        let mut connections = self.connections.lock();
        connections.forget_gone();
        if connections.all.len() < self.shared.settings.connections {
            if !may_begin {
                return None;
            }
            if let Some(connection) = connections.begin(&self.shared, &self.identity) {
                return Some(connection);
            }
        }
        let elsewhere_and_flows = |connection: &&Arc<SharedConnection>| {
            (connection.thread != here, Arc::strong_count(connection))
        };
        connections
            .all
            .iter()
            .min_by_key(elsewhere_and_flows)
            .cloned()
    }
}

impl Connections {
    fn forget_gone(&mut self) {
        let Self {
            all,
            not_before,
            pause,
        } = self;
        all.retain(|connection| {
            if connection.is_gone() {
                if connection.was_open() {
                    *pause = FIRST_PAUSE;
                }
                *not_before = Some(Instant::now() + *pause);
                *pause = (*pause * 2).min(LONGEST_PAUSE);
            }
            !connection.is_gone()
        });
    }

    fn begin(
        &mut self,
        shared: &Arc<Shared>,
        identity: &Arc<Identity>,
    ) -> Option<Arc<SharedConnection>> {
        if self.not_before.is_some_and(|time| Instant::now() < time) {
            return None;
        }
        // The runtime of the flow's thread.
        let runtime = Handle::try_current().ok()?;
        let connection = Arc::new(SharedConnection::new());
        runtime.spawn(task::run(
            connection.clone(),
            shared.clone(),
            identity.clone(),
        ));
        self.all.push(connection.clone());
        Some(connection)
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut member = f.debug_struct("Member");
        member.field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl Member {
    /// Checks whether the flow may send a request on a shared connection now.
    ///
    /// # Errors
    /// The reason why it may not.
    pub(super) fn may_ask(&self) -> Result<(), Became> {
        if self.standing.is_barred.load(Relaxed) {
            return Err(Became::Barred);
        }
        if self.standing.out.load(Relaxed) >= self.pool.shared.settings.share {
            return Err(Became::Share);
        }
        let mut connection = self.lock();
        if connection
            .as_ref()
            .is_none_or(|connection| connection.is_gone())
        {
            let missed = self.missed.fetch_add(1, Relaxed);
            *connection = self.pool.connection(missed >= MIN_ASKED);
        }
        let is_open = connection
            .as_ref()
            .is_some_and(|connection| connection.is_open());
        if is_open { Ok(()) } else { Err(Became::Away) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<SharedConnection>>> {
        self.connection.lock()
    }
}

/// Sends requests of the flow on its shared connection. `number`: 1 for a read.
impl Carrier for Member {
    fn carry(&self, ticket: Ticket, frame: &[u8], number: u64) {
        let counters = &self.pool.shared.counters;
        let connection = self.lock();
        let asked = connection
            .as_ref()
            .map(|connection| connection.ask(ticket, frame, number == 1, Out::of(&self.standing)));
        counters.became(match asked {
            Some(true) => Became::Folded,
            Some(false) | None => Became::Full,
        });
    }
}

#[cfg(test)]
mod tests {
    use cql::Compression;
    use cql_edit::Opening;
    use telemetry::Metrics;
    use tls::Towards;

    use super::*;
    use crate::fold::{FoldMetrics, FoldSettings};

    #[test]
    fn there_are_so_many_identities_and_no_more() {
        let registry = prometheus::Registry::new();
        let agents = Metrics::register(&registry, &[]).unwrap();
        let metrics = FoldMetrics::register(&registry, &agents).unwrap();
        let settings = toml::from_str::<FoldSettings>("")
            .unwrap()
            .checked()
            .unwrap();
        let shared = Folds::new(metrics).open(&RuleName::new("r"), &settings);
        let shared = shared.unwrap();
        let opening = Arc::new(Opening {
            version: 4,
            compression: Compression::None,
            startup: vec![0; 2].into(),
            token: None,
        });
        let join = |port: usize| {
            let at = ([127, 0, 0, 1], port as u16).into();
            shared.join(Identity::of((at, &Towards::Plain), false, None, &opening).unwrap())
        };
        let mut members: Vec<Member> = (1..=MAX_POOLS).map(|n| join(n).unwrap()).collect();
        assert!(join(MAX_POOLS + 1).is_none());
        assert!(join(MAX_POOLS).is_some(), "one that is there");
        members.pop();
        assert!(join(MAX_POOLS + 1).is_some(), "one has gone");
    }
}
