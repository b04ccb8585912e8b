//! Rates of what was asked between two looks at the agent's most frequent statements.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::{Duration, Instant},
};

use clap::ValueEnum;
use policy::{FilterFact, FilterKey, Filtered};
use serde::{Deserialize, Serialize};

/// The time over which rates and latencies are taken.
pub const WINDOW: Duration = Duration::from_secs(10);

/// A statement, and who asks it by which path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub struct Asked {
    pub rule: String,
    /// The name of the process. None for clients on other hosts.
    pub process: Option<String>,
    /// The address of a client on another host.
    pub client: Option<String>,
    /// How the requests come to the agent: by copies of packets (`tap`) or through it (`enrich`).
    pub path: String,
    pub keyspace: Option<String>,
    pub table: Option<String>,
    pub kind: String,
    /// The statement without its values.
    #[serde(rename = "fingerprint")]
    pub statement: String,
}

impl Asked {
    /// Returns the process, or the address of a client on another host.
    pub fn who(&self) -> &str {
        let who = self.process.as_ref().or(self.client.as_ref());
        who.map_or("-", String::as_str)
    }

    /// Returns `keyspace.table`, as far as they are known.
    pub fn table(&self) -> String {
        match (&self.keyspace, &self.table) {
            (Some(keyspace), Some(table)) => format!("{keyspace}.{table}"),
            (None, Some(only)) | (Some(only), None) => only.clone(),
            (None, None) => "-".into(),
        }
    }

    /// Whether this text is in who asks, the table, the rule or the statement, in whatever case.
    pub fn has(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        let table = self.table();
        let fields = [self.who(), &table, &self.rule, &self.statement, &self.kind];
        fields
            .iter()
            .any(|field| field.to_lowercase().contains(&text))
    }
}

impl Filtered for Asked {
    fn fact(&self, key: FilterKey) -> Option<FilterFact<'_>> {
        let text =
            |text: &'_ Option<String>| text.clone().map(|text| FilterFact::Text(text.into()));
        match key {
            FilterKey::Rule => Some(self.rule.as_str().into()),
            FilterKey::Kind => Some(self.kind.as_str().into()),
            FilterKey::Path => Some(self.path.as_str().into()),
            FilterKey::Process => text(&self.process),
            FilterKey::Keyspace => text(&self.keyspace),
            FilterKey::Table => text(&self.table),
            FilterKey::Client => {
                let ip = self.client.as_ref()?.parse().ok()?;
                Some(FilterFact::Address(ip, None))
            }
            _ => None,
        }
    }
}

/// Counts since the agent began to count the statement.
#[derive(Clone, Debug, Default, Deserialize)]
struct Counts {
    count: u64,
    /// The part of `count` that is others'.
    over: u64,
    errors: u64,
    rows: u64,
    bytes_to_database: u64,
    bytes_to_client: u64,
    /// Latencies in µs, and how many there were of each.
    latencies: Vec<(u64, u64)>,
}

impl Counts {
    fn own(&self) -> u64 {
        self.count.saturating_sub(self.over)
    }
}

#[derive(Deserialize)]
struct Entry {
    #[serde(flatten)]
    asked: Asked,
    #[serde(flatten)]
    counts: Counts,
}

/// The agent's answer at one time.
#[derive(Debug)]
pub struct Sample {
    at: Instant,
    counts: HashMap<Asked, Counts>,
}

impl Sample {
    /// Reads an answer of `/statements/top?latencies`.
    ///
    /// # Errors
    /// It is something else.
    pub fn parse(text: &str, at: Instant) -> serde_json::Result<Self> {
        let entries: Vec<Entry> = serde_json::from_str(text)?;
        let counts = entries.into_iter().map(|entry| (entry.asked, entry.counts));
        Ok(Self {
            at,
            counts: counts.collect(),
        })
    }
}

/// A statement's rates and latencies over a while.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub asked: Asked,
    /// Requests a second.
    pub per_second: f64,
    /// ERROR responses a second.
    pub errors_per_second: f64,
    /// Rows of results a second.
    pub rows_per_second: f64,
    /// Bytes of requests and responses a second.
    pub bytes_per_second: f64,
    /// Latencies in µs, within 3 %.
    pub p50_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
}

