//! The statements that enrichment has seen, by rule, keyspace, table and kind.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use cql::{Completed, Statement};
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use policy::RuleName;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};
use serde::Serialize;

use crate::stats::{Row, RowMetrics, RowView};

/// The most distinct series (rule, keyspace, table, kind); later ones are counted under `other`. A
/// series takes about 20 KiB when it has seen every latency, usually 4.
pub const MAX_SERIES: usize = 512;

/// Cassandra's own limit for names is 48; a longer one is no table of this cluster.
const MAX_NAME_BYTES: usize = 64;

/// The name that stands for series that are too many, and for names that are too long.
const OTHER: &str = "other";

/// Significant decimal digits of a latency.
const LATENCY_DIGITS: u8 = 2;

/// Latencies in µs, up to a minute; longer ones count as a minute.
const MAX_LATENCY_US: u64 = 60_000_000;

/// The histogram's buckets in seconds. Loopback answers in 50 µs, a timeout takes ten seconds.
const BUCKETS: [f64; 16] = [
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
    10.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    rule: RuleName,
    keyspace: Box<str>,
    table: Box<str>,
    kind: &'static str,
}

/// A row of the statements that enrichment has seen.
#[derive(Debug)]
pub struct Series {
    seconds: prometheus::Histogram,
    exact: Mutex<Histogram<u32>>,
    key: Key,
    /// The row's further counts, for a rule with `stats`.
    row: OnceLock<Row>,
}

/// The rows of all rules.
#[derive(Debug)]
pub struct Statements {
    series: Mutex<HashMap<Key, Arc<Series>>>,
    seconds: HistogramVec,
    errors: IntCounterVec,
    /// The empty histogram that a new row begins with; it grows with the latencies that it records.
    empty: Histogram<u32>,
}

/// A row as `/statements` gives it. Latencies in µs.
#[derive(Debug, Serialize)]
pub struct StatementView {
    rule: String,
    keyspace: String,
    table: String,
    kind: &'static str,
    count: u64,
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
    /// The further counts, for a rule with `stats`.
    #[serde(flatten)]
    row: Option<RowView>,
}

impl Statements {
    /// Declares and registers the statements' metrics.
    ///
    /// # Errors
    /// Two metrics of one name: a mistake in this file.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let opts = HistogramOpts::new(
            "underpass_statement_seconds",
            "From a request's header to the last byte of its response, by rule, keyspace, table \
             and kind of statement.",
        );
        let labels = ["rule", "keyspace", "table", "kind"];
        let seconds = HistogramVec::new(opts.buckets(BUCKETS.to_vec()), &labels)?;
        let opts = Opts::new(
            "underpass_statement_errors_total",
            "ERROR responses, by rule and code.",
        );
        let errors = IntCounterVec::new(opts, &["rule", "code"])?;
        registry.register(Box::new(seconds.clone()))?;
        registry.register(Box::new(errors.clone()))?;
        let empty = Histogram::new(LATENCY_DIGITS)
            .map_err(|e| prometheus::Error::Msg(format!("latency histogram: {e}")))?;
        Ok(Self {
            series: Mutex::default(),
            seconds,
            errors,
            empty,
        })
    }

    /// Makes both metrics show up before there is a statement: for documentation.
    pub fn declare_for_docs(&self) {
        self.seconds.with_label_values(&["", "", "", ""]);
        self.errors.with_label_values(&["", ""]);
    }

    /// The row of a statement under a rule.
    pub fn series(&self, rule: &RuleName, statement: &Statement) -> Arc<Series> {
        let name = |name: &Option<Box<str>>| match name {
            Some(name) if name.len() <= MAX_NAME_BYTES => name.clone(),
            Some(_) => OTHER.into(),
            None => "".into(),
        };
        let key = Key {
            rule: rule.clone(),
            keyspace: name(&statement.keyspace),
            table: name(&statement.table),
            kind: statement.kind.as_str(),
        };
        let mut series = self.series.lock();
        if let Some(found) = series.get(&key) {
            return found.clone();
        }
        let key = if series.len() < MAX_SERIES {
            key
        } else {
            Key {
                keyspace: OTHER.into(),
                table: OTHER.into(),
                kind: OTHER,
                ..key
            }
        };
        let seconds = self.seconds.with_label_values(&[
            key.rule.as_str(),
            &key.keyspace,
            &key.table,
            key.kind,
        ]);
        let exact = Mutex::new(self.empty.clone());
        let new = || {
            Arc::new(Series {
                seconds,
                exact,
                key: key.clone(),
                row: OnceLock::new(),
            })
        };
        series.entry(key.clone()).or_insert_with(new).clone()
    }

    /// Counts a response under its row.
    pub fn record(&self, series: &Series, completed: &Completed<'_>) {
        series.seconds.observe(completed.latency_ns as f64 / 1e9);
        let micros = (completed.latency_ns / 1_000).clamp(1, MAX_LATENCY_US);
        let mut exact = series.exact.lock();
        // The histogram grows as needed, and what it cannot hold is above the clamp.
        let _ = exact.record(micros);
        drop(exact);
        if let Some(code) = completed.error {
            self.errors
                .with_label_values(&[series.key.rule.as_str(), code.as_str()])
                .inc();
        }
    }

    /// Returns all rows, the most frequent first.
    pub fn views(&self) -> Vec<StatementView> {
        let series = self.series.lock();
        let mut views: Vec<StatementView> = series.values().map(|s| s.view()).collect();
        views.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.table.cmp(&b.table)));
        views
    }
}

