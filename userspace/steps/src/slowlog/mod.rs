//! `slowlog`: a line for each statement that took long, or longer than nearly all others.

use std::{
    path::PathBuf,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use cql::{Completed, Details, Fact, StatementKind};
use export::Fsync;
use serde::{Deserialize, Serialize};

use super::{
    Following, Keeps, Nobody, Reporter, Services, Whose, asks_for_data,
    journal::{self, Journal, JournalSettings, Place, WhenFull},
    latencies::{Latencies, halve},
    otlp::{self, CollectorSettings, Kind, Sends, Signal, Telling, Told},
    tracing_id::uuid,
};
use crate::{containers::Contained, duration};

/// The reporter's name.
const NAME: &str = "slowlog";

/// The longest `over`: a statement that takes longer has timed out.
const LONGEST: Duration = Duration::from_secs(3600);

/// The greatest `slowest_one_in`. One in so many is found among [`RECENT`] times as many.
const MOST_IN: u64 = 1_000_000;

/// The number of recent statements that count, in multiples of `slowest_one_in`.
const RECENT: u64 = 64;

/// The number of statements after which the limit of slowness is computed again.
const LOOK_EVERY: u64 = 64;

/// Writes a line for each slow statement. Needs `over` or `slowest_one_in`, or both.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"over": "100ms", "file": "/var/log/underpass/slow.jsonl"}]))]
pub struct SlowlogSettings {
    /// Latency above which a statement is slow.
    #[schemars(
        regex(pattern = "^[0-9]+(ms|s|m)$"),
        extend("title" = "duration", "x-min" = "0ms", "x-max" = "60m", "examples" = ["100ms"])
    )]
    pub over: Option<String>,
    /// The slowest statement of this many is slow, going by the latencies of late.
    #[schemars(range(min = 2, max = MOST_IN), extend("examples" = [1000]))]
    pub slowest_one_in: Option<u64>,
    /// File that lines go to. Without this key: the agent's log, unless there is `otlp`.
    #[schemars(with = "Option<String>", extend("title" = "absolute path", "examples" = ["/var/log/underpass/slow.jsonl"]))]
    pub file: Option<PathBuf>,
    /// Size of the file, in bytes, beyond which it is moved to `FILE.1`.
    #[serde(default = "journal::max_bytes")]
    #[schemars(range(min = journal::LEAST_BYTES), extend("x-beside" = "file"))]
    pub max_bytes: u64,
    /// Files that are kept beside it.
    #[serde(default = "journal::keep")]
    #[schemars(range(max = journal::MOST_KEPT), extend("x-beside" = "file"))]
    pub keep: u32,
    /// `true`: slow statements are log records for the collector of `[otlp]`.
    #[serde(default)]
    pub otlp: bool,
    /// The collector of `[otlp]`.
    #[serde(skip)]
    pub(super) collector: Option<CollectorSettings>,
}

#[derive(Debug)]
struct Slowlog {
    journal: Option<Keeps>,
    sends: Option<Sends>,
    slow: Arc<Slow>,
}

/// The test whether a statement is slow.
#[derive(Debug)]
struct Slow {
    over_us: Option<u64>,
    slowest: Option<Slowest>,
}

/// The test for the slowest one of so many, among recent statements.
#[derive(Debug)]
struct Slowest {
    one_in: u64,
    latencies: Latencies,
    seen: AtomicU64,
    /// The number of statements in `seen` that counted as the slowest.
    found: AtomicU64,
    /// The latency in µs above which a statement is one of the slowest. No statement is before
    /// enough have been seen.
    over_us: AtomicU64,
    /// The latency in µs above which, up to `over_us`, a statement may be one of the slowest:
    /// latencies are only known as precisely as a bucket. It is one if fewer than one of `one_in`
    /// were found.
    perhaps_us: AtomicU64,
}

impl SlowlogSettings {
    pub(super) fn build(self) -> Result<Box<dyn Reporter>, String> {
        if self.over.is_none() && self.slowest_one_in.is_none() {
            return Err("expected one of `over`, `slowest_one_in`".to_owned());
        }
        let over_us = self.over.map(|over| match duration(&over) {
            Some(long) if long <= LONGEST => Ok(long.as_micros() as u64),
            _ => Err(format!(
                "over: expected milliseconds, seconds or minutes, up to `60m`: `100ms`, `2s`; found \
                 {over:?}"
            )),
        });
        let slowest = self.slowest_one_in.map(|one_in| match one_in {
            2..=MOST_IN => Ok(Slowest::one_in(one_in)),
            _ => Err(format!(
                "slowest_one_in: expected 2 to {MOST_IN}, found {one_in}"
            )),
        });
        // The file is never synced: a line that is lost with the host is not worth waiting for.
        let to = match self.file {
            None if self.otlp => None,
            None => Some(Place::Log),
            Some(path) => Some(Place::file(path, self.max_bytes, self.keep, Fsync::Never)?),
        };
        let collector = otlp::wanted(self.otlp, self.collector)?;
        Ok(Box::new(Slowlog {
            journal: to.map(|to| {
                Keeps::new(JournalSettings {
                    to,
                    when_full: WhenFull::Drop,
                })
            }),
            sends: collector.map(|to| Sends::new(Signal::Logs, to)),
            slow: Arc::new(Slow {
                over_us: over_us.transpose()?,
                slowest: slowest.transpose()?,
            }),
        }))
    }
}

