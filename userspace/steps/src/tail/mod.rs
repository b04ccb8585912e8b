//! Watchers: who looks at statements as they pass (`underpass tail`), and what each is told.
//!
//! - `seen.rs`: a statement that has passed, and the line that is made of it.
//!
//! **Invariant**: a watcher that does not read slows no flow. Its queue is bounded; what has no room is dropped and
//! counted, and the watcher is told how much it was.
//!
//! **Invariant**: while nobody watches, a flow pays one relaxed load for each chunk that is read.

mod seen;

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicU8, AtomicU64,
            Ordering::{AcqRel, Relaxed},
        },
    },
    task::{Context, Poll},
    time::Duration,
};

use cql::{Completed, Details, StatementKind};
use parking_lot::RwLock;
use policy::{Filter, FilterKey, Glob};
use prometheus::{IntCounter, IntGauge, Registry};
pub use seen::Seen;
use telemetry::counter;
use tokio::sync::mpsc;

use super::{What, Whose, asks_for_data};

/// Watchers at the same time. Each holds its conditions against every statement.
pub const MAX_WATCHERS: usize = 8;

/// Statements that wait for one watcher: what a busy host asks in some hundredths of a second. They take 400 bytes each,
/// and a few hundred more where values are shown.
pub const MAX_WAITING: usize = 1024;

/// The keys that a watcher's filter can name.
pub const TAIL_KEYS: [FilterKey; 13] = [
    FilterKey::Process,
    FilterKey::Pid,
    FilterKey::Uid,
    FilterKey::Client,
    FilterKey::To,
    FilterKey::Rule,
    FilterKey::User,
    FilterKey::Keyspace,
    FilterKey::Table,
    FilterKey::Kind,
    FilterKey::Path,
    FilterKey::Driver,
    FilterKey::Application,
];

/// The statements that a watcher wants to see.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Conditions with [`TAIL_KEYS`].
    pub filter: Filter,
    /// Only what takes longer.
    pub slower_than: Duration,
    /// Only what is answered by an error, refused or not answered.
    pub errors: bool,
    /// A pattern for the text without values, in small letters.
    pub statement: Option<Glob>,
    /// With bound values, and the literals in texts.
    pub values: bool,
}

/// Whether anybody watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Watched {
    /// Nobody does.
    #[default]
    No = 0,
    /// Somebody does.
    Plain = 1,
    /// Somebody does, and wants values.
    Values = 2,
}

/// Everybody who watches.
#[derive(Debug)]
pub struct Tails {
    /// A [`Watched`].
    watched: AtomicU8,
    watchers: RwLock<Vec<Arc<Watcher>>>,
    metrics: TailMetrics,
}

#[derive(Debug)]
struct TailMetrics {
    watchers: IntGauge,
    dropped: IntCounter,
    refused: IntCounter,
}

#[derive(Debug)]
struct Watcher {
    wanted: Wanted,
    queue: mpsc::Sender<Arc<Seen>>,
    /// Statements that were dropped since the watcher was told of any.
    dropped: AtomicU64,
}

/// A watcher's end, which stops watching when it is dropped.
#[derive(Debug)]
pub struct Watching {
    tails: Arc<Tails>,
    watcher: Arc<Watcher>,
    queue: mpsc::Receiver<Arc<Seen>>,
}

/// The refusal of a further watcher.
#[derive(Debug, thiserror::Error)]
#[error("{MAX_WATCHERS} others watch already: end one of them")]
pub struct TooManyWatchers;

