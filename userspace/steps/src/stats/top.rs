//! The most frequent statements of each rule, by who asks and by fingerprint.
//!
//! It is not known which those are before they have been counted, and there may be any number of
//! different ones, so this is SpaceSaving (Metwally, Agrawal, El Abbadi 2005): when all entries are
//! taken, a new statement gets the entry of the least frequent one, and its count. The view says
//! how much that was ([`Entry::over`]). So every statement that is more than a [`MAX_ENTRIES`]th of
//! a rule's has an entry, and no count is too low. Latencies, rows and bytes are those of the
//! statement itself, since it got its entry.

use std::{
    collections::HashMap,
    hash::BuildHasher,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use cql::{Completed, Details, Fingerprint, Statement};
use flow::{Flow, Path};
use parking_lot::Mutex;
use serde::Serialize;

use crate::latencies::Latencies;

/// The most entries of one rule. Applications have dozens of statements, and a rule has a few applications; an entry
/// takes up to 6 KiB.
pub const MAX_ENTRIES: usize = 256;

/// The most rules with entries of their own; further rules share. 48 MiB in all, at worst.
const MAX_RULES: usize = 32;

/// The name of the rules that share.
const OTHERS: &str = "others";

/// The most frequent statements of all rules.
#[derive(Debug, Default)]
pub struct Tops {
    by_rule: Mutex<HashMap<String, Arc<Top>>>,
}

/// The most frequent statements of one rule.
#[derive(Debug, Default)]
pub(super) struct Top {
    entries: Mutex<HashMap<Key, Arc<Entry>>>,
}

/// The one that asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Client {
    /// A process of this host, by its name.
    Process(Arc<str>),
    /// Another host.
    Host(IpAddr),
}

impl Client {
    pub(super) fn of(flow: &Flow) -> Self {
        match flow.process.is_elsewhere() {
            true => Self::Host(flow.client.socket_addr().ip().to_canonical()),
            false => Self::Process(flow.process.name.as_str().into()),
        }
    }
}

/// The key of an entry. A table that its text does not qualify is another one in each keyspace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    client: Client,
    path: &'static str,
    statement: Statement,
    fingerprint: Option<Arc<Fingerprint>>,
}

/// The counts of one statement.
#[derive(Debug)]
pub(super) struct Entry {
    key: Key,
    /// The number of requests. Never too low.
    count: AtomicU64,
    /// The most by which `count` is too high.
    over: u64,
    /// Whether the entry was given to another statement.
    is_gone: AtomicBool,
    rows: AtomicU64,
    errors: AtomicU64,
    bytes_to_database: AtomicU64,
    bytes_to_client: AtomicU64,
    total_us: AtomicU64,
    max_us: AtomicU64,
    latencies: Latencies,
}

/// An entry as `/statements/top` gives it. Latencies in µs.
#[derive(Debug, Serialize)]
pub struct TopView {
    rule: String,
    /// The name of the process that asks. None for clients on other hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<String>,
    /// The address of the host that asks. None for this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<IpAddr>,
    /// The path by which the requests come to the agent.
    path: &'static str,
    fingerprint: String,
    /// The hash of the fingerprint. None for `unknown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    keyspace: Option<String>,
    table: Option<String>,
    kind: &'static str,
    count: u64,
    /// The most by which `count` is too high.
    over: u64,
    errors: u64,
    rows: u64,
    bytes_to_database: u64,
    bytes_to_client: u64,
    total_us: u64,
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
    /// Latencies in µs, and how many there were of each, within 3 %. Only where they are asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    latencies: Vec<(u64, u64)>,
}

impl Tops {
    /// Returns a rule's entries.
    pub(super) fn of(&self, rule: &str) -> Arc<Top> {
        let mut tops = self.by_rule.lock();
        let rule = match tops.len() < MAX_RULES || tops.contains_key(rule) {
            true => rule,
            false => OTHERS,
        };
        tops.entry(rule.to_owned()).or_default().clone()
    }

    /// Returns the entries of all rules, the most frequent first; with every latency, if asked.
    pub fn views(&self, with_latencies: bool) -> Vec<TopView> {
        let tops = self.by_rule.lock();
        let tops: Vec<_> = tops.iter().map(|(r, t)| (r.clone(), t.clone())).collect();
        let mut views: Vec<TopView> = tops
            .iter()
            .flat_map(|(rule, top)| top.views(rule, with_latencies))
            .collect();
        views.sort_by(|a, b| {
            b.count
                .cmp(&a.count)
                .then_with(|| a.fingerprint.cmp(&b.fingerprint))
        });
        views
    }
}

