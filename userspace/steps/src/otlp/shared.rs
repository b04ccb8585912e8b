//! The state that a collector's thread shares with all others.

use std::{sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tls::Outward;

use super::{counters::OtlpMetrics, messages, settings::CollectorSettings, signal::Signal};

/// A collector, as its thread and all others see it.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) signal: Signal,
    pub(super) to: CollectorSettings,
    tls: Option<Arc<Outward>>,
    /// The encoded resource: this host and service.
    pub(super) resource: Vec<u8>,
    pub(super) metrics: OtlpMetrics,
    state: Mutex<State>,
    changes: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Set when nobody waits for the collector any more.
    ends: bool,
    /// The number of times that everything that was there had been sent, or given up.
    done: u64,
    /// The interval at which metrics are sent. None: it is not said yet.
    every: Option<Duration>,
}

impl Shared {
    pub(super) fn new(
        signal: Signal,
        to: CollectorSettings,
        tls: Option<Arc<Outward>>,
        metrics: OtlpMetrics,
    ) -> Self {
        Self {
            signal,
            resource: messages::resource(&to.service, &dataplane::host::hostname()),
            to,
            tls,
            metrics,
            state: Mutex::default(),
            changes: Condvar::new(),
        }
    }

    /// Returns the certificates. None: the endpoint is without TLS.
    pub(super) fn tls(&self) -> Option<&Arc<Outward>> {
        self.tls.as_ref()
    }

    pub(super) fn set_every(&self, every: Duration) {
        self.state().every = Some(every);
    }

    /// Calls the thread, and waits for it. Whether it was done in time.
    pub(super) fn is_done_within(&self, patience: Duration, call: impl FnOnce()) -> bool {
        let mut state = self.state();
        let before = state.done;
        call();
        let waited =
            self.changes
                .wait_while_for(&mut state, |state| state.done == before, patience);
        !waited.timed_out()
    }

    /// Whether nobody waits for the collector any more.
    pub(super) fn ends(&self) -> bool {
        self.state().ends
    }

    /// The interval at which metrics are sent. None: it is not said yet.
    pub(super) fn every(&self) -> Option<Duration> {
        self.state().every
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

    /// Notes that nobody waits any more.
    pub(super) fn end(&self) {
        self.state().ends = true;
        self.changes.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
