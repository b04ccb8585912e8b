//! A driver's suite, once through the agent and once from copies of its packets: the reporters tell the same of both, but for
//! times. Each driver is held to that in each version that it speaks: here, and by `told_of_copies` in the drivers' own files.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use opentelemetry_proto::tonic::trace::v1::Span;
use sandbox::{Agent, Cgroup};
use scylla::client::Compression;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    cassandra::Cassandra,
    collector::{Collector, Says, text},
    python::Suite,
    rust::{connect_with, in_cgroup},
    suite::alone,
    workload::{run, workload},
};

/// For what has been told to be written, and sent.
const WRITTEN: Duration = Duration::from_secs(20);

/// Fewer statements than any suite sends.
const MANY: u64 = 100;

/// Room for a value of 16 MiB that nobody has read yet: in v5 it is copied whole, and records take up to twice their bytes.
const ROOM: &str = "tap_ring_bytes = 67108864";

/// Differences that are shown.
const SHOWN: usize = 6;

/// Fields of one run alone: times, and who was connected by which number.
const OF_THE_RUN: [&str; 15] = [
    "time",
    "unix_ms",
    "flow",
    "client",
    "pid",
    "cgroup",
    "path",
    "stream",
    "coordinator",
    "tracing_id",
    "underpass.flow",
    "underpass.tracing_id",
    "client.port",
    "server.port",
    "network.peer.port",
];

/// The beginning of the names of keyspaces that a driver reads by itself, as often as events and its timers want.
const OF_THE_DATABASE: &str = "system";

/// Kinds of requests that a driver sends as often as it connects, and as its timers want.
const OF_CONNECTIONS: [&str; 4] = ["startup", "auth_response", "options", "register"];

/// Outcomes of such a request whose line is compared. A pool that is closed gives up on connections that it makes, so others
/// are of one run alone.
const ANSWERED: [&str; 2] = ["ok", "error"];

/// A reporter's records and how often it has told each.
type Records = BTreeMap<String, u64>;

/// An agent that only reports, and where it does.
struct Way<'a> {
    agent: Agent<'a>,
    folder: TempDir,
    collector: Collector,
}

