//! [`Report`]: what came of a replay, beside what the file says.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use ::capture::{Outcome as Was, masked};
use cql::ErrorCode;
use cql_client::Outcome;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::{
    super::{table, top::time_taken},
    plan::Facts,
    worker::Answered,
};

/// Rows of the table: what an application asks often is a few different things. Further ones are counted together.
const MAX_STATEMENTS: usize = 1_000;

/// Rows of the table that are printed for people.
const MAX_SHOWN: usize = 20;

/// Characters of a statement that are printed for people.
const MAX_SHOWN_CHARACTERS: usize = 100;

/// The name of the row of further ones.
const OTHERS: &str = "(others)";

/// Significant decimal digits of a latency.
const LATENCY_DIGITS: u8 = 2;

/// Latencies in µs, up to a minute; longer ones count as a minute.
const MAX_LATENCY_US: u64 = 60_000_000;

/// A replay's outcome.
#[derive(Debug, Default)]
pub(super) struct Report {
    facts: Facts,
    took: Duration,
    all: Counts,
    statements: BTreeMap<String, Counts>,
    differences: BTreeMap<String, u64>,
    /// The longest time by which a request was asked too late.
    behind: Duration,
    /// Connections that could not be opened again, and requests that were not asked for want of one.
    lost: u64,
    left: u64,
}

/// Counts of one statement's requests, or of all.
#[derive(Debug, Default, Serialize)]
struct Counts {
    asked: u64,
    /// Requests without a readable answer.
    unanswered: u64,
    errors_were: u64,
    errors_are: u64,
    /// Requests whose outcome was compared, and was another one.
    compared: u64,
    errors_differ: u64,
    rows_compared: u64,
    rows_differ: u64,
    #[serde(skip)]
    was: Latencies,
    #[serde(skip)]
    is: Latencies,
}

/// None: there was none yet. It grows as it is needed.
#[derive(Debug, Default)]
struct Latencies(Option<Histogram<u32>>);

impl Latencies {
    fn add(&mut self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        if self.0.is_none() {
            self.0 = Histogram::new(LATENCY_DIGITS).ok();
        }
        if let Some(histogram) = &mut self.0 {
            // Above the clamp there is nothing that it cannot hold.
            let _ = histogram.record(us.clamp(1, MAX_LATENCY_US));
        }
    }

    fn quantile_us(&self, quantile: f64) -> u64 {
        let of = |histogram: &Histogram<u32>| histogram.value_at_quantile(quantile);
        self.0.as_ref().map_or(0, of)
    }

    fn p50_us(&self) -> u64 {
        self.quantile_us(0.5)
    }

    fn p99_us(&self) -> u64 {
        self.quantile_us(0.99)
    }
}

/// The outcome of a request's comparison.
#[derive(Debug, Default)]
struct Compared {
    is_compared: bool,
    rows_compared: bool,
    error: Option<String>,
    rows: Option<String>,
}

impl Report {
    pub(super) fn new(facts: Facts) -> Self {
        Self {
            facts,
            ..Self::default()
        }
    }

    pub(super) fn took(&mut self, took: Duration) {
        self.took = took;
    }

    /// Counts a connection that could not be opened again.
    pub(super) fn loses_connection(&mut self) {
        self.lost += 1;
    }

    /// Notes how many requests nobody has asked.
    pub(super) fn leaves(&mut self, left: u64) {
        self.left = left;
    }

    /// Adds what one connection was answered.
    pub(super) fn adds(&mut self, answers: Vec<Answered>) {
        for answered in answers {
            self.behind = self.behind.max(answered.behind);
            let name = name(&answered);
            let compared = compare(&answered);
            let has_room =
                self.statements.len() < MAX_STATEMENTS || self.statements.contains_key(&name);
            let row = match has_room {
                true => name.clone(),
                false => OTHERS.to_owned(),
            };
            self.all.adds(&answered, &compared);
            self.statements
                .entry(row.clone())
                .or_default()
                .adds(&answered, &compared);
            for difference in [compared.error, compared.rows].into_iter().flatten() {
                let entry = format!("{difference}: {row}");
                if self.differences.len() < MAX_STATEMENTS || self.differences.contains_key(&entry)
                {
                    *self.differences.entry(entry).or_default() += 1;
                }
            }
        }
    }

