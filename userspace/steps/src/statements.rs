//! The statements that enrichment has seen, by rule, keyspace, table and kind.

use std::{
    net::IpAddr,
    sync::{Arc, OnceLock},
};

use cql::{Completed, Statement};
use flow::Flow;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use policy::RuleName;
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry};
use serde::Serialize;
use telemetry::counter;

use crate::{
    bounded::{self, Bounded},
    stats::{Row, RowMetrics, RowView},
};

/// The most distinct series (rule, keyspace, table, kind). A further one takes the place of one of the asker who has most. A series takes
/// about 20 KiB when it has seen every latency, usually 4.
pub const MAX_SERIES: usize = 512;

/// Cassandra's own limit for names is 48; a longer one is no table of this cluster.
const MAX_NAME_BYTES: usize = 64;

/// The name that stands for names that are too long.
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

/// The key of a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    rule: RuleName,
    keyspace: Box<str>,
    table: Box<str>,
    kind: &'static str,
}

/// The user or host that asked first for what a row counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asker {
    /// A user of this host, or of a container on it.
    User(u32),
    /// Another host.
    Host(IpAddr),
}

impl Asker {
    /// The asker of a flow's statements.
    pub fn of(flow: &Flow) -> Self {
        match flow.process.is_elsewhere() {
            true => Self::Host(flow.client.socket_addr().ip().to_canonical()),
            false => Self::User(flow.process.uid),
        }
    }
}

/// A row of the statements that enrichment has seen.
pub type Series = bounded::Series<Key, Asker, Counts>;

/// The counts of a row.
#[derive(Debug)]
pub struct Counts {
    seconds: prometheus::Histogram,
    exact: Mutex<Histogram<u32>>,
    /// The row's further counts, for a rule with `stats`.
    row: OnceLock<Row>,
}

/// The rows of all rules.
#[derive(Debug)]
pub struct Statements {
    series: Bounded<Key, Asker, Counts>,
    seconds: HistogramVec,
    errors: IntCounterVec,
    replaced: IntCounter,
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
        let replaced = counter(
            registry,
            "underpass_statement_rows_replaced_total",
            "Rows of `/statements` that made room for further ones: the least recently used of those who have most.",
        )?;
        Ok(Self {
            series: Bounded::new(MAX_SERIES),
            seconds,
            errors,
            replaced,
            empty,
        })
    }

    /// Makes both metrics show up before there is a statement: for documentation.
    pub fn declare_for_docs(&self) {
        self.seconds.with_label_values(&["", "", "", ""]);
        self.errors.with_label_values(&["", ""]);
    }

    /// The row of a statement under a rule, which is made if there is none.
    pub fn series(&self, rule: &RuleName, statement: &Statement, by: Asker) -> Arc<Series> {
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
        let make = |key: &Key| Counts {
            seconds: self.seconds.with_label_values(&key.labels()),
            exact: Mutex::new(self.empty.clone()),
            row: OnceLock::new(),
        };
        self.series
            .find(key, by, make, |leaves| self.forget(leaves))
    }

    fn forget(&self, leaves: &Series) {
        if let Some(row) = leaves.row.get() {
            row.forget();
        }
        // It is there as long as its row.
        let _ = self.seconds.remove_label_values(&leaves.key.labels());
        self.replaced.inc();
    }

    /// Counts a response under its row.
    pub fn record(&self, series: &Series, completed: &Completed<'_>) {
        series.seconds.observe(completed.latency_ns as f64 / 1e9);
        self.series.note_use(series);
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
        let series = self.series.all();
        let mut views: Vec<StatementView> = series.iter().map(|s| s.view()).collect();
        views.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.table.cmp(&b.table)));
        views
    }
}

impl Key {
    fn labels(&self) -> [&str; 4] {
        [self.rule.as_str(), &self.keyspace, &self.table, self.kind]
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

    const REAL: Asker = Asker::User(1);

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
        let series = statements.series(&RuleName::new("r"), &orders, REAL);
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
        let series = statements.series(&RuleName::new("r"), &orders, REAL);
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
    fn there_are_only_so_many_rows_and_too_long_names_are_other() {
        let statements = Statements::register(&Registry::new()).unwrap();
        let rule = RuleName::new("r");
        for n in 0..MAX_SERIES + 10 {
            statements.series(&rule, &statement(&format!("t{n}")), REAL);
        }
        assert_eq!(statements.views().len(), MAX_SERIES);
        assert_eq!(statements.replaced.get(), 10);
        let long = statements.series(&rule, &statement(&"x".repeat(65)), REAL);
        assert_eq!(&*long.key.table, OTHER);
    }

    fn names(statements: &Statements, begins: &str) -> usize {
        let views = statements.views();
        views
            .iter()
            .filter(|row| row.table.starts_with(begins))
            .count()
    }

    /// Uses tables of an application, and as many invented ones in between as `invents` makes up.
    fn used(statements: &Statements, invents: impl Fn(usize) -> Option<(String, Asker)>) {
        let rule = RuleName::new("r");
        for round in 0..20 {
            for n in 0..100 {
                let real = statement(&format!("real{n}"));
                let series = statements.series(&rule, &real, REAL);
                statements.record(&series, &completed(&real, 1_000));
            }
            for n in 0..60 {
                if let Some((name, by)) = invents(round * 60 + n) {
                    let invented = statement(&name);
                    let series = statements.series(&rule, &invented, by);
                    statements.record(&series, &completed(&invented, 1_000));
                }
            }
        }
    }

    #[test]
    fn invented_names_do_not_push_tables_out() {
        for by in [REAL, Asker::User(2)] {
            let statements = Statements::register(&Registry::new()).unwrap();
            used(&statements, |n| Some((format!("invented{n}"), by)));
            assert_eq!(names(&statements, "real"), 100);
            assert_eq!(statements.views().len(), MAX_SERIES);
            // Nor are they used in vain: every one is counted in its row.
            let views = statements.views();
            let mut real = views.iter().filter(|row| row.table.starts_with("real"));
            assert!(real.all(|row| row.count == 20));
        }
    }

    /// Tables that nobody asks for any more, against one who invents at once.
    #[test]
    fn whoever_has_most_makes_room() {
        let statements = Statements::register(&Registry::new()).unwrap();
        let rule = RuleName::new("r");
        for n in 0..100 {
            statements.series(&rule, &statement(&format!("real{n}")), REAL);
        }
        for n in 0..600 {
            statements.series(&rule, &statement(&format!("invented{n}")), Asker::User(2));
        }
        assert_eq!(names(&statements, "real"), 100);
    }

    #[test]
    fn a_row_that_made_room_is_looked_up_again_and_leaves_no_metric() {
        let registry = Registry::new();
        let statements = Statements::register(&registry).unwrap();
        let rule = RuleName::new("r");
        let first = statements.series(&rule, &statement("first"), REAL);
        for n in 0..MAX_SERIES {
            statements.series(&rule, &statement(&format!("t{n}")), REAL);
        }
        assert!(first.is_gone());
        let families = registry.gather();
        let rows = families
            .iter()
            .find(|f| f.name() == "underpass_statement_seconds");
        assert_eq!(rows.unwrap().get_metric().len(), MAX_SERIES);
        assert!(
            !statements
                .series(&rule, &statement("first"), REAL)
                .is_gone()
        );
    }
}
