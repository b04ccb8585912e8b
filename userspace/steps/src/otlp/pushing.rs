//! The work of the thread that sends metrics: all that `/metrics` shows, at an interval.
//!
//! A push that a collector does not take is not kept: counters go on, and the next push has their new values.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use export::Sink;
use prometheus::Registry;

use super::{delivery::Delivery, exporting::MAX_BATCH_BYTES, snapshot};

pub(super) struct Pushing {
    delivery: Delivery,
    registry: Registry,
    /// The time since which counters have counted, in ns since 1970.
    began_ns: u64,
    last: Instant,
}

impl Pushing {
    pub(super) fn new(delivery: Delivery, registry: Registry) -> Self {
        Self {
            delivery,
            registry,
            began_ns: now_ns(),
            last: Instant::now(),
        }
    }

    /// Sends every metric as it is now, in messages of about [`MAX_BATCH_BYTES`].
    fn push(&mut self) {
        self.last = Instant::now();
        let families = self.registry.gather();
        let parts = snapshot::of(&families, self.began_ns, now_ns());
        let (mut items, mut points, mut bytes) = (Vec::new(), 0, 0);
        for part in parts {
            if bytes + part.encoded.len() > MAX_BATCH_BYTES && bytes > 0 {
                self.send(std::mem::take(&mut items), points);
                (points, bytes) = (0, 0);
            }
            points += part.points;
            bytes += part.encoded.len();
            items.push(part.encoded);
        }
        self.send(items, points);
    }

    fn send(&mut self, items: Vec<Vec<u8>>, points: u64) {
        let message = self.delivery.message(items);
        if self.delivery.send(points, &message).is_err() {
            self.delivery.lose(points);
        }
    }
}

impl Sink for Pushing {
    fn record(&mut self, _: &[u8]) {}

    fn batch_ends(&mut self) {}

    fn due(&self) -> Option<Instant> {
        Some(self.last + self.delivery.shared.every()?)
    }

    fn on_due(&mut self) {
        let is_due = self.due().is_some_and(|due| due <= Instant::now());
        let ends = self.delivery.shared.ends();
        // The last values, unless nobody takes them.
        if is_due || (ends && !self.delivery.fails()) {
            self.push();
        }
        self.delivery.shared.note_done();
    }
}

fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_nanos() as u64
}