impl Top {
    /// Finds the entry of a statement, or makes one.
    pub(super) fn entry(
        &self,
        client: &Client,
        path: Path,
        statement: &Statement,
        fingerprint: Option<&Arc<Fingerprint>>,
    ) -> Arc<Entry> {
        let key = Key {
            client: client.clone(),
            path: path.as_str(),
            statement: statement.clone(),
            fingerprint: fingerprint.cloned(),
        };
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get(&key) {
            return entry.clone();
        }
        let over = match entries.len() < MAX_ENTRIES {
            true => 0,
            false => make_room(&mut entries),
        };
        let entry = Arc::new(Entry::new(key.clone(), over));
        entries.insert(key, entry.clone());
        entry
    }

    fn views(&self, rule: &str, with_latencies: bool) -> Vec<TopView> {
        let entries = self.entries.lock();
        let entries: Vec<_> = entries.values().cloned().collect();
        let views = entries.iter();
        views
            .map(|entry| entry.view(rule, with_latencies))
            .collect()
    }
}

/// Removes the entry of the least frequent statement. Returns its count. Additions of another
/// thread at this very moment are lost.
fn make_room<S: BuildHasher>(entries: &mut HashMap<Key, Arc<Entry>, S>) -> u64 {
    let least = entries
        .values()
        .min_by_key(|entry| entry.count.load(Relaxed));
    let Some(least) = least.cloned() else {
        return 0;
    };
    least.is_gone.store(true, Relaxed);
    entries.remove(&least.key);
    least.count.load(Relaxed)
}

impl Entry {
    fn new(key: Key, over: u64) -> Self {
        Self {
            key,
            count: AtomicU64::new(over),
            over,
            is_gone: AtomicBool::new(false),
            rows: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            bytes_to_database: AtomicU64::new(0),
            bytes_to_client: AtomicU64::new(0),
            total_us: AtomicU64::new(0),
            max_us: AtomicU64::new(0),
            latencies: Latencies::default(),
        }
    }

