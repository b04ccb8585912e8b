//! The work of a collector's own thread: records become spans, and spans batches.
//!
//! While it waits for the collector it takes nothing out of the rings.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use export::Sink;

use super::{
    client::{Again, Client, Failure, Taken},
    collectors::Shared,
    otlp, record,
};

/// The most spans of a batch: as many as OpenTelemetry's own exporters send.
const MAX_BATCH_SPANS: usize = 512;

/// The most bytes of a batch: collectors take 4 MiB unless told otherwise, and a span is at most 64
/// KiB.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// The longest time that a span waits for others.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// The number of times that a batch is sent: the batch itself may be wrong. A batch that found no
/// collector waits for one.
const MAX_TRIES: u32 = 5;

/// The first pause after a collector has not taken a batch.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause; each is twice as long as the one before.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

pub(super) struct Exporting {
    shared: Arc<Shared>,
    client: Client,
    /// The encoded spans.
    spans: Vec<Vec<u8>>,
    bytes: usize,
    /// The time when the first of them came.
    since: Option<Instant>,
    /// Set while batches are not taken, so that this is logged once, and again when it works.
    fails: bool,
    pause: Duration,
}

impl Exporting {
    pub(super) fn new(shared: Arc<Shared>, client: Client) -> Self {
        Self {
            shared,
            client,
            spans: Vec::new(),
            bytes: 0,
            since: None,
            fails: false,
            pause: FIRST_PAUSE,
        }
    }

    /// Sends the spans, until they are taken or given up.
    fn export(&mut self) {
        self.since = None;
        self.bytes = 0;
        let spans = std::mem::take(&mut self.spans);
        let count = spans.len() as u64;
        if count == 0 {
            return;
        }
        let message = otlp::export(&self.shared.service, spans);
        let mut tries = 0;
        loop {
            // An agent that ends has tried once, and does not wait for one batch after the other.
            if self.fails && self.shared.ends() {
                return self.shared.metrics.lost.inc_by(count);
            }
            match self.client.export(&message) {
                Ok(taken) => return self.taken(count, &taken),
                Err(failure) => {
                    self.failed(&failure);
                    tries += u32::from(!failure.is_before());
                    if failure.again() == Again::No || tries == MAX_TRIES {
                        return self.shared.metrics.lost.inc_by(count);
                    }
                }
            }
            self.shared.wait(self.pause);
            self.pause = LONGEST_PAUSE.min(2 * self.pause);
        }
    }

    fn taken(&mut self, count: u64, taken: &Taken) {
        let rejected = taken.rejected.min(count);
        self.shared.metrics.exported.inc_by(count - rejected);
        self.shared.metrics.rejected.inc_by(rejected);
        self.pause = FIRST_PAUSE;
        let collector = self.shared.endpoint.authority();
        if std::mem::take(&mut self.fails) {
            tracing::info!(%collector, "a collector takes spans again");
        }
        if rejected > 0 {
            tracing::debug!(%collector, rejected, why = taken.why, "a collector has rejected spans");
        }
    }

    fn failed(&mut self, failure: &Failure) {
        self.shared.metrics.failed(failure);
        let collector = self.shared.endpoint.authority();
        if !std::mem::replace(&mut self.fails, true) {
            tracing::warn!(
                %collector, error = %failure,
                "a collector takes no spans: what does not fit meanwhile is dropped and counted"
            );
        }
    }
}

impl Sink for Exporting {
    fn record(&mut self, record: &[u8]) {
        // Every record makes a span.
        let Some(span) = record::span(record) else {
            return;
        };
        self.since.get_or_insert_with(Instant::now);
        self.bytes += span.len();
        self.spans.push(span);
        if self.spans.len() >= MAX_BATCH_SPANS || self.bytes >= MAX_BATCH_BYTES {
            self.export();
        }
    }

    fn batch_ends(&mut self) {}

    fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + MAX_DELAY)
    }

    fn on_due(&mut self) {
        self.export();
        self.shared.note_done();
    }

    fn end(&mut self) {
        self.export();
    }
}
