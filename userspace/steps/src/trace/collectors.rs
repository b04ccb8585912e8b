//! The collectors that get spans, off the threads on which bytes move.
//!
//! There is one for each endpoint and service, however many rules name it, and it outlives a reload
//! that still names it. A flow's thread writes a record to its [ring](export::Export). The rings
//! are the only queue: a collector that takes nothing lets them fill up, and a record that does not
//! fit is counted.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use export::Export;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tls::{Dialling, Outward};

use super::{
    client::{Client, PROTOCOL},
    endpoint::Endpoint,
    exporting::Exporting,
    metrics::TraceMetrics,
};

/// The name of a collector's thread.
const NAME: &str = "trace";

/// The identity of a collector: its endpoint, the certificates, and the service.
type Key = (Endpoint, Option<Dialling>, String);

/// The open collectors.
#[derive(Debug)]
pub struct Collectors {
    open: Mutex<HashMap<Key, Weak<Collector>>>,
    metrics: TraceMetrics,
}

/// An open collector.
#[derive(Debug)]
pub(super) struct Collector {
    export: Export,
    shared: Arc<Shared>,
}

/// The state that a collector's thread shares with all others.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) endpoint: Endpoint,
    tls: Option<Arc<Outward>>,
    pub(super) service: String,
    pub(super) metrics: TraceMetrics,
    state: Mutex<State>,
    changes: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Set when nobody waits for the collector any more.
    ends: bool,
    /// The number of times that all earlier records had been sent, or given up.
    done: u64,
}

impl Collectors {
    /// Makes the register; no collector is open yet.
    pub fn new(metrics: TraceMetrics) -> Self {
        Self {
            open: Mutex::default(),
            metrics,
        }
    }

    /// Opens the collector at this endpoint, or returns the one that is open. The first span finds
    /// out whether the endpoint can be reached. A collector that is open gets the certificates that
    /// are in the files now.
    ///
    /// # Errors
    /// A file cannot be used; or there can be no more threads, or descriptors.
    pub(super) fn open(
        &self,
        endpoint: &Endpoint,
        tls: Option<&Dialling>,
        service: &str,
    ) -> Result<Arc<Collector>, String> {
        let cannot = |error| {
            format!(
                "cannot start a thread for {}: {error}",
                endpoint.authority()
            )
        };
        let outward = encrypted(endpoint, tls)?;
        let mut open = self.open.lock();
        open.retain(|_, collector| collector.strong_count() > 0);
        let key = (endpoint.clone(), tls.cloned(), service.to_owned());
        if let Some(collector) = open.get(&key).and_then(Weak::upgrade) {
            if let (Some(old), Some(new)) = (&collector.shared.tls, &outward) {
                old.renew(new);
            }
            return Ok(collector);
        }
        let outward = outward.map(Arc::new);
        let shared = Arc::new(Shared {
            endpoint: endpoint.clone(),
            tls: outward.clone(),
            service: service.to_owned(),
            metrics: self.metrics.clone(),
            state: Mutex::default(),
            changes: Condvar::new(),
        });
        let client = Client::new(endpoint.clone(), outward).map_err(cannot)?;
        let exporting = Exporting::new(shared.clone(), client);
        let collector = Arc::new(Collector {
            export: Export::start(NAME, exporting).map_err(cannot)?,
            shared,
        });
        open.insert(key, Arc::downgrade(&collector));
        Ok(collector)
    }

    /// Sends all spans before the agent ends, unless that takes longer than `patience` for one
    /// collector.
    pub fn finish(&self, patience: Duration) {
        let open = self.open.lock();
        for collector in open.values().filter_map(Weak::upgrade) {
            collector.finish(patience);
        }
    }
}

/// Loads the certificates, as they are in the files now. None: the endpoint is without TLS.
///
/// # Errors
/// Names the bad file and the error, in one line.
pub(super) fn encrypted(
    endpoint: &Endpoint,
    tls: Option<&Dialling>,
) -> Result<Option<Outward>, String> {
    tls.map(|tls| Outward::load(tls, endpoint.host(), Some(PROTOCOL)))
        .transpose()
}

impl Collector {
    /// Hands a record over, or counts it as dropped. Never waits.
    pub(super) fn push(&self, record: &[u8]) {
        if let Err(why) = self.export.push(record) {
            self.shared.metrics.dropped(why);
        }
    }

    /// Counts a request with a malformed `traceparent`.
    pub(super) fn malformed(&self) {
        self.shared.metrics.malformed.inc();
    }

    /// Counts a request with a malformed `tracestate`, whose span goes without one.
    pub(super) fn malformed_state(&self) {
        self.shared.metrics.malformed_states.inc();
    }

    fn finish(&self, patience: Duration) {
        self.shared.end();
        // The first call may find the thread in work that it began before.
        for _ in 0..2 {
            let mut state = self.shared.state();
            let before = state.done;
            self.export.call();
            let changes = &self.shared.changes;
            let waited = changes.wait_while_for(&mut state, |s| s.done == before, patience);
            drop(state);
            if waited.timed_out() {
                let collector = self.shared.endpoint.authority();
                tracing::warn!(%collector, "not every span could be sent before the agent ended");
                return;
            }
        }
    }
}

impl Drop for Collector {
    /// Ends the thread, because no rule names the collector any more.
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Shared {
    /// Whether nobody waits for the collector any more.
    pub(super) fn ends(&self) -> bool {
        self.state().ends
    }

    /// Waits for this long, or until nobody waits for the collector any more.
    pub(super) fn wait(&self, time: Duration) {
        let changes = &self.changes;
        changes.wait_while_for(&mut self.state(), |state| !state.ends, time);
    }

    /// Notes that everything that was there at the call is sent, or given up.
    pub(super) fn note_done(&self) {
        self.state().done += 1;
        self.changes.notify_all();
    }

    fn end(&self) {
        self.state().ends = true;
        self.changes.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
