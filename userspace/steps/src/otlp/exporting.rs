//! The work of a collector's own thread: records become spans or log records, and these batches.
//!
//! While it waits for the collector it takes nothing out of the rings.

use std::time::{Duration, Instant};

use export::Sink;

use super::{client::Again, delivery::Delivery, record};

/// The most spans or log records of a batch: as many as OpenTelemetry's own exporters send.
const MAX_BATCH: usize = 512;

/// The most bytes of a batch: collectors take 4 MiB unless told otherwise, and a span is at most 64
/// KiB.
pub(super) const MAX_BATCH_BYTES: usize = 1 << 20;

/// The longest time that a record waits for others.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// The number of times that a batch is sent: the batch itself may be wrong. A batch that found no
/// collector waits for one.
const MAX_TRIES: u32 = 5;

/// The first pause after a collector has not taken a batch.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause; each is twice as long as the one before.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

pub(super) struct Exporting {
    delivery: Delivery,
    /// The encoded spans or log records.
    items: Vec<Vec<u8>>,
    bytes: usize,
    /// The time when the first of them came.
    since: Option<Instant>,
    pause: Duration,
}

impl Exporting {
    pub(super) fn new(delivery: Delivery) -> Self {
        Self {
            delivery,
            items: Vec::new(),
            bytes: 0,
            since: None,
            pause: FIRST_PAUSE,
        }
    }

    /// Sends the batch, until it is taken or given up.
    fn export(&mut self) {
        self.since = None;
        self.bytes = 0;
        let items = std::mem::take(&mut self.items);
        let count = items.len() as u64;
        if count == 0 {
            return;
        }
        let message = self.delivery.message(items);
        let mut tries = 0;
        loop {
            // An agent that ends has tried once, and does not wait for one batch after the other.
            if self.delivery.fails() && self.delivery.shared.ends() {
                return self.delivery.lose(count);
            }
            match self.delivery.send(count, &message) {
                Ok(()) => {
                    self.pause = FIRST_PAUSE;
                    return;
                }
                Err(failure) => {
                    tries += u32::from(!failure.is_before());
                    if failure.again() == Again::No || tries == MAX_TRIES {
                        return self.delivery.lose(count);
                    }
                }
            }
            self.delivery.shared.wait(self.pause);
            self.pause = LONGEST_PAUSE.min(2 * self.pause);
        }
    }
}

impl Sink for Exporting {
    fn record(&mut self, record: &[u8]) {
        // Every record makes a span or a log record.
        let Some(item) = record::encoded(record) else {
            return;
        };
        self.since.get_or_insert_with(Instant::now);
        self.bytes += item.len();
        self.items.push(item);
        if self.items.len() >= MAX_BATCH || self.bytes >= MAX_BATCH_BYTES {
            self.export();
        }
    }

    fn batch_ends(&mut self) {}

    fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + MAX_DELAY)
    }

    fn on_due(&mut self) {
        self.export();
        self.delivery.shared.note_done();
    }

    fn end(&mut self) {
        self.export();
    }
}