impl<'a> Way<'a> {
    fn start(cassandra: &Cassandra, cgroup: &'a Cgroup, path: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let [audit, slow] = ["audit", "slow"].map(|name| folder.path().join(name));
        let more = format!(
            "path = {path:?}\npipeline = [{{ transform = \"stats\" }}, {{ transform = \"count\" }}, \
             {{ transform = \"audit\", file = {audit:?}, statement = true, full = \"drop\" }}, \
             {{ transform = \"slowlog\", file = {slow:?}, over = \"0ms\" }}, \
             {{ transform = \"trace\", endpoint = \"http://{at}\", sample = 1 }}]"
        );
        Self {
            agent: cassandra.agent_with_settings(cgroup, ROOM, "enrich", "open", &more),
            folder,
            collector: Collector::start(listener, Says::Thanks),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Everything that was told so far, by reporter, without fields that differ `by_nature`.
    fn told(&self, by_nature: &[&str]) -> BTreeMap<&'static str, Records> {
        let rows = self.agent.json("/statements").unwrap();
        let top = self.agent.json("/statements/top").unwrap();
        let array = |list: Value| list.as_array().unwrap().clone();
        let spans = self.collector.spans().iter().map(span).collect();
        [
            ("audit", lines_of(&self.file("audit"))),
            ("slowlog", lines_of(&self.file("slow"))),
            ("trace", spans),
            ("stats", array(rows)),
            ("top", array(top)),
        ]
        .map(|(reporter, told)| (reporter, records(told, by_nature)))
        .into()
    }

    /// Requests came to the agent by this path, and by no other.
    fn went_by(&self, path: &str) {
        let top = self.agent.json("/statements/top").unwrap();
        let mut entries = top.as_array().unwrap().iter();
        assert!(entries.all(|entry| entry["path"] == path), "{path}: {top}");
    }
}

fn lines_of(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let whole = text.split_inclusive('\n').filter(|l| l.ends_with('\n'));
    whole.map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn span(span: &Span) -> Value {
    let mut says =
        json!({ "name": span.name, "kind": span.kind, "status": format!("{:?}", span.status) });
    for attribute in &span.attributes {
        says[&attribute.key] = text(&span.attributes, &attribute.key).into();
    }
    says["keyspace"] = says["db.namespace"].clone();
    says
}

/// The records, without what is of one run alone.
fn records(told: Vec<Value>, by_nature: &[&str]) -> Records {
    let mut records = Records::new();
    for mut record in told {
        let text = |field: &str| record[field].as_str().unwrap_or_default();
        if text("keyspace").starts_with(OF_THE_DATABASE) {
            continue;
        }
        // Of those an audit has a line for each, and `stats` only how many there were.
        let is_of_connection = OF_CONNECTIONS.contains(&text("kind"));
        if is_of_connection && !ANSWERED.contains(&text("outcome")) {
            continue;
        }
        record.as_object_mut().unwrap().retain(|name, _| {
            let is_time = name.ends_with("_us") || name.contains("latency");
            let name = name.as_str();
            !is_time && !OF_THE_RUN.contains(&name) && !by_nature.contains(&name)
        });
        let count = records.entry(record.to_string()).or_default();
        *count = if is_of_connection { 1 } else { *count + 1 };
    }
    records
}

/// The first records of which there are more on one side.
fn differences(inline: &Records, tapped: &Records) -> Vec<String> {
    let more = |of: &Records, than: &Records, side: &str| {
        let more = of.iter().filter_map(|(record, count)| {
            let more = count.saturating_sub(than.get(record).copied().unwrap_or(0));
            (more > 0).then(|| format!("{more} more {side}: {record}"))
        });
        more.take(SHOWN).collect::<Vec<_>>()
    };
    [
        more(inline, tapped, "inline"),
        more(tapped, inline, "tapped"),
    ]
    .concat()
}

/// Runs the same application twice.
pub fn compare(cassandra: &Cassandra, application: impl Fn(&Cgroup)) {
    compare_at([cassandra; 2], &[], |_, cgroup| application(cgroup));
}

/// Runs the same application at one database and then at the other, by its number. Fields that differ `by_nature` are not
/// compared.
pub fn compare_at(
    databases: [&Cassandra; 2],
    by_nature: &[&str],
    application: impl Fn(usize, &Cgroup),
) {
    let cgroups = [(); 2].map(|()| Cgroup::new().unwrap());
    let [inline, tapped] = [(0, "inline"), (1, "tap")].map(|(nth, path)| {
        let way = Way::start(databases[nth], &cgroups[nth], path);
        // Tapped connections are the application's own: one may have a port that a flow of another test needs.
        let _alone = (path == "tap").then(alone);
        application(nth, &cgroups[nth]);
        way
    });
    let began = Instant::now();
    loop {
        let (one, other) = (inline.told(by_nature), tapped.told(by_nature));
        if is_whole(&one) && one == other {
            break;
        }
        if began.elapsed() > WRITTEN {
            let differ = |(reporter, records): (&&str, &Records)| {
                let count: u64 = records.values().sum();
                let differ = differences(records, &other[*reporter]).join("\n");
                format!("{reporter}, {count} records:\n{differ}\n")
            };
            // What was lost on the way says whether it could be told at all.
            let samples = tapped.agent.metrics().unwrap();
            let samples = samples.into_iter().filter(|(name, count)| {
                *count > 0.0 && (name.contains("_tap_") || name.contains("_observed_"))
            });
            let samples: Vec<String> = samples.map(|(n, count)| format!("{n} {count}\n")).collect();
            let differences: String = one.iter().map(differ).collect();
            panic!("{differences}{}", samples.concat());
        }
        thread::sleep(Duration::from_millis(100));
    }
    inline.went_by("enrich");
    tapped.went_by("tap");
    let metrics = tapped.agent.metrics().unwrap();
    for lost in [
        "underpass_tap_gaps_total",
        "underpass_observed_uncopied_frames_total",
    ] {
        let samples = metrics.iter().filter(|(name, _)| name.starts_with(lost));
        assert_eq!(samples.map(|(_, count)| count).sum::<f64>(), 0.0, "{lost}");
    }
}

/// Whether there is something to compare: of statements, and of log-ins.
fn is_whole(told: &BTreeMap<&'static str, Records>) -> bool {
    let audit = &told["audit"];
    told.values().all(|records| !records.is_empty())
        && audit.values().sum::<u64>() >= MANY
        && audit.keys().any(|line| line.contains("\"auth_response\""))
}

#[test]
fn python_in_snappy() {
    python("same::python_in_snappy", "4", "snappy");
}

#[test]
fn python_in_v5() {
    python("same::python_in_v5", "5", "none");
}

fn python(test: &str, version: &str, compression: &str) {
    let Some(suite) = Suite::provided(test) else {
        return;
    };
    let keyspace = format!("underpass_python_same_v{version}");
    compare(&suite.cassandra, |cgroup| {
        let args = [
            ["--keyspace", &keyspace],
            ["--protocol", version],
            ["--compression", compression],
        ];
        suite.run(cgroup, "python_suite.py", args.as_flattened());
    });
}

#[test]
fn rust_in_lz4() {
    let test = "same::rust_in_lz4";
    let Some(cassandra) = Cassandra::provided(test) else {
        return;
    };
    let keyspace = "underpass_rust_same";
    compare(&cassandra, |cgroup| {
        in_cgroup(cgroup, async || {
            let lz4 = Some(Compression::Lz4);
            let session = connect_with(&cassandra, test, lz4).await.unwrap();
            workload(&session, keyspace).await;
            run(&session, &format!("DROP KEYSPACE {keyspace}")).await;
        });
    });
}