impl Reporter for Slowlog {
    fn name(&self) -> &'static str {
        NAME
    }

    fn journal(&self) -> Option<&JournalSettings> {
        self.journal.as_ref().map(|journal| &journal.settings)
    }

    fn reads(&self) -> Result<(), String> {
        self.sends.as_ref().map_or(Ok(()), Sends::reads)
    }

    fn open(&self, services: &Services) -> Result<(), String> {
        if let Some(journal) = &self.journal {
            journal.open(&services.journals, NAME, |record, to| {
                to.extend_from_slice(record);
                to.push(b'\n');
            })?;
        }
        let sends = self.sends.as_ref();
        sends.map_or(Ok(()), |sends| sends.open(&services.collectors))
    }

    fn wants_contexts(&self) -> bool {
        self.sends.is_some()
    }

    fn follow(&self, whose: &Arc<Whose>, _: &Arc<Services>) -> Box<dyn Following> {
        let journal = self.journal.as_ref().and_then(Keeps::get);
        let collector = self.sends.as_ref().and_then(Sends::get);
        if journal.is_none() && collector.is_none() {
            return Box::new(Nobody);
        }
        LazyLock::force(&whose.cgroup);
        Box::new(FlowSlowlog {
            journal: journal.cloned(),
            telling: collector.map(|collector| Telling::new(collector, Kind::Slow, whose)),
            slow: self.slow.clone(),
            whose: whose.clone(),
        })
    }
}

impl Slow {
    /// Whether a statement that took this long is slow.
    fn is(&self, micros: u64) -> bool {
        // Both are asked: a statement that is slow anyway counts for the slowest, too.
        let is_slowest = self
            .slowest
            .as_ref()
            .is_some_and(|slowest| slowest.is(micros));
        is_slowest || self.over_us.is_some_and(|over| micros > over)
    }
}

impl Slowest {
    fn one_in(one_in: u64) -> Self {
        Self {
            one_in,
            latencies: Latencies::default(),
            seen: AtomicU64::new(0),
            found: AtomicU64::new(0),
            over_us: AtomicU64::new(u64::MAX),
            perhaps_us: AtomicU64::new(u64::MAX),
        }
    }

    fn is(&self, micros: u64) -> bool {
        self.latencies.record(micros);
        let seen = self.seen.fetch_add(1, Relaxed) + 1;
        let found = self.found.load(Relaxed) + 1;
        let is_due = found.saturating_mul(self.one_in) <= seen;
        let is = micros > self.over_us.load(Relaxed)
            || (is_due && micros > self.perhaps_us.load(Relaxed));
        if is {
            self.found.fetch_add(1, Relaxed);
        }
        if seen.is_multiple_of(LOOK_EVERY) {
            self.look();
        }
        is
    }

    fn look(&self) {
        let count = self.latencies.count();
        if count < self.one_in {
            return;
        }
        let part = 1.0 - 1.0 / self.one_in as f64;
        let (below, highest) = self.latencies.around(part);
        self.over_us.store(highest, Relaxed);
        self.perhaps_us.store(below, Relaxed);
        if count > self.one_in.saturating_mul(RECENT) {
            self.latencies.fade();
            [&self.seen, &self.found].into_iter().for_each(halve);
        }
    }
}

struct FlowSlowlog {
    journal: Option<Arc<Journal>>,
    telling: Option<Telling>,
    slow: Arc<Slow>,
    whose: Arc<Whose>,
}

impl Following for FlowSlowlog {
    fn completed(&mut self, completed: &Completed<'_>, details: &Details) {
        let kind = completed.statement.kind;
        if !asks_for_data(kind) && kind != StatementKind::Prepare {
            return;
        }
        if !self.slow.is(completed.latency_ns / 1_000) {
            return;
        }
        if let Some(journal) = &self.journal {
            let line = Line::new(&self.whose, completed, details).to_json();
            if let Err(full) = journal.push(line.as_bytes()) {
                journal.drops(full);
            }
        }
        if let Some(telling) = &mut self.telling {
            telling.log(&Told::answered(completed, details), None, "");
        }
    }
}

