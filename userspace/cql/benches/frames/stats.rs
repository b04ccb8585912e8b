//! Counts as the agent does (`Recorder` of `proxy/decode.rs` and `statements.rs` there): a histogram for
//! metrics and an exact one for each statement, of which a flow has some at hand.

use cql::{Anomaly, Completed, Details, Sink, Statement};
use hdrhistogram::Histogram;
use std::sync::{Arc, Mutex, PoisonError};

/// The number of series at hand, as the agent's.
const SERIES_AT_HAND: usize = 32;
const LATENCY_DIGITS: u8 = 2;
const MAX_LATENCY_US: u64 = 60_000_000;

struct Series {
    seconds: prometheus::Histogram,
    exact: Mutex<Histogram<u32>>,
}

impl Series {
    fn new() -> Arc<Self> {
        let buckets = (0..16).map(|n| 0.000_1 * 2_f64.powi(n)).collect();
        let opts = prometheus::HistogramOpts::new("seconds", "seconds").buckets(buckets);
        let seconds = prometheus::Histogram::with_opts(opts);
        let exact = Histogram::new(LATENCY_DIGITS);
        match (seconds, exact) {
            (Ok(seconds), Ok(exact)) => Arc::new(Self {
                seconds,
                exact: Mutex::new(exact),
            }),
            _ => unreachable!("neither has a setting that could be wrong"),
        }
    }

    fn record(&self, completed: &Completed<'_>) {
        self.seconds.observe(completed.latency_ns as f64 / 1e9);
        let micros = (completed.latency_ns / 1_000).clamp(1, MAX_LATENCY_US);
        let mut exact = self.exact.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = exact.record(micros);
    }
}

/// `DETAILS`: it asks for them, and adds them up.
pub struct Stats<const DETAILS: bool> {
    at_hand: Vec<(Arc<Statement>, Arc<Series>)>,
    oldest: usize,
    bytes: u64,
    rows: u64,
    /// Operations, since it was last taken.
    pub counted: u64,
}

impl<const DETAILS: bool> Stats<DETAILS> {
    pub fn new() -> Self {
        Self {
            at_hand: Vec::new(),
            oldest: 0,
            bytes: 0,
            rows: 0,
            counted: 0,
        }
    }

    /// Forgets the counts so far; the rows of statements stay.
    pub fn forget(&mut self) {
        (self.counted, self.bytes, self.rows) = (0, 0, 0);
    }

    /// Bytes and rows of all operations.
    pub fn sums(&self) -> (u64, u64) {
        (self.bytes, self.rows)
    }
}

impl<const DETAILS: bool> Sink for Stats<DETAILS> {
    const DETAILS: bool = DETAILS;

    fn completed(&mut self, completed: &Completed<'_>) {
        self.counted += 1;
        self.bytes += completed.request_bytes + completed.response_bytes;
        let statement = completed.statement;
        let found = self.at_hand.iter().find(|(s, _)| Arc::ptr_eq(s, statement));
        if let Some((_, series)) = found {
            return series.record(completed);
        }
        let series = Series::new();
        series.record(completed);
        let entry = (statement.clone(), series);
        match self.at_hand.get_mut(self.oldest) {
            Some(oldest) => *oldest = entry,
            None => self.at_hand.push(entry),
        }
        self.oldest = (self.oldest + 1) % SERIES_AT_HAND;
    }

    fn detailed(&mut self, completed: &Completed<'_>, details: &Details) {
        self.rows += u64::from(details.answered.rows.unwrap_or_default());
        self.completed(completed);
    }

    fn anomaly(&mut self, anomaly: Anomaly) {
        unreachable!("{anomaly} in frames that are sound");
    }
}