/// The order of rows, the largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Requests a second
    #[default]
    Rate,
    /// Time that is waited for answers, in all
    Time,
    /// The latency that one of a hundred exceeds
    P99,
    /// Errors a second
    Errors,
    /// Bytes a second
    Bytes,
}

impl Sort {
    /// Returns the order after this one.
    pub fn next(self) -> Self {
        let all = Self::value_variants();
        let at = all.iter().position(|one| *one == self).unwrap_or(0);
        all.get(at + 1).copied().unwrap_or_default()
    }

    fn key(self, row: &Row) -> f64 {
        match self {
            Self::Rate => row.per_second,
            Self::Time => row.per_second * row.p50_us as f64,
            Self::P99 => row.p99_us as f64,
            Self::Errors => row.errors_per_second,
            Self::Bytes => row.bytes_per_second,
        }
    }

    /// Orders rows; equal ones by name, so that lines do not jump.
    pub fn sort(self, rows: &mut [Row]) {
        rows.sort_by(|a, b| {
            let by_key = self.key(b).total_cmp(&self.key(a));
            by_key.then_with(|| a.asked.cmp(&b.asked))
        });
    }
}

/// The samples of the last [`WINDOW`], and what comes of them.
#[derive(Debug, Default)]
pub struct Rates {
    samples: VecDeque<Sample>,
}