impl Tails {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let watchers = IntGauge::new(
            "underpass_tail_watchers",
            "Running `underpass tail` and others who read `/tail`.",
        )?;
        registry.register(Box::new(watchers.clone()))?;
        Ok(Self {
            watched: AtomicU8::default(),
            watchers: RwLock::default(),
            metrics: TailMetrics {
                watchers,
                dropped: counter(
                    registry,
                    "underpass_tail_dropped_total",
                    "Statements that a watcher did not read fast enough to be told of.",
                )?,
                refused: counter(
                    registry,
                    "underpass_tail_refused_total",
                    "Watchers that were refused because there are 8 already.",
                )?,
            },
        })
    }

    /// Whether anybody watches, and wants values.
    pub fn watched(&self) -> Watched {
        match self.watched.load(Relaxed) {
            0 => Watched::No,
            1 => Watched::Plain,
            _ => Watched::Values,
        }
    }

    /// Begins to watch.
    ///
    /// # Errors
    /// There are [`MAX_WATCHERS`] already.
    pub fn watch(self: &Arc<Self>, wanted: Wanted) -> Result<Watching, TooManyWatchers> {
        let (sender, queue) = mpsc::channel(MAX_WAITING);
        let watcher = Arc::new(Watcher {
            wanted,
            queue: sender,
            dropped: AtomicU64::new(0),
        });
        let mut watchers = self.watchers.write();
        if watchers.len() >= MAX_WATCHERS {
            self.metrics.refused.inc();
            return Err(TooManyWatchers);
        }
        watchers.push(watcher.clone());
        self.note(&watchers);
        drop(watchers);
        Ok(Watching {
            tails: self.clone(),
            watcher,
            queue,
        })
    }

    fn note(&self, watchers: &[Arc<Watcher>]) {
        let of_each = watchers.iter().map(|watcher| match watcher.wanted.values {
            false => Watched::Plain,
            true => Watched::Values,
        });
        let watched = of_each.max().unwrap_or_default();
        self.watched.store(watched as u8, Relaxed);
        self.metrics.watchers.set(watchers.len() as i64);
    }

    /// Tells everybody who wants to know of a request and what became of it. Never waits.
    pub(crate) fn tell(
        &self,
        whose: &Arc<Whose>,
        what: What,
        completed: &Completed<'_>,
        details: &Details,
    ) {
        let kind = completed.statement.kind;
        if !asks_for_data(kind) && kind != StatementKind::Prepare {
            return;
        }
        let mut seen = None;
        for watcher in self.watchers.read().iter() {
            if !watcher.wants(whose, what, completed, details) {
                continue;
            }
            let seen = seen.get_or_insert_with(|| {
                let shows_values = self.watched() == Watched::Values;
                Arc::new(Seen::new(whose, what, completed, details, shows_values))
            });
            if watcher.queue.try_send(seen.clone()).is_err() {
                watcher.dropped.fetch_add(1, Relaxed);
                self.metrics.dropped.inc();
            }
        }
    }
}

impl Watcher {
    fn wants(
        &self,
        whose: &Whose,
        what: What,
        completed: &Completed<'_>,
        details: &Details,
    ) -> bool {
        let wanted = &self.wanted;
        let is_error = completed.error.is_some() || what != What::Answered;
        let fits = |glob: &Glob| {
            let fingerprint = details.asked.fingerprint.as_ref();
            fingerprint.is_some_and(|known| glob.holds(&known.text().to_lowercase()))
        };
        u128::from(completed.latency_ns) >= wanted.slower_than.as_nanos()
            && (is_error || !wanted.errors)
            && wanted.filter.takes(&seen::Passing { whose, completed })
            && wanted.statement.as_ref().is_none_or(fits)
    }
}

impl Watching {
    /// Whether the watcher wants values.
    pub fn shows_values(&self) -> bool {
        self.watcher.wanted.values
    }

    /// Returns the number of statements that were dropped since it was asked last.
    pub fn take_dropped(&self) -> u64 {
        self.watcher.dropped.swap(0, AcqRel)
    }

    /// Returns the next statement, once there is one.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Arc<Seen>>> {
        self.queue.poll_recv(cx)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut watchers = self.tails.watchers.write();
        watchers.retain(|watcher| !Arc::ptr_eq(watcher, &self.watcher));
        self.tails.note(&watchers);
    }
}