/// A line on a statement. A field that is not known, or does not apply, is left out. There are no
/// values in it.
#[derive(Debug, Serialize)]
struct Line<'l> {
    /// The time when the response had passed.
    unix_ms: u64,
    rule: &'l str,
    flow: u64,
    latency_us: u64,
    fingerprint: &'l str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    keyspace: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<&'l str>,
    #[serde(flatten)]
    asked: Option<Parameters>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<u32>,
    more_pages: bool,
    bytes_to_database: u64,
    bytes_to_client: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    warnings: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tracing_id: Option<String>,
    coordinator: String,
    client: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    application: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cgroup: Option<&'l str>,
    #[serde(flatten)]
    container: Option<&'l Contained>,
}

#[derive(Debug, Serialize)]
struct Parameters {
    /// The number of a batch's statements.
    statements: u16,
    /// The number of bound values.
    values: u32,
    consistency: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    serial_consistency: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    page_size: Option<i32>,
    /// Whether the request asks for a later page.
    later_page: bool,
}

impl<'l> Line<'l> {
    fn new(whose: &'l Whose, completed: &Completed<'l>, details: &'l Details) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let fingerprint = details.asked.fingerprint.as_deref();
        let answered = &details.answered;
        Self {
            unix_ms: since_epoch.unwrap_or_default().as_millis() as u64,
            rule: whose.rule.as_str(),
            flow: whose.flow.id.number(),
            latency_us: completed.latency_ns / 1_000,
            fingerprint: fingerprint.map_or("unknown", |known| known.text()),
            hash: fingerprint.map(|known| format!("{:016x}", known.hash())),
            kind: completed.statement.kind.as_str(),
            keyspace: completed.statement.keyspace.as_deref(),
            table: completed.statement.table.as_deref(),
            asked: details.asked.parameters.as_ref().map(Parameters::new),
            error: completed.error.map(|code| code.as_str()),
            rows: answered.rows,
            more_pages: answered.more_pages,
            bytes_to_database: completed.request_bytes,
            bytes_to_client: completed.response_bytes,
            warnings: answered.warnings.filter(|warnings| *warnings > 0),
            tracing_id: answered.tracing_id.map(uuid),
            coordinator: whose.coordinator().to_string(),
            client: whose.flow.client.to_string(),
            user: whose.user().map(|user| user.to_string()),
            application: whose.application(),
            pid: whose.process().map(|_| whose.flow.process.pid),
            process: whose.process(),
            cgroup: whose.cgroup.as_deref(),
            container: whose.container(),
        }
    }

    fn to_json(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        // JSON allows some control characters, and terminals obey them.
        match text.contains(char::is_control) {
            true => text.replace(char::is_control, "?"),
            false => text,
        }
    }
}

impl Parameters {
    fn new(asked: &cql::Parameters) -> Self {
        let is = |fact: &Fact<i32>| match fact {
            Fact::Is(value) => Some(*value),
            _ => None,
        };
        let serial = match asked.serial_consistency {
            Fact::Is(level) => Some(level.as_str()),
            _ => None,
        };
        Self {
            statements: asked.statements,
            values: asked.values,
            consistency: asked.consistency.as_str(),
            serial_consistency: serial,
            page_size: is(&asked.page_size),
            later_page: asked.paging_state,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_are_at_most_one_in_so_many() {
        let slowest = Slowest::one_in(100);
        let slow = (0..200_000_u64).filter(|n| {
            // Every latency from 1,000 to 10,000 µs, in no order.
            let micros = 1_000 + n.wrapping_mul(0x9E37_79B9_7F4A_7C15) % 9_000;
            let is = slowest.is(micros);
            assert!(!is || micros > 9_700, "{micros}");
            is
        });
        let slow = slow.count();
        assert!((1_700..=2_100).contains(&slow), "{slow}");
        assert!(slowest.latencies.count() < 100 * RECENT + LOOK_EVERY);
    }

    #[test]
    fn what_is_slow_follows_what_is_usual() {
        let slowest = Slowest::one_in(10);
        let pass = |micros, times: u64| (0..times).filter(|_| slowest.is(micros)).count();
        assert!((900..=1_000).contains(&pass(1_000, 10_000)));
        assert_eq!(pass(2_000, 1), 1);
        // When all statements are slower, none of them is slow.
        assert!((1_000..1_300).contains(&pass(50_000, 10_000)));
        assert_eq!(pass(20_000, 1), 0);
        assert_eq!(pass(80_000, 1), 1);
    }

    #[test]
    fn one_of_both_is_enough() {
        let slow = Slow {
            over_us: Some(500),
            slowest: None,
        };
        assert_eq!([500, 501].map(|micros| slow.is(micros)), [false, true]);
    }
}
