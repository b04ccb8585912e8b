//! The delivery of messages to a collector: what became of each is counted, and changes are logged.

use std::sync::Arc;

use super::{
    client::{Client, Failure, Taken},
    messages,
    shared::Shared,
};

/// The client of a collector's thread.
pub(super) struct Delivery {
    pub(super) shared: Arc<Shared>,
    client: Client,
    /// Set while messages are not taken, so that this is logged once, and again when it works.
    fails: bool,
}

impl Delivery {
    pub(super) fn new(shared: Arc<Shared>, client: Client) -> Self {
        Self {
            shared,
            client,
            fails: false,
        }
    }

    /// Whether the last message was not taken.
    pub(super) fn fails(&self) -> bool {
        self.fails
    }

    /// Makes the message that has these encoded items.
    pub(super) fn message(&self, items: Vec<Vec<u8>>) -> Vec<u8> {
        messages::export(&self.shared.resource, items)
    }

    /// Sends a message of so many spans, log records or points, once.
    ///
    /// # Errors
    /// The reason why it was not taken. What it had is not counted.
    pub(super) fn send(&mut self, count: u64, message: &[u8]) -> Result<(), Failure> {
        match self.client.export(self.shared.signal.method(), message) {
            Ok(taken) => {
                self.taken(count, &taken);
                Ok(())
            }
            Err(failure) => {
                self.failed(&failure);
                Err(failure)
            }
        }
    }

    /// Counts what was in a message that is given up.
    pub(super) fn lose(&self, count: u64) {
        self.shared
            .metrics
            .of(self.shared.signal)
            .lost
            .inc_by(count);
    }

    fn taken(&mut self, count: u64, taken: &Taken) {
        let counters = self.shared.metrics.of(self.shared.signal);
        let rejected = taken.rejected.min(count);
        counters.exported.inc_by(count - rejected);
        counters.rejected.inc_by(rejected);
        let (collector, what) = (
            self.shared.to.endpoint.authority(),
            self.shared.signal.words(),
        );
        if std::mem::take(&mut self.fails) {
            tracing::info!(%collector, "a collector takes {what} again");
        }
        if rejected > 0 {
            tracing::debug!(%collector, rejected, why = taken.why, "a collector has rejected {what}");
        }
    }

    fn failed(&mut self, failure: &Failure) {
        let signal = self.shared.signal;
        self.shared.metrics.failed(signal, failure);
        let collector = self.shared.to.endpoint.authority();
        if !std::mem::replace(&mut self.fails, true) {
            tracing::warn!(
                %collector, error = %failure,
                "a collector takes no {}: what does not fit meanwhile is dropped and counted",
                signal.words()
            );
        }
    }
}