impl Series {
    /// Returns the row's counts beside latencies.
    pub fn row(&self, metrics: &RowMetrics) -> &Row {
        self.row.get_or_init(|| {
            let Key {
                rule,
                keyspace,
                table,
                kind,
            } = &self.key;
            Row::new(metrics, [rule.as_str(), keyspace, table, kind])
        })
    }

    fn view(&self) -> StatementView {
        let exact = self.exact.lock();
        StatementView {
            rule: self.key.rule.to_string(),
            keyspace: self.key.keyspace.to_string(),
            table: self.key.table.to_string(),
            kind: self.key.kind,
            count: exact.len(),
            p50_us: exact.value_at_quantile(0.5),
            p99_us: exact.value_at_quantile(0.99),
            max_us: exact.max(),
            row: self.row.get().map(Row::view),
        }
    }
}

#[cfg(test)]
mod tests {
    use cql::{ErrorCode, StatementKind, StreamId};

    use super::*;

    fn statement(table: &str) -> Arc<Statement> {
        Arc::new(Statement {
            kind: StatementKind::Select,
            keyspace: Some("shop".into()),
            table: Some(table.into()),
        })
    }

    fn completed(statement: &Arc<Statement>, latency_ns: u64) -> Completed<'_> {
        Completed {
            statement,
            latency_ns,
            error: Some(ErrorCode::Code(0x2000)),
            request_bytes: 1,
            response_bytes: 1,
            stream: StreamId(0),
        }
    }

    #[test]
    fn rows_have_counts_and_quantiles() {
        let statements = Statements::register(&Registry::new()).unwrap();
        let orders = statement("orders");
        let series = statements.series(&RuleName::new("r"), &orders);
        for millis in 1..=100 {
            statements.record(&series, &completed(&orders, millis * 1_000_000));
        }
        let [row] = statements.views().try_into().unwrap();
        let within_a_percent = |got: u64, expected: u64| got.abs_diff(expected) <= expected / 100;
        assert_eq!(row.count, 100);
        assert!(within_a_percent(row.p50_us, 50_000), "{row:?}");
        assert!(within_a_percent(row.p99_us, 99_000), "{row:?}");
    }

    #[test]
    fn absurd_latencies_are_a_minute() {
        let statements = Statements::register(&Registry::new()).unwrap();
        let orders = statement("orders");
        let series = statements.series(&RuleName::new("r"), &orders);
        statements.record(&series, &completed(&orders, u64::MAX));
        statements.record(&series, &completed(&orders, 0));
        let row = &statements.views()[0];
        assert_eq!(row.count, 2);
        assert!(
            row.max_us.abs_diff(MAX_LATENCY_US) <= MAX_LATENCY_US / 100,
            "{row:?}"
        );
    }

    #[test]
    fn too_many_series_and_too_long_names_are_other() {
        let statements = Statements::register(&Registry::new()).unwrap();
        let rule = RuleName::new("r");
        for n in 0..MAX_SERIES + 10 {
            statements.series(&rule, &statement(&format!("t{n}")));
        }
        assert_eq!(statements.views().len(), MAX_SERIES + 1);
        let long = statements.series(&rule, &statement(&"x".repeat(65)));
        assert_eq!(&*long.key.table, OTHER);
    }
}