    /// Whether an answer is another one than the file's.
    pub(super) fn has_differences(&self) -> bool {
        self.all.errors_differ + self.all.rows_differ > 0
    }

    /// The report for programs.
    pub(super) fn json(&self, compare: bool) -> String {
        #[derive(Serialize)]
        struct View<'r> {
            capture: &'r Facts,
            seconds: f64,
            late_us: u64,
            connections_lost: u64,
            not_asked: u64,
            all: Row<'r>,
            statements: Vec<Row<'r>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            differences: Option<&'r BTreeMap<String, u64>>,
        }
        let rows = self.statements.iter();
        let view = View {
            capture: &self.facts,
            seconds: self.took.as_secs_f64(),
            late_us: self.behind.as_micros() as u64,
            connections_lost: self.lost,
            not_asked: self.left,
            all: self.all.row("all"),
            statements: rows.map(|(name, counts)| counts.row(name)).collect(),
            differences: compare.then_some(&self.differences),
        };
        serde_json::to_string(&view).unwrap_or_default()
    }

    /// The report for people.
    pub(super) fn text(&self, compare: bool) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "requests in the file: {}; asked: {}; without an answer: {}; took {:.1} s",
            self.facts.requests,
            self.all.asked,
            self.all.unanswered,
            self.took.as_secs_f64()
        );
        for (why, count) in &self.facts.left_out {
            let _ = writeln!(text, "not asked: {count}, {why}");
        }
        if self.lost > 0 {
            let _ = writeln!(
                text,
                "not asked: {}, connections that could not be opened again: {}",
                self.left, self.lost
            );
        }
        if self.facts.dropped + self.facts.gaps > 0 {
            let _ = writeln!(
                text,
                "not in the file: {} requests that were dropped; what passed in {} gaps",
                self.facts.dropped, self.facts.gaps
            );
        }
        if self.facts.cut_off {
            text.push_str("the file is cut off: what would come behind is not in it\n");
        }
        if self.behind > LATE {
            let _ = writeln!(
                text,
                "up to {} late: name more --connections, or a lower --speed",
                time_taken(self.behind.as_micros() as u64)
            );
        }
        if self.all.asked > 0 {
            text.push('\n');
            text.push_str(&self.table(compare));
        }
        if compare {
            self.differences(&mut text);
        }
        text
    }

    fn table(&self, compare: bool) -> String {
        let headings = [
            "ASKED",
            "ERRORS WERE",
            "ARE",
            "P50 WAS",
            "IS",
            "P99 WAS",
            "IS",
            "STATEMENT",
        ];
        let mut rows: Vec<(&String, &Counts)> = self.statements.iter().collect();
        let differ = |counts: &Counts| match compare {
            true => counts.errors_differ + counts.rows_differ,
            false => 0,
        };
        rows.sort_by_key(|(_, counts)| std::cmp::Reverse((differ(counts), counts.asked)));
        let hidden = rows.len().saturating_sub(MAX_SHOWN);
        let all = "all".to_owned();
        let rows = rows.into_iter().take(MAX_SHOWN).chain([(&all, &self.all)]);
        let cells = rows.map(|(name, counts)| {
            let us = [
                counts.was.p50_us(),
                counts.is.p50_us(),
                counts.was.p99_us(),
                counts.is.p99_us(),
            ];
            let mut cells = vec![
                counts.asked.to_string(),
                counts.errors_were.to_string(),
                counts.errors_are.to_string(),
            ];
            cells.extend(us.map(time_taken));
            cells.push(shortened(name));
            cells
        });
        let mut text = table::render(&headings, &cells.collect::<Vec<_>>());
        if hidden > 0 {
            let _ = writeln!(text, "... and {hidden} more statements: --json has all");
        }
        text
    }

    fn differences(&self, text: &mut String) {
        let all = &self.all;
        let _ = writeln!(
            text,
            "\ncompared: the outcome of {} requests, of which {} differ; the number of rows of {}, of which {} differ",
            all.compared, all.errors_differ, all.rows_compared, all.rows_differ
        );
        if all.compared > all.rows_compared {
            text.push_str(
                "rows are compared where the file has the values that were asked for: see `capture --with-values`\n",
            );
        }
        let mut most: Vec<_> = self.differences.iter().collect();
        most.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (difference, count) in most.iter().take(MAX_SHOWN) {
            let _ = writeln!(text, "{count} × {}", shortened(difference));
        }
        if let Some(hidden) = most.len().checked_sub(MAX_SHOWN).filter(|n| *n > 0) {
            let _ = writeln!(text, "... and {hidden} more differences: --json has all");
        }
    }
}