impl Rates {
    /// Adds the newest sample.
    pub fn add(&mut self, sample: Sample) {
        let is_old = |old: &Sample| sample.at.duration_since(old.at) > WINDOW;
        // The one before the window is where it begins.
        while self.samples.get(1).is_some_and(is_old) {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// Returns what was asked since the oldest sample, in no order. Nothing before there are two.
    pub fn rows(&self) -> Vec<Row> {
        match (self.samples.front(), self.samples.back()) {
            (Some(before), Some(now)) if before.at < now.at => rows(before, now),
            _ => Vec::new(),
        }
    }

    /// Returns the requests between each two samples, the oldest first.
    pub fn history(&self, asked: &Asked) -> Vec<u64> {
        let own = |sample: &Sample| sample.counts.get(asked).map_or(0, Counts::own);
        let counts: Vec<u64> = self.samples.iter().map(own).collect();
        let pairs = counts.windows(2);
        pairs
            .filter_map(|pair| match pair {
                [before, now] => Some(now.saturating_sub(*before)),
                _ => None,
            })
            .collect()
    }
}

fn rows(before: &Sample, now: &Sample) -> Vec<Row> {
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    let none = Counts::default();
    let rows = now.counts.iter().filter_map(|(asked, counts)| {
        let earlier = before.counts.get(asked).unwrap_or(&none);
        // Its entry was another statement's meanwhile: it begins anew.
        let earlier = match earlier.own() <= counts.own() {
            true => earlier,
            false => &none,
        };
        let rate = |of: fn(&Counts) -> u64| of(counts).saturating_sub(of(earlier)) as f64 / seconds;
        let latencies = between(&earlier.latencies, &counts.latencies);
        let per_second = rate(Counts::own);
        (per_second > 0.0).then(|| Row {
            asked: asked.clone(),
            per_second,
            errors_per_second: rate(|c| c.errors),
            rows_per_second: rate(|c| c.rows),
            bytes_per_second: rate(|c| c.bytes_to_database + c.bytes_to_client),
            p50_us: quantile(&latencies, 0.5),
            p99_us: quantile(&latencies, 0.99),
            max_us: quantile(&latencies, 1.0),
        })
    });
    rows.collect()
}

/// The latencies that came between two looks.
fn between(before: &[(u64, u64)], now: &[(u64, u64)]) -> BTreeMap<u64, u64> {
    let before: HashMap<u64, u64> = before.iter().copied().collect();
    let new = |(us, n): &(u64, u64)| (*us, n - before.get(us).copied().unwrap_or(0).min(*n));
    now.iter().map(new).filter(|(_, n)| *n > 0).collect()
}

/// The latency in µs that this part does not exceed. 0 if there are none.
fn quantile(latencies: &BTreeMap<u64, u64>, part: f64) -> u64 {
    let count: u64 = latencies.values().sum();
    let rank = ((count as f64 * part).ceil() as u64).max(1);
    let mut seen = 0;
    let found = latencies.iter().find(|(_, n)| {
        seen += **n;
        seen >= rank
    });
    found.map_or(0, |(us, _)| *us)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn entry(statement: &str, count: u64, latencies: Value) -> Value {
        json!({
            "rule": "r", "process": "web", "path": "tap", "fingerprint": statement, "hash": "0",
            "keyspace": "shop", "table": "t", "kind": "select", "count": count, "over": 0, "errors": count / 10,
            "rows": count, "bytes_to_database": 10 * count, "bytes_to_client": 90 * count, "total_us": 0,
            "p50_us": 0, "p99_us": 0, "max_us": 0, "latencies": latencies,
        })
    }

    fn sample(begun: Instant, seconds: u64, entries: Value) -> Sample {
        Sample::parse(&entries.to_string(), begun + Duration::from_secs(seconds)).unwrap()
    }

    #[test]
    fn rates_are_of_the_time_between() {
        let (begun, mut rates) = (Instant::now(), Rates::default());
        rates.add(sample(
            begun,
            0,
            json!([entry("s", 100, json!([[50, 100]]))]),
        ));
        assert_eq!(rates.rows(), []);
        let later = json!([[50, 150], [900, 49], [7000, 1]]);
        rates.add(sample(begun, 2, json!([entry("s", 200, later)])));
        let [row] = rates.rows().try_into().unwrap();
        assert_eq!(
            (row.per_second, row.errors_per_second, row.rows_per_second),
            (50.0, 5.0, 50.0)
        );
        assert_eq!(row.bytes_per_second, 5000.0);
        assert_eq!((row.p50_us, row.p99_us, row.max_us), (50, 900, 7000));
        assert_eq!(
            (row.asked.who(), row.asked.table().as_str()),
            ("web", "shop.t")
        );
        assert_eq!(rates.history(&row.asked), [100]);
    }

    #[test]
    fn what_lies_before_the_window_is_forgotten() {
        let (begun, mut rates) = (Instant::now(), Rates::default());
        for second in 0..60 {
            // A burst, and nothing afterwards.
            let count = if second < 5 { 100 * second } else { 500 };
            rates.add(sample(
                begun,
                second,
                json!([entry("s", count, json!([[1, count]]))]),
            ));
        }
        assert_eq!(rates.rows(), []);
        assert!(rates.samples.len() <= 12, "{}", rates.samples.len());
    }

    #[test]
    fn an_entry_that_was_anothers_begins_anew() {
        let (begun, mut rates) = (Instant::now(), Rates::default());
        rates.add(sample(
            begun,
            0,
            json!([entry("s", 1000, json!([[1, 1000]]))]),
        ));
        let mut again = entry("s", 1010, json!([[2, 10]]));
        again["over"] = 1000.into();
        rates.add(sample(begun, 1, json!([again])));
        let [row] = rates.rows().try_into().unwrap();
        assert_eq!((row.per_second, row.p50_us), (10.0, 2));
    }

    #[test]
    fn every_order_puts_the_largest_first_and_keeps_equals_in_place() {
        let row = |name: &str, n: f64| Row {
            asked: Asked {
                statement: name.into(),
                ..Asked::default()
            },
            per_second: n,
            errors_per_second: n,
            rows_per_second: n,
            bytes_per_second: n,
            p50_us: n as u64,
            p99_us: n as u64,
            max_us: n as u64,
        };
        for sort in Sort::value_variants() {
            let mut rows = [row("b", 1.0), row("a", 1.0), row("c", 2.0)];
            sort.sort(&mut rows);
            assert_eq!(
                rows.each_ref().map(|r| r.asked.statement.as_str()),
                ["c", "a", "b"]
            );
        }
        let all = (0..Sort::value_variants().len()).fold(Sort::default(), |sort, _| sort.next());
        assert_eq!(all, Sort::default());
    }

    #[test]
    fn a_filter_looks_at_everything_that_is_shown() {
        let asked = Asked {
            process: Some("web".into()),
            keyspace: Some("shop".into()),
            table: Some("Carts".into()),
            statement: "SELECT v FROM shop.\"Carts\"".into(),
            ..Asked::default()
        };
        for text in ["WEB", "shop.carts", "select v", ""] {
            assert!(asked.has(text), "{text}");
        }
        assert!(!asked.has("orders"));
    }
}