    /// Whether the entry was removed, so that what is recorded in it is lost.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Relaxed)
    }

    pub(super) fn record(&self, completed: &Completed<'_>, details: &Details) {
        let micros = completed.latency_ns / 1_000;
        self.count.fetch_add(1, Relaxed);
        self.latencies.record(micros);
        self.total_us.fetch_add(micros, Relaxed);
        // The maximum is rarely written: mostly a shared cache line is read.
        if self.max_us.load(Relaxed) < micros {
            self.max_us.fetch_max(micros, Relaxed);
        }
        if let Some(rows) = details.answered.rows {
            self.rows.fetch_add(rows.into(), Relaxed);
        }
        if completed.error.is_some() {
            self.errors.fetch_add(1, Relaxed);
        }
        self.bytes_to_database
            .fetch_add(completed.request_bytes, Relaxed);
        self.bytes_to_client
            .fetch_add(completed.response_bytes, Relaxed);
    }

    fn view(&self, rule: &str, with_latencies: bool) -> TopView {
        let Key {
            client,
            path,
            statement,
            fingerprint,
        } = &self.key;
        let (process, client) = match client {
            Client::Process(name) => (Some(name.to_string()), None),
            Client::Host(address) => (None, Some(*address)),
        };
        let text = fingerprint.as_ref().map(|known| known.text().to_owned());
        TopView {
            rule: rule.to_owned(),
            process,
            client,
            path,
            fingerprint: text.unwrap_or_else(|| "unknown".to_owned()),
            hash: fingerprint
                .as_ref()
                .map(|known| format!("{:016x}", Fingerprint::hash(known))),
            keyspace: statement.keyspace.as_deref().map(str::to_owned),
            table: statement.table.as_deref().map(str::to_owned),
            kind: statement.kind.as_str(),
            count: self.count.load(Relaxed),
            over: self.over,
            errors: self.errors.load(Relaxed),
            rows: self.rows.load(Relaxed),
            bytes_to_database: self.bytes_to_database.load(Relaxed),
            bytes_to_client: self.bytes_to_client.load(Relaxed),
            total_us: self.total_us.load(Relaxed),
            p50_us: self.latencies.quantile(0.5),
            p99_us: self.latencies.quantile(0.99),
            max_us: self.max_us.load(Relaxed),
            latencies: match with_latencies {
                true => self.latencies.each(),
                false => Vec::new(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use cql::{Analysis, StatementKind, StreamId};

    use super::*;

    fn asked(top: &Top, text: &str, times: u64) -> Arc<Entry> {
        asked_by(&Client::Process("app".into()), top, text, times)
    }

    fn asked_by(client: &Client, top: &Top, text: &str, times: u64) -> Arc<Entry> {
        let analysis = Analysis::of(text.as_bytes(), text.len());
        let statement = Arc::new(analysis.statement);
        let fingerprint = Arc::new(analysis.fingerprint);
        let completed = Completed {
            statement: &statement,
            latency_ns: 2_000_000,
            error: None,
            request_bytes: 10,
            response_bytes: 100,
            stream: StreamId(0),
        };
        let mut details = Details::default();
        details.answered.rows = Some(3);
        for _ in 0..times {
            let entry = top.entry(client, Path::Tap, &statement, Some(&fingerprint));
            entry.record(&completed, &details);
        }
        top.entry(client, Path::Tap, &statement, Some(&fingerprint))
    }

    #[test]
    fn statements_that_differ_in_values_are_one() {
        let tops = Tops::default();
        let top = tops.of("r");
        asked(&top, "SELECT a FROM t WHERE k = 1", 2);
        asked(&top, "select a from t where k=2", 1);
        asked(&top, "INSERT INTO t (k) VALUES ('secret')", 2);
        let [first, second] = tops.views(false).try_into().unwrap();
        assert_eq!(first.fingerprint, "SELECT a FROM t WHERE k = ?");
        assert_eq!((first.count, first.over, first.rows), (3, 0, 9));
        assert_eq!(first.total_us, 6_000);
        assert!(first.p50_us.abs_diff(2_000) < 60, "{first:?}");
        assert_eq!(second.fingerprint, "INSERT INTO t (k) VALUES (?)");
        assert_eq!(
            (second.bytes_to_database, second.bytes_to_client),
            (20, 200)
        );
    }

    #[test]
    fn a_statement_counts_for_who_asks() {
        let tops = Tops::default();
        let top = tops.of("r");
        for (name, times) in [("web", 1), ("nightly", 3), ("web", 1)] {
            let client = Client::Process(name.into());
            asked_by(&client, &top, "SELECT a FROM t", times);
        }
        let views = tops.views(false);
        let told = views
            .iter()
            .map(|v| (v.process.as_deref().unwrap(), v.count));
        assert_eq!(told.collect::<Vec<_>>(), [("nightly", 3), ("web", 2)]);
    }

    #[test]
    fn the_frequent_stay_and_no_count_is_too_low() {
        let top = Top::default();
        let often = "SELECT a FROM often";
        asked(&top, often, 500);
        for n in 0..1000 {
            let rare = asked(&top, &format!("SELECT a FROM t{n}"), 2);
            assert!(rare.count.load(Relaxed) >= 2);
            assert!(rare.count.load(Relaxed) - rare.over <= 2);
            assert!(top.entries.lock().len() <= MAX_ENTRIES);
        }
        let frequent = asked(&top, often, 1);
        assert_eq!((frequent.count.load(Relaxed), frequent.over), (501, 0));
    }

    #[test]
    fn who_has_lost_its_place_is_told() {
        let top = Top::default();
        let first = asked(&top, "SELECT a FROM first", 1);
        for n in 0..MAX_ENTRIES {
            assert!(!first.is_gone());
            asked(&top, &format!("SELECT a FROM t{n}"), 2);
        }
        assert!(first.is_gone());
    }

    #[test]
    fn many_rules_share() {
        let tops = Tops::default();
        for n in 0..2 * MAX_RULES {
            tops.of(&n.to_string());
        }
        assert_eq!(tops.by_rule.lock().len(), MAX_RULES + 1);
    }

    #[test]
    fn what_has_no_fingerprint_is_unknown() {
        let tops = Tops::default();
        let statement = Statement {
            kind: StatementKind::Execute,
            keyspace: None,
            table: None,
        };
        let client = Client::Host(IpAddr::from([192, 0, 2, 1]));
        tops.of("r").entry(&client, Path::Tap, &statement, None);
        let views = tops.views(false);
        assert_eq!(views[0].fingerprint, "unknown");
        assert_eq!(views[0].hash, None);
        assert_eq!(views[0].client.unwrap().to_string(), "192.0.2.1");
        assert_eq!(views[0].process, None);
    }
}
