//! The store: a Redis as the steps of a rule see it. Jobs are handed over to a thread that talks to
//! Redis.
//!
//! Handing over never waits: every job has a permit, so that the queue needs no bound of its own.

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU32,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    time::Instant,
};

use cql_edit::{Caller, Resolution, Ticket};
use dataplane::backends::Probe;
use policy::RuleName;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};

use super::{
    connection,
    known::{Known, Reading},
    metrics::{CacheMetrics, Counters, Read, Store as Stored},
    settings::{Checked, Login},
    statements::Chosen,
};
use crate::register::{self, Dials, Register};

/// The most reads that wait for Redis at the same time. Each may come back with `max_bytes`.
const MAX_ASKED: usize = 256;

/// The most bytes of answers on their way to Redis.
const MAX_STORING_BYTES: usize = 16 << 20;

/// The open stores, and what they need of the agent.
#[derive(Debug)]
pub struct Caches {
    open: Register<Store>,
    metrics: CacheMetrics,
}

/// A store: one rule's Redis.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) shared: Arc<Shared>,
    jobs: mpsc::UnboundedSender<Job>,
}

/// The state that a store's thread shares with flows.
pub(super) struct Shared {
    pub(super) rule: RuleName,
    pub(super) settings: Checked,
    pub(super) login: Option<Login>,
    pub(super) counters: Counters,
    pub(super) known: Known,
    pub(super) dials: Dials,
    /// Whether Redis answers.
    pub(super) is_up: AtomicBool,
    /// The tables of which a write was seen that Redis has not been told of.
    dirty: AtomicU32,
    pub(super) dirtied: Notify,
    asked: Arc<Semaphore>,
    storing: Arc<Semaphore>,
}

/// A job for Redis.
#[derive(Debug)]
pub(super) enum Job {
    Find(Find),
    Keep(Keep),
}

/// A lookup, for whose result a read waits.
#[derive(Debug)]
pub(super) struct Find {
    pub(super) reading: Arc<Reading>,
    pub(super) since: Instant,
    ticket: Ticket,
    _permit: OwnedSemaphorePermit,
}

/// An answer to be kept.
#[derive(Debug)]
pub(super) struct Keep {
    pub(super) reading: Arc<Reading>,
    pub(super) sealed: Vec<u8>,
    pub(super) since: Instant,
    _permit: OwnedSemaphorePermit,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shared = f.debug_struct("Shared");
        shared.field("rule", &self.rule).finish_non_exhaustive()
    }
}

impl Caches {
    /// Makes the register; no store is open yet.
    pub fn new(metrics: CacheMetrics) -> Self {
        Self {
            open: Register::new(),
            metrics,
        }
    }

    /// Gives the stores the probe with which they connect from now on.
    pub fn dial_by(&self, probe: Probe) {
        self.open.dial_by(probe);
    }

    /// Gives each metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        self.metrics.of("rule");
    }

    /// Opens this rule's store, or returns the one that is open.
    ///
    /// # Errors
    /// There can be no more threads, or descriptors.
    pub(super) fn open(
        &self,
        rule: &RuleName,
        settings: &Checked,
        login: Option<Login>,
    ) -> io::Result<Arc<Store>> {
        let is_same = |store: &Store| {
            let shared = &store.shared;
            shared.rule == *rule && shared.settings == *settings && shared.login == login
        };
        self.open.one(is_same, |dials| {
            let counters = self.metrics.of(rule.as_str());
            Store::start(Shared {
                login: login.clone(),
                dials,
                ..Shared::new(rule, settings, counters)
            })
        })
    }
}

impl Store {
    fn start(shared: Shared) -> io::Result<Self> {
        let shared = Arc::new(shared);
        let of_thread = shared.clone();
        let jobs = register::start("cache", move |taken| async move {
            connection::run(&of_thread, taken).await;
        })?;
        Ok(Self { shared, jobs })
    }

    /// Makes a store whose jobs somebody else takes.
    #[cfg(feature = "by-hand")]
    pub(super) fn of(shared: Arc<Shared>) -> (Self, mpsc::UnboundedReceiver<Job>) {
        let (jobs, taken) = mpsc::unbounded_channel();
        (Self { shared, jobs }, taken)
    }