/// A request that is asked later than this is no longer in its time.
const LATE: Duration = Duration::from_millis(100);

#[derive(Serialize)]
struct Row<'r> {
    statement: &'r str,
    #[serde(flatten)]
    counts: &'r Counts,
    p50_was_us: u64,
    p50_is_us: u64,
    p99_was_us: u64,
    p99_is_us: u64,
}

impl Counts {
    fn adds(&mut self, answered: &Answered, compared: &Compared) {
        let record = &answered.job.record;
        self.asked += 1;
        self.errors_were += u64::from(record.outcome == Was::Error);
        self.errors_are += u64::from(matches!(answered.outcome, Some(Outcome::Error { .. })));
        self.unanswered += u64::from(answered.outcome.is_none());
        self.compared += u64::from(compared.is_compared);
        self.errors_differ += u64::from(compared.error.is_some());
        self.rows_compared += u64::from(compared.rows_compared);
        self.rows_differ += u64::from(compared.rows.is_some());
        self.was.add(Duration::from_micros(record.latency_us));
        if answered.outcome.is_some() {
            self.is.add(answered.latency);
        }
    }

    fn row<'r>(&'r self, statement: &'r str) -> Row<'r> {
        Row {
            statement,
            counts: self,
            p50_was_us: self.was.p50_us(),
            p50_is_us: self.is.p50_us(),
            p99_was_us: self.was.p99_us(),
            p99_is_us: self.is.p99_us(),
        }
    }
}

/// The name of a request's row: its statements without values.
fn name(answered: &Answered) -> String {
    let record = &answered.job.record;
    let texts = record.statements.iter().map(|one| {
        let text = one.text.as_deref().unwrap_or_default();
        let analysis = cql::Analysis::of(text.as_bytes(), text.len());
        match analysis.fingerprint.is_known() {
            true => analysis.fingerprint.text().to_owned(),
            false => masked(text).unwrap_or_else(|| record.kind.clone()),
        }
    });
    let mut texts: Vec<String> = texts.collect();
    texts.dedup();
    let name = match record.batch {
        Some(_) => format!("BATCH {}", texts.join("; ")),
        None => texts.concat(),
    };
    // The file may say anything, and terminals obey.
    name.replace(char::is_control, "?")
}

/// Holds an answer against the file's.
fn compare(answered: &Answered) -> Compared {
    /// Codes of errors that a value made up can cause.
    const BY_VALUE: [i32; 2] = [0x2000, 0x2200];
    let record = &answered.job.record;
    let was = match (record.outcome, record.error_code) {
        (Was::Ok, _) => None,
        (Was::Error, Some(code)) => Some(code),
        // What it was nobody knows.
        (Was::Error | Was::Refused | Was::Unanswered, _) => return Compared::default(),
    };
    let error = |code: Option<i32>| code.map_or("ok", |code| ErrorCode::Code(code).as_str());
    let is = match answered.outcome {
        None => {
            return Compared {
                is_compared: true,
                error: Some(format!("was {}, no answer", error(was))),
                ..Compared::default()
            };
        }
        Some(Outcome::Error { code }) => Some(code),
        Some(Outcome::Rows { .. } | Outcome::Done) => None,
    };
    let is_by_value = |code: i32| BY_VALUE.contains(&code);
    if !answered.job.is_exact && (was.is_some_and(is_by_value) || is.is_some_and(is_by_value)) {
        return Compared::default();
    }
    let mut compared = Compared {
        is_compared: true,
        ..Compared::default()
    };
    if was != is {
        compared.error = Some(format!("was {}, is {}", error(was), error(is)));
    }
    if let (Some(before), Some(Outcome::Rows { rows, .. }), true) =
        (record.rows, &answered.outcome, answered.job.is_exact)
    {
        compared.rows_compared = true;
        if before != *rows {
            compared.rows = Some(format!("had {before} rows, has {rows}"));
        }
    }
    compared
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN_CHARACTERS) {
        Some((at, _)) => format!("{}...", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}
