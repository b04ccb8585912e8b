//! The counters of `cache`.

use prometheus::{IntCounter, IntCounterVec, Registry};
use telemetry::counters_by;

/// Declares the labels of a metric.
macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident => $label:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum $name {
            $($(#[$each])* $variant),+
        }

        impl $name {
            const LABELS: &[&str] = &[$($label),+];
        }
    };
}

labels! {
    /// The outcome of a read of a chosen table.
    Read {
        /// The read was answered from the cache.
        Hit => "hit",
        /// There was no entry, or an old one.
        Miss => "miss",
        /// The entry is not one that was put there.
        Bad => "bad",
        /// Redis has not answered in time, or its connection has ended.
        Failed => "failed",
        /// Redis was known to be away, and not asked.
        Away => "away",
        /// The limit on reads that wait for Redis is reached, in all or in this flow.
        Busy => "busy",
    }
}

labels! {
    /// The reason why a read of a chosen table bypasses the cache.
    Bypass {
        /// The statement is not understood.
        Statement => "statement",
        /// The statement calls a function whose result may differ each time.
        Function => "function",
        /// The keyspace of the read is not known.
        Keyspace => "keyspace",
        /// The user is not known, though somebody has logged in.
        User => "user",
        /// The request asks for a further page.
        Page => "page",
        /// The request reads at a serial consistency level.
        Serial => "serial",
        /// Others are out on the request's stream: which response is its own cannot be told.
        Stream => "stream",
        /// The request is to be traced.
        Traced => "traced",
        /// The request sets the current time.
        Now => "now",
    }
}

labels! {
    /// The outcome of keeping an answer that was not in the cache.
    Store {
        /// Redis has it.
        Stored => "stored",
        /// Redis refused the answer, or its connection has ended.
        Failed => "failed",
        /// The answer is longer than `max_bytes`.
        TooLarge => "too_large",
        /// The answer is an error, one of several pages, has a warning, or has no rows.
        Unfit => "unfit",
        /// The limit on bytes on their way to Redis is reached.
        Full => "full",
    }
}

labels! {
    /// The reason why a connection with Redis has failed.
    Cause {
        /// No connection could be made.
        Connect => "connect",
        /// Redis has not answered in time.
        Late => "late",
        /// Redis has closed the connection, or the connection broke.
        Lost => "lost",
        /// Redis does not let the agent log in, or write generations.
        Refused => "refused",
        /// A reply does not fit its command.
        Protocol => "protocol",
    }
}

impl Cause {
    pub(super) fn as_str(self) -> &'static str {
        Self::LABELS.get(self as usize).copied().unwrap_or_default()
    }
}

/// The metrics of `cache`.
#[derive(Clone, Debug)]
pub struct CacheMetrics {
    reads: IntCounterVec,
    bypassed: IntCounterVec,
    stores: IntCounterVec,
    invalidations: IntCounterVec,
    failures: IntCounterVec,
}

/// The counters of one rule, each looked up once.
#[derive(Debug)]
pub(super) struct Counters {
    reads: Vec<IntCounter>,
    bypassed: Vec<IntCounter>,
    stores: Vec<IntCounter>,
    pub(super) invalidations: IntCounter,
    failures: Vec<IntCounter>,
}

impl CacheMetrics {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counters = |name, help, labels: &[&str]| counters_by(registry, name, help, labels);
        Ok(Self {
            reads: counters(
                "underpass_cache_reads_total",
                "Reads that the cache was to be asked for, by rule and what became of them: `hit`, `miss`, `bad` (what was \
                 there is not what was put there), `failed` (Redis was late, or broke), `away` (it was known to be), `busy`.",
                &["rule", "outcome"],
            )?,
            bypassed: counters(
                "underpass_cache_bypassed_total",
                "Reads of chosen tables that the cache was not asked for, by rule and reason: `statement` (not understood), \
                 `function`, `keyspace`, `user` (not known), `page` (a further one), `serial`, `stream` (used again while a request was out on it), \
                 `traced`, `now`.",
                &["rule", "reason"],
            )?,
            stores: counters(
                "underpass_cache_stores_total",
                "Answers that were not in the cache, by rule and what became of them: `stored`, `failed`, `too_large`, \
                 `unfit` (an error, not all pages, a warning), `full` (too much on its way).",
                &["rule", "outcome"],
            )?,
            invalidations: counters(
                "underpass_cache_invalidations_total",
                "Times that a table's answers became old in Redis, by rule. Writes at the same time share one.",
                &["rule"],
            )?,
            failures: counters(
                "underpass_cache_failures_total",
                "Connections with Redis that failed, by rule and cause: `connect`, `late`, `lost`, `refused`, `protocol`.",
                &["rule", "cause"],
            )?,
        })
    }

    pub(super) fn of(&self, rule: &str) -> Counters {
        let each = |counters: &IntCounterVec, labels: &[&str]| {
            let labels = labels.iter();
            labels
                .map(|label| counters.with_label_values(&[rule, label]))
                .collect()
        };
        Counters {
            reads: each(&self.reads, Read::LABELS),
            bypassed: each(&self.bypassed, Bypass::LABELS),
            stores: each(&self.stores, Store::LABELS),
            invalidations: self.invalidations.with_label_values(&[rule]),
            failures: each(&self.failures, Cause::LABELS),
        }
    }
}

impl Counters {
    pub(super) fn read(&self, what: Read) {
        count(&self.reads, what as usize);
    }

    pub(super) fn bypassed(&self, why: Bypass) {
        count(&self.bypassed, why as usize);
    }

    pub(super) fn store(&self, what: Store) {
        count(&self.stores, what as usize);
    }

    pub(super) fn failure(&self, why: Cause) {
        count(&self.failures, why as usize);
    }
}

fn count(of: &[IntCounter], which: usize) {
    if let Some(counter) = of.get(which) {
        counter.inc();
    }
}
