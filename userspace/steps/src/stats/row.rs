//! The counts of `stats` beside latencies, by rule, keyspace, table and kind.

use std::{collections::BTreeMap, sync::OnceLock};

use cql::{Completed, Consistency, Details, ErrorCode};
use parking_lot::Mutex;
use prometheus::{IntCounter, IntCounterVec, Registry};
use serde::Serialize;
use telemetry::counters_by;

/// The labels of a row: rule, keyspace, table, kind.
pub type Labels<'l> = [&'l str; 4];

/// The metrics of all rows.
#[derive(Clone, Debug)]
pub struct RowMetrics {
    rows: IntCounterVec,
    bytes: IntCounterVec,
    errors: IntCounterVec,
    levels: IntCounterVec,
}

/// The counters of one row.
#[derive(Debug)]
pub struct Row {
    metrics: RowMetrics,
    labels: [String; 4],
    rows: IntCounter,
    to_database: IntCounter,
    to_client: IntCounter,
    errors: Mutex<BTreeMap<&'static str, IntCounter>>,
    /// The counters by the level's number; the last is for all levels without one.
    levels: [OnceLock<IntCounter>; KNOWN_LEVELS + 1],
}

/// The greatest known level: ANY to LOCAL_ONE (`native_protocol_v5.spec` §3).
const KNOWN_LEVELS: usize = 0x000B;

/// A row as `/statements` gives it.
#[derive(Debug, Serialize)]
pub struct RowView {
    rows: u64,
    bytes_to_database: u64,
    bytes_to_client: u64,
    errors: BTreeMap<&'static str, u64>,
    consistency: BTreeMap<&'static str, u64>,
}

impl RowMetrics {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counters = |name, help, last: Option<&str>| {
            let labels = ["rule", "keyspace", "table", "kind"];
            let labels: Vec<&str> = labels.into_iter().chain(last).collect();
            counters_by(registry, name, help, &labels)
        };
        Ok(Self {
            rows: counters(
                "underpass_stats_rows_total",
                "Rows of results, of rules with `stats`.",
                None,
            )?,
            bytes: counters(
                "underpass_stats_bytes_total",
                "Bytes of requests and responses, their frames' headers included, of rules with \
                 `stats`, by direction.",
                Some("direction"),
            )?,
            errors: counters(
                "underpass_stats_errors_total",
                "ERROR responses of rules with `stats`, by code.",
                Some("code"),
            )?,
            levels: counters(
                "underpass_stats_requests_total",
                "QUERY, EXECUTE and BATCH requests of rules with `stats`, by the consistency level \
                 that the client asked for.",
                Some("consistency"),
            )?,
        })
    }

    /// Gives each metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        let row = Row::new(self, [""; 4]);
        row.error(ErrorCode::Unreadable);
        row.level(Consistency(0));
    }
}

impl Row {
    /// Makes the row with these labels.
    pub fn new(metrics: &RowMetrics, labels: Labels<'_>) -> Self {
        let [rule, keyspace, table, kind] = labels;
        let bytes = |direction| {
            let labels = [rule, keyspace, table, kind, direction];
            metrics.bytes.with_label_values(&labels)
        };
        Self {
            rows: metrics.rows.with_label_values(&labels),
            to_database: bytes("to_database"),
            to_client: bytes("to_client"),
            errors: Mutex::default(),
            levels: [const { OnceLock::new() }; KNOWN_LEVELS + 1],
            labels: labels.map(str::to_owned),
            metrics: metrics.clone(),
        }
    }

    /// Takes the row's samples out of the metrics.
    pub(crate) fn forget(&self) {
        let labels = self.labels.each_ref().map(String::as_str);
        let [rule, keyspace, table, kind] = labels;
        let remove = |from: &IntCounterVec, last| {
            // It may not have been counted yet.
            let _ = from.remove_label_values(&[rule, keyspace, table, kind, last]);
        };
        let _ = self.metrics.rows.remove_label_values(&labels);
        remove(&self.metrics.bytes, "to_database");
        remove(&self.metrics.bytes, "to_client");
        for code in self.errors.lock().keys() {
            remove(&self.metrics.errors, code);
        }
        for level in 0..=KNOWN_LEVELS as u16 {
            remove(&self.metrics.levels, Consistency(level).as_str());
        }
    }

    pub(super) fn record(&self, completed: &Completed<'_>, details: &Details) {
        self.to_database.inc_by(completed.request_bytes);
        self.to_client.inc_by(completed.response_bytes);
        if let Some(rows @ 1..) = details.answered.rows {
            self.rows.inc_by(rows.into());
        }
        if let Some(code) = completed.error {
            self.error(code);
        }
        if let Some(parameters) = &details.asked.parameters {
            self.level(parameters.consistency);
        }
    }

    fn error(&self, code: ErrorCode) {
        let mut errors = self.errors.lock();
        let new = || self.one_of(&self.metrics.errors, code.as_str());
        errors.entry(code.as_str()).or_insert_with(new).inc();
    }

    fn level(&self, level: Consistency) {
        let at = usize::from(level.0).min(KNOWN_LEVELS);
        if let Some(counter) = self.levels.get(at) {
            let new = || self.one_of(&self.metrics.levels, level.as_str());
            counter.get_or_init(new).inc();
        }
    }

    fn one_of(&self, counters: &IntCounterVec, last: &str) -> IntCounter {
        let [rule, keyspace, table, kind] = &self.labels;
        counters.with_label_values(&[rule, keyspace, table, kind, last])
    }

    pub(crate) fn view(&self) -> RowView {
        let errors = self.errors.lock();
        let levels = (0..).map(|number| Consistency(number).as_str());
        let levels = levels.zip(&self.levels);
        RowView {
            rows: self.rows.get(),
            bytes_to_database: self.to_database.get(),
            bytes_to_client: self.to_client.get(),
            errors: errors.iter().map(|(code, n)| (*code, n.get())).collect(),
            consistency: levels
                .filter_map(|(level, counter)| Some((level, counter.get()?.get())))
                .collect(),
        }
    }
}