    /// Looks an answer up, if Redis is up and not too much waits. `park`: takes a slot for the read
    /// that waits.
    pub(super) fn find(&self, reading: &Arc<Reading>, park: impl FnOnce() -> Option<Ticket>) {
        let shared = &self.shared;
        if !shared.is_up.load(Acquire) {
            return shared.counters.read(Read::Away);
        }
        let permit = shared.asked.clone().try_acquire_owned().ok();
        let waits = permit.and_then(|permit| Some((permit, park()?)));
        let Some((permit, ticket)) = waits else {
            return shared.counters.read(Read::Busy);
        };
        let job = Job::Find(Find {
            reading: reading.clone(),
            since: Instant::now(),
            ticket,
            _permit: permit,
        });
        self.send(job);
    }

    /// Keeps an answer. `sealed`: called once there is room for it.
    pub(super) fn keep(
        &self,
        reading: Arc<Reading>,
        bytes: usize,
        sealed: impl FnOnce() -> Vec<u8>,
    ) {
        let shared = &self.shared;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let permit = shared.storing.clone().try_acquire_many_owned(bytes).ok();
        let Some(permit) = permit.filter(|_| shared.is_up.load(Acquire)) else {
            return shared.counters.store(Stored::Full);
        };
        let job = Job::Keep(Keep {
            reading,
            sealed: sealed(),
            since: Instant::now(),
            _permit: permit,
        });
        self.send(job);
    }

    /// Makes answers that were read of these tables before old, for all reads that begin from now
    /// on.
    pub(super) fn invalidate(&self, tables: Chosen) {
        if !tables.is_empty() {
            self.shared.mark_dirty(tables);
            self.shared.dirtied.notify_one();
        }
    }

    fn send(&self, job: Job) {
        if let Err(mpsc::error::SendError(job)) = self.jobs.send(job) {
            job.fails(&self.shared);
        }
    }
}

impl Shared {
    /// Makes the state of a store that logs in nowhere, and has nothing to connect by.
    pub(super) fn new(rule: &RuleName, settings: &Checked, counters: Counters) -> Self {
        Self {
            rule: rule.clone(),
            settings: settings.clone(),
            login: None,
            counters,
            known: Known::default(),
            dials: Dials::default(),
            is_up: AtomicBool::new(false),
            // Nobody has seen the writes before now.
            dirty: AtomicU32::new(settings.tables.all().0),
            dirtied: Notify::new(),
            asked: Arc::new(Semaphore::new(MAX_ASKED)),
            storing: Arc::new(Semaphore::new(MAX_STORING_BYTES)),
        }
    }

    /// Returns the prefix of every key: the settings' or the rule's.
    pub(super) fn prefix(&self) -> String {
        match &self.settings.prefix {
            Some(prefix) => prefix.clone(),
            None => format!("underpass:{}", self.rule),
        }
    }

    /// Names the database that answers a caller. A prefix in the settings means that one database
    /// is behind all addresses.
    pub(super) fn database(&self, caller: &Caller) -> String {
        match (&self.settings.prefix, caller.dialled) {
            (None, Some(dialled)) => dialled.to_string(),
            (None, None) | (Some(_), _) => String::new(),
        }
    }

    /// Marks these tables: Redis has to be told of them before it is asked again.
    pub(super) fn mark_dirty(&self, tables: Chosen) {
        self.dirty.fetch_or(tables.0, Release);
    }

    /// Takes the tables that Redis has to be told of now.
    pub(super) fn take_dirty(&self) -> Chosen {
        Chosen(self.dirty.swap(0, AcqRel))
    }
}

impl Find {
    /// Passes the read on, which was not answered from the cache.
    pub(super) fn passes(self, counted: Read, shared: &Shared) {
        shared.counters.read(counted);
        self.ticket.resolve(Resolution::Pass);
    }

    pub(super) fn answers(self, body: Vec<u8>, shared: &Shared) {
        shared.counters.read(Read::Hit);
        self.ticket.resolve(Resolution::Answer(body));
    }
}

impl Job {
    pub(super) fn since(&self) -> Instant {
        match self {
            Self::Find(find) => find.since,
            Self::Keep(keep) => keep.since,
        }
    }

    /// Fails the job: Redis does not do it.
    pub(super) fn fails(self, shared: &Shared) {
        match self {
            Self::Find(find) => find.passes(Read::Failed, shared),
            Self::Keep(_) => shared.counters.store(Stored::Failed),
        }
    }
}
