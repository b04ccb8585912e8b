//! Which flows share which connections. A pool is there for as long as one of its flows, and what it needs to begin a
//! connection, a password among it, no longer.

use std::{
    collections::HashMap,
    fmt, io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use cql_edit::{Carrier, Ticket, transforms::Prepared};
use dataplane::backends::Probe;
use policy::RuleName;
use tokio::runtime::Handle;

use super::super::register::{Dials, Register};
use super::{
    connection,
    identity::Identity,
    leg::{Leg, Out, Standing},
    metrics::{Became, Counters, FoldMetrics},
    room::Room,
    settings::Checked,
};

/// Identities of a rule at the same time: with a connection each, less than an application's own.
const MAX_POOLS: usize = 256;

/// A flow has to have asked so much by its own connection before another one is begun for it: one that asks a thing or
/// two and ends would cost the database a second log-in.
const MIN_ASKED: usize = 8;

/// Between two attempts to begin a connection: the first pause, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// All of an agent, and what they need of it.
#[derive(Debug)]
pub struct Folds {
    open: Register<Shared>,
    metrics: FoldMetrics,
    room: Arc<Room>,
}

/// What the flows of a rule have in common.
pub(super) struct Shared {
    pub(super) rule: RuleName,
    pub(super) settings: Checked,
    pub(super) counters: Counters,
    pub(super) dials: Dials,
    pub(super) room: Arc<Room>,
    /// Statements: whether one is a read, if it is one that can be folded.
    pub(super) statements: Prepared<Option<bool>>,
    pools: Mutex<HashMap<Arc<Identity>, Weak<Pool>>>,
}

/// Connections that flows of one identity share.
pub(super) struct Pool {
    pub(super) identity: Arc<Identity>,
    shared: Arc<Shared>,
    legs: Mutex<Legs>,
}

struct Legs {
    all: Vec<Arc<Leg>>,
    /// None is begun before.
    not_before: Option<Instant>,
    pause: Duration,
}

/// A flow in a pool.
pub(super) struct Member {
    pub(super) pool: Arc<Pool>,
    leg: Mutex<Option<Arc<Leg>>>,
    /// Requests for which there was no connection.
    missed: AtomicUsize,
    standing: Arc<Standing>,
}

impl Folds {
    /// None is open yet.
    pub fn new(metrics: FoldMetrics) -> Self {
        Self {
            open: Register::new(),
            metrics,
            room: Room::new(),
        }
    }

    /// From now on databases can be reached.
    pub fn dial_by(&self, probe: Probe) {
        self.open.dial_by(probe);
    }

    /// Gives each metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        self.metrics.declare_for_docs();
    }

    /// What the flows of this rule have in common.
    pub(super) fn open(&self, rule: &RuleName, settings: &Checked) -> io::Result<Arc<Shared>> {
        let is_same = |shared: &Shared| shared.rule == *rule && shared.settings == *settings;
        self.open.one(is_same, |dials| {
            Ok(Shared {
                rule: rule.clone(),
                settings: settings.clone(),
                counters: self.metrics.of(rule.as_str()),
                dials,
                room: self.room.clone(),
                statements: Prepared::default(),
                pools: Mutex::default(),
            })
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
    /// A place for a flow among those like it. `None`: there are as many kinds of them as may be.
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
                    legs: Mutex::new(Legs {
                        all: Vec::new(),
                        not_before: None,
                        pause: FIRST_PAUSE,
                    }),
                });
                // The identity of one that is just going goes with its place.
                pools.remove(&identity);
                pools.insert(identity, Arc::downgrade(&pool));
                pool
            }
        };
        Some(Member {
            pool,
            leg: Mutex::default(),
            missed: AtomicUsize::new(0),
            standing: Arc::default(),
        })
    }

    fn pools(&self) -> MutexGuard<'_, HashMap<Arc<Identity>, Weak<Pool>>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
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
        let legs = self.legs.get_mut().unwrap_or_else(PoisonError::into_inner);
        for leg in &legs.all {
            leg.is_unused();
        }
        let mut pools = self.shared.pools();
        // Another may have taken its place.
        if let Some(found) = pools.get(&self.identity)
            && found.strong_count() == 0
        {
            pools.remove(&self.identity);
        }
    }
}

