//! The open collectors, off the threads on which bytes move.
//!
//! There is one for each signal, endpoint and service, however many rules name it, and it outlives a reload
//! that still names it. A flow's thread writes a record to its [ring](export::Export). The rings
//! are the only queue: a collector that takes nothing lets them fill up, and a record that does not
//! fit is counted. Signals have threads of their own, so that a collector which does not take one of them still gets the others.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use dataplane::backends::Probe;
use export::{Export, Sink};
use parking_lot::Mutex;
use prometheus::Registry;

use super::{
    client::Client,
    counters::OtlpMetrics,
    delivery::Delivery,
    exporting::Exporting,
    pushing::Pushing,
    settings::{CollectorSettings, MetricsPush},
    shared::Shared,
    signal::Signal,
};
use crate::register::Dials;

/// The open collectors.
#[derive(Debug)]
pub struct Collectors {
    open: Mutex<HashMap<(Signal, CollectorSettings), Weak<Collector>>>,
    /// The collector that metrics are sent to.
    pushed: Mutex<Option<Arc<Collector>>>,
    /// All metrics of the agent.
    registry: Registry,
    metrics: OtlpMetrics,
    dials: Dials,
}

/// An open collector.
#[derive(Debug)]
pub(crate) struct Collector {
    export: Export,
    shared: Arc<Shared>,
}

impl Collectors {
    /// Makes the register; no collector is open yet. `registry` has the metrics that are sent.
    pub fn new(metrics: OtlpMetrics, registry: Registry) -> Self {
        Self {
            open: Mutex::default(),
            pushed: Mutex::default(),
            registry,
            metrics,
            dials: Dials::default(),
        }
    }

    /// Gives the collectors the probe with which they are connected to from now on.
    pub fn dial_by(&self, probe: Probe) {
        // An agent has one probe for its whole life.
        let _ = self.dials.set(probe);
    }

    /// Opens a collector of spans or log records, or returns the one that is open. The first record finds
    /// out whether the endpoint can be reached. A collector that is open gets the certificates that
    /// are in the files now.
    ///
    /// # Errors
    /// A file cannot be used; or there can be no more threads, or descriptors.
    pub(super) fn open(
        &self,
        signal: Signal,
        to: &CollectorSettings,
    ) -> Result<Arc<Collector>, String> {
        self.one(signal, to, |delivery| {
            start(signal, Exporting::new(delivery))
        })
    }

    /// Sends metrics to this collector from now on, or to none.
    ///
    /// # Errors
    /// As in [`CollectorSettings::read_certificates`]; or there can be no more threads, or descriptors.
    pub fn push_metrics(&self, push: Option<&MetricsPush>) -> Result<(), String> {
        let collector = match push {
            None => None,
            Some(push) => {
                let collector = self.one(Signal::Metrics, &push.to, |delivery| {
                    start(
                        Signal::Metrics,
                        Pushing::new(delivery, self.registry.clone()),
                    )
                })?;
                collector.shared.set_every(push.every);
                // It may sleep for longer than that.
                collector.export.call();
                Some(collector)
            }
        };
        *self.pushed.lock() = collector;
        Ok(())
    }

    fn one(
        &self,
        signal: Signal,
        to: &CollectorSettings,
        start: impl FnOnce(Delivery) -> io::Result<Export>,
    ) -> Result<Arc<Collector>, String> {
        let cannot = |error| {
            format!(
                "cannot start a thread for {}: {error}",
                to.endpoint.authority()
            )
        };
        let outward = to.outward()?;
        let mut open = self.open.lock();
        open.retain(|_, collector| collector.strong_count() > 0);
        let key = (signal, to.clone());
        if let Some(collector) = open.get(&key).and_then(Weak::upgrade) {
            if let (Some(old), Some(new)) = (collector.shared.tls(), &outward) {
                old.renew(new);
            }
            return Ok(collector);
        }
        let outward = outward.map(Arc::new);
        let shared = Arc::new(Shared::new(
            signal,
            to.clone(),
            outward.clone(),
            self.metrics.clone(),
        ));
        let client = Client::new(to.endpoint.clone(), outward, self.dials.clone());
        let client = client.map_err(cannot)?;
        let delivery = Delivery::new(shared.clone(), client);
        let collector = Arc::new(Collector {
            export: start(delivery).map_err(cannot)?,
            shared,
        });
        open.insert(key, Arc::downgrade(&collector));
        Ok(collector)
    }

    /// Sends everything before the agent ends, unless that takes longer than `patience` for all collectors together.
    pub fn finish(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let open = self.open.lock();
        let open: Vec<_> = open.values().filter_map(Weak::upgrade).collect();
        // All at a time: those that hang take the others' time otherwise.
        for collector in &open {
            collector.shared.end();
            collector.export.call();
        }
        for collector in open {
            let left = until.saturating_duration_since(Instant::now());
            collector.finish(left);
        }
    }
}

fn start(signal: Signal, sink: impl Sink) -> io::Result<Export> {
    Export::start(signal.thread(), sink)
}

impl Collector {
    /// Hands a record over, or counts it as dropped. Never waits.
    pub(super) fn push(&self, record: &[u8]) {
        if let Err(why) = self.export.push(record) {
            self.shared.metrics.dropped(self.shared.signal, why);
        }
    }

    /// Counts a request with a malformed `traceparent`.
    pub(crate) fn malformed(&self) {
        self.shared.metrics.malformed.inc();
    }

    /// Counts a request with a malformed `tracestate`, whose span goes without one.
    pub(crate) fn malformed_state(&self) {
        self.shared.metrics.malformed_states.inc();
    }

    fn finish(&self, patience: Duration) {
        // The first call may find the thread in work that it began before.
        for _ in 0..2 {
            if !self.shared.is_done_within(patience, || self.export.call()) {
                let collector = self.shared.to.endpoint.authority();
                let what = self.shared.signal.words();
                tracing::warn!(%collector, "not all {what} could be sent before the agent ended");
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
