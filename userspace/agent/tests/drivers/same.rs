//! A driver's suite, once through the agent and once from copies of its packets: the reporters tell the same of both, but for
//! times.

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
const MANY: usize = 400;

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
            agent: cassandra.agent_with(cgroup, "enrich", "open", &more),
            folder,
            collector: Collector::start(listener, Says::Thanks),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Everything that was told of the keyspace so far, by reporter.
    fn told(&self, keyspace: &str) -> BTreeMap<&'static str, Records> {
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
        .map(|(reporter, records)| (reporter, of_keyspace(records, keyspace)))
        .into()
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

/// The records of this keyspace, without what is of one run alone.
fn of_keyspace(records: Vec<Value>, keyspace: &str) -> Records {
    let mut told = Records::new();
    for mut record in records {
        if record["keyspace"] != keyspace {
            continue;
        }
        record.as_object_mut().unwrap().retain(|name, _| {
            let is_time = name.ends_with("_us") || name.contains("latency");
            !is_time && !OF_THE_RUN.contains(&name.as_str())
        });
        *told.entry(record.to_string()).or_default() += 1;
    }
    told
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

/// Runs the same application twice. It makes the keyspace and drops it.
pub fn compare(cassandra: &Cassandra, keyspace: &str, application: impl Fn(&Cgroup)) {
    let cgroups = [(); 2].map(|()| Cgroup::new().unwrap());
    let [inline, tapped] = [("inline", &cgroups[0]), ("tap", &cgroups[1])].map(|(path, cgroup)| {
        let way = Way::start(cassandra, cgroup, path);
        // Tapped connections are the application's own: one may have a port that a flow of another test needs.
        let _alone = (path == "tap").then(alone);
        application(cgroup);
        way
    });
    let began = Instant::now();
    loop {
        let (one, other) = (inline.told(keyspace), tapped.told(keyspace));
        let is_whole = one.values().all(|records| !records.is_empty())
            && one["audit"].values().sum::<u64>() >= MANY as u64;
        if is_whole && one == other {
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
    let metrics = tapped.agent.metrics().unwrap();
    for lost in [
        "underpass_tap_gaps_total",
        "underpass_observed_uncopied_frames_total",
    ] {
        let samples = metrics.iter().filter(|(name, _)| name.starts_with(lost));
        assert_eq!(samples.map(|(_, count)| count).sum::<f64>(), 0.0, "{lost}");
    }
}

#[test]
fn python_in_snappy() {
    let Some(suite) = Suite::provided("same::python_in_snappy") else {
        return;
    };
    let keyspace = "underpass_python_same";
    compare(&suite.cassandra, keyspace, |cgroup| {
        let args = [
            "--keyspace",
            keyspace,
            "--protocol",
            "4",
            "--compression",
            "snappy",
        ];
        suite.run(cgroup, "python_suite.py", &args);
    });
}

#[test]
fn rust_in_lz4() {
    let test = "same::rust_in_lz4";
    let Some(cassandra) = Cassandra::provided(test) else {
        return;
    };
    let keyspace = "underpass_rust_same";
    compare(&cassandra, keyspace, |cgroup| {
        in_cgroup(cgroup, async || {
            let lz4 = Some(Compression::Lz4);
            let session = connect_with(&cassandra, test, lz4).await.unwrap();
            workload(&session, keyspace).await;
            run(&session, &format!("DROP KEYSPACE {keyspace}")).await;
        });
    });
}