impl Pool {
    /// One of its connections, which may just begin; on the flow's own thread if there is one. As long as there are
    /// fewer than there may be, nobody has one who may not begin another: there would never be more than the first.
    fn leg(&self, may_begin: bool) -> Option<Arc<Leg>> {
        let here = thread::current().id();
        let mut legs = self.legs.lock().unwrap_or_else(PoisonError::into_inner);
        legs.forget_gone();
        if legs.all.len() < self.shared.settings.connections {
            if !may_begin {
                return None;
            }
            if let Some(leg) = legs.begin(&self.shared, &self.identity) {
                return Some(leg);
            }
        }
        let elsewhere_and_flows = |leg: &&Arc<Leg>| (leg.thread != here, Arc::strong_count(leg));
        legs.all.iter().min_by_key(elsewhere_and_flows).cloned()
    }
}

impl Legs {
    fn forget_gone(&mut self) {
        let Self {
            all,
            not_before,
            pause,
        } = self;
        all.retain(|leg| {
            if leg.is_gone() {
                if leg.was_open() {
                    *pause = FIRST_PAUSE;
                }
                *not_before = Some(Instant::now() + *pause);
                *pause = (*pause * 2).min(LONGEST_PAUSE);
            }
            !leg.is_gone()
        });
    }

    fn begin(&mut self, shared: &Arc<Shared>, identity: &Arc<Identity>) -> Option<Arc<Leg>> {
        if self.not_before.is_some_and(|time| Instant::now() < time) {
            return None;
        }
        // That of the flow's thread.
        let runtime = Handle::try_current().ok()?;
        let leg = Arc::new(Leg::new());
        runtime.spawn(connection::run(
            leg.clone(),
            shared.clone(),
            identity.clone(),
        ));
        self.all.push(leg.clone());
        Some(leg)
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut member = f.debug_struct("Member");
        member.field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl Member {
    /// Whether it can have a request asked now.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn may_ask(&self) -> Result<(), Became> {
        if self.standing.is_barred.load(Relaxed) {
            return Err(Became::Barred);
        }
        if self.standing.out.load(Relaxed) >= self.pool.shared.settings.share {
            return Err(Became::Share);
        }
        let mut leg = self.lock();
        if leg.as_ref().is_none_or(|leg| leg.is_gone()) {
            let missed = self.missed.fetch_add(1, Relaxed);
            *leg = self.pool.leg(missed >= MIN_ASKED);
        }
        let is_open = leg.as_ref().is_some_and(|leg| leg.is_open());
        if is_open { Ok(()) } else { Err(Became::Away) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Leg>>> {
        self.leg.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `number`: 1 if it is a read.
impl Carrier for Member {
    fn carry(&self, ticket: Ticket, frame: &[u8], number: u64) {
        let counters = &self.pool.shared.counters;
        let leg = self.lock();
        let asked = leg
            .as_ref()
            .map(|leg| leg.ask(ticket, frame, number == 1, Out::of(&self.standing)));
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

    use super::super::{FoldMetrics, Settings};
    use super::*;
    use crate::tls::{Handshakes, Towards};

    #[test]
    fn there_are_so_many_identities_and_no_more() {
        let registry = prometheus::Registry::new();
        let handshakes = Handshakes::register(&registry).unwrap();
        let metrics = FoldMetrics::register(&registry, &handshakes).unwrap();
        let settings = toml::from_str::<Settings>("").unwrap().checked().unwrap();
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
            shared.join(Identity::of((at, &Towards::Plain), None, &opening).unwrap())
        };
        let mut members: Vec<Member> = (1..=MAX_POOLS).map(|n| join(n).unwrap()).collect();
        assert!(join(MAX_POOLS + 1).is_none());
        assert!(join(MAX_POOLS).is_some(), "one that is there");
        members.pop();
        assert!(join(MAX_POOLS + 1).is_some(), "one has gone");
    }
}
