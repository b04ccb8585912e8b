//! What became of what was to be cached.

use prometheus::{IntCounter, IntCounterVec, Registry};

use crate::metrics::counters_by;

/// Declares what one label of a metric may be.
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
    /// What became of a read of a chosen table.
    Read {
        /// It was answered from the cache.
        Hit => "hit",
        /// There was nothing, or something old.
        Miss => "miss",
        /// What was there is nothing that was put there.
        Bad => "bad",
        /// Redis has not answered in time, or its connection has ended.
        Failed => "failed",
        /// Redis was known to be away, and not asked.
        Away => "away",
        /// As many wait for Redis as may, or as may in this flow.
        Busy => "busy",
    }
}

labels! {
    /// Why a read of a chosen table is not for the cache.
    Bypass {
        /// It is not understood.
        Statement => "statement",
        /// It calls a function that may answer otherwise each time.
        Function => "function",
        /// In which keyspace it reads is not known.
        Keyspace => "keyspace",
        /// Who asks is not known, but somebody has logged in.
        User => "user",
        /// It asks for a further page.
        Page => "page",
        /// It reads at a serial level.
        Serial => "serial",
        /// It is to be traced.
        Traced => "traced",
        /// It says what time it is.
        Now => "now",
    }
}

labels! {
    /// What became of an answer that was not in the cache.
    Store {
        /// Redis has it.
        Stored => "stored",
        /// Redis would not have it, or its connection has ended.
        Failed => "failed",
        /// It is longer than `max_bytes`.
        TooLarge => "too_large",
        /// It is an error, one of several pages, with a warning, or no rows.
        Unfit => "unfit",
        /// As much is on its way to Redis as may be.
        Full => "full",
    }
}

labels! {
    /// Why a connection with Redis has failed.
    Cause {
        /// There is none to be had.
        Connect => "connect",
        /// Redis has not answered in time.
        Late => "late",
        /// It has closed it, or it broke.
        Lost => "lost",
        /// It does not let the agent log in, or write generations.
        Refused => "refused",
        /// What it says is not what was asked for.
        Protocol => "protocol",
    }
}

impl Cause {
    pub(super) fn as_str(self) -> &'static str {
        Self::LABELS.get(self as usize).copied().unwrap_or_default()
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct CacheMetrics {
    reads: IntCounterVec,
    bypassed: IntCounterVec,
    stores: IntCounterVec,
    invalidations: IntCounterVec,
    failures: IntCounterVec,
}

/// Those of one rule, each looked up once.
#[derive(Debug)]
pub(super) struct Counters {
    reads: Vec<IntCounter>,
    bypassed: Vec<IntCounter>,
    stores: Vec<IntCounter>,
    pub(super) invalidations: IntCounter,
    failures: Vec<IntCounter>,
}

impl CacheMetrics {
    /// Declares and registers them.
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
                 `function`, `keyspace`, `user` (not known), `page` (a further one), `serial`, `traced`, `now`.",
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
