//! Load that a cluster with many nodes is for its API server, of which `docs/scale.md` tells: measured with a real one, and as many followers as nodes
//! in this process.

use std::{
    env, fs,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use policy_source::{
    API_SERVER, KubernetesCounter, KubernetesFollower, KubernetesSettings, OwnPod, Pace,
    PolicyFile, RulesTake, Verdict, dial_plainly,
};
use sandbox::{Sandbox, measured, run_in, skip::skip};
use serde_json::{Value, json};
use tls::{Dialling, Endpoint};
use tokio::{
    sync::{oneshot, watch},
    task::JoinSet,
};

use super::{CHART, cluster::Cluster, cluster::SERVER, clusters, in_time, token};

const NODES: usize = 200;

/// Rules of the policy that is changed.
const RULES: usize = 20;

/// The time of a measurement: a change's status is written after four seconds, and after eight if it was not complete.
const LOOK: Duration = Duration::from_secs(15);

/// The longest time until each node has said what it has.
const SAID_WITHIN: Duration = Duration::from_secs(60);

/// A measured figure is within this factor of what is committed.
const FACTOR: f64 = 2.0;

/// Counts of the API server's so far.
struct Counted {
    at: Instant,
    cpu: f64,
    memory: f64,
    /// Requests that are no watches.
    requests: f64,
    /// Watches that are there.
    watches: f64,
    /// Events of the agent's own kinds.
    events: [Events; KINDS.len()],
}

/// Events of a kind.
#[derive(Clone, Copy)]
struct Events {
    /// Events, each as often as it was sent.
    sent: f64,
    /// Events, each as often as it was encoded, which is once for many watchers; and the bytes of that.
    encoded: f64,
    bytes: f64,
}

/// Kinds, as metrics name them.
const KINDS: [&str; 2] = ["clusterunderpass", "underpassnode"];

/// The sum of a metric's samples with all of these words in them.
fn sum(metrics: &str, name: &str, with: &[&str]) -> f64 {
    let samples = metrics.lines().filter(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(['{', ' ']))
            && with.iter().all(|word| line.to_lowercase().contains(word))
    });
    let values = samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum()
}

impl Counted {
    fn now(cluster: &Cluster<'_>) -> Self {
        let metrics = cluster.does(&["get", "--raw", "/metrics"]);
        let of = |name: &str, with: &[&str]| sum(&metrics, name, with);
        let ours = ["group=\"underpass.dev\""];
        let events = KINDS.map(|kind| Events {
            sent: of("apiserver_watch_events_total", &[ours[0], kind]),
            encoded: of("apiserver_watch_events_sizes_count", &[ours[0], kind]),
            bytes: of("apiserver_watch_events_sizes_sum", &[ours[0], kind]),
        });
        Self {
            at: Instant::now(),
            cpu: of("process_cpu_seconds_total", &[]),
            memory: of("process_resident_memory_bytes", &[]),
            requests: of("apiserver_request_total", &ours)
                - of("apiserver_request_total", &[ours[0], "verb=\"watch\""]),
            watches: of(
                "apiserver_longrunning_requests",
                &["verb=\"watch\"", ours[0]],
            ),
            events,
        }
    }

    fn since(&self, before: &Self) -> Value {
        let (mut events, mut bytes) = (0.0, 0.0);
        for (now, then) in self.events.iter().zip(&before.events) {
            let sent = now.sent - then.sent;
            let encoded = (now.encoded - then.encoded).max(1.0);
            events += sent;
            bytes += sent * (now.bytes - then.bytes) / encoded;
        }
        json!({
            "seconds": (self.at - before.at).as_secs_f64(),
            "cpu_seconds": self.cpu - before.cpu,
            "requests": self.requests - before.requests,
            "events": events,
            "event_bytes": bytes,
        })
    }
}

fn settings(
    cluster: &Cluster<'_>,
    token: &Path,
    node: String,
    pod: Option<OwnPod>,
) -> Arc<KubernetesSettings> {
    Arc::new(KubernetesSettings {
        server: Endpoint::parse(SERVER, API_SERVER).unwrap(),
        tls: Dialling {
            ca: cluster.path("ca.crt"),
            server_name: None,
            own: None,
        },
        token_file: Some(token.to_owned()),
        node,
        pod,
    })
}

/// Puts followers of so many nodes among the tasks, which take every policy, and the counter.
fn begin(cluster: &Cluster<'_>, tokens: [&Path; 2], tasks: &mut JoinSet<()>) {
    for number in 0..NODES {
        let node = format!("node{number}");
        let pod = OwnPod {
            name: format!("underpass-{number}"),
            namespace: "underpass".to_owned(),
            uid: format!("0c0ffee0-0000-4000-8000-{number:012}"),
        };
        let (offers, verdicts) = (watch::Sender::new(None), watch::Sender::new(None));
        let mut offered = offers.subscribe();
        let follower = KubernetesFollower {
            settings: settings(cluster, tokens[0], node, Some(pod)),
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            pace: Pace::default(),
            since: 0,
            dial: dial_plainly(),
            text: Box::new(|object| {
                Ok(PolicyFile {
                    text: object.spec.to_string(),
                    take: RulesTake {
                        rules: RULES,
                        ..RulesTake::default()
                    },
                })
            }),
            offers,
            verdicts: verdicts.subscribe(),
            pods: watch::Sender::default(),
            tell: Box::new(|_| {}),
        };
        tasks.spawn(async { match follower.run().await {} });
        tasks.spawn(async move {
            while offered.changed().await.is_ok() {
                let Some(offer) = offered.borrow_and_update().clone() else {
                    continue;
                };
                let digest = offer.digest();
                verdicts.send_replace(Some(Verdict {
                    revision: offer.revision,
                    version: offer.version,
                    digest: digest.clone(),
                    error: None,
                    in_force: digest,
                    in_force_version: offer.version,
                    refused: Default::default(),
                    kept: None,
                }));
            }
        });
    }
    let counter = KubernetesCounter {
        settings: settings(cluster, tokens[1], String::new(), None),
        namespace: "underpass".to_owned(),
        daemon_set: "u-underpass".to_owned(),
        pace: Pace::default(),
        dial: dial_plainly(),
        tell: Box::new(|_| {}),
    };
    tasks.spawn(async { match counter.run().await {} });
}

/// A cluster's policy, which is another one each time.
fn policy(time: usize) -> String {
    let rule = |n: usize| {
        format!(
            r#"{{"name": "r{n}", "action": "bypass", "to": ["10.{time}.0.1:{}"]}}"#,
            9_000 + n
        )
    };
    let rules: Vec<String> = (0..RULES).map(rule).collect();
    clusters("shop", &rules.join(", "))
}

/// Waits until the policy's status says that all have it.
fn all_have(cluster: &Cluster<'_>) {
    let status = "jsonpath={.status.inForce} {.status.observedGeneration} {.metadata.generation}";
    in_time("all nodes have it", || {
        let said = cluster.does(&["get", "clusterunderpasspolicy", "shop", "-o", status]);
        let mut words = said.split(' ');
        let in_force = words.next() == Some(&format!("{NODES}/{NODES}"));
        in_force && words.next() == words.next()
    });
}

fn measure(cluster: &Cluster<'_>) -> Value {
    let said = Instant::now();
    while cluster
        .does(&["get", "underpassnodes", "-n", "underpass", "-o", "name"])
        .lines()
        .count()
        < NODES
    {
        assert!(said.elapsed() < SAID_WITHIN, "nodes say nothing");
        thread::sleep(Duration::from_millis(500));
    }
    // The first one, which makes the nodes' objects longer.
    cluster.applies(&policy(0));
    all_have(cluster);
    // A watch that had nothing to say gets a bookmark each minute: those of one look say little, and are left out.
    let before = Counted::now(cluster);
    thread::sleep(LOOK);
    let idle = Counted::now(cluster).since(&before);
    let (text, before) = (policy(1), Counted::now(cluster));
    cluster.applies(&text);
    thread::sleep(LOOK);
    let now = Counted::now(cluster);
    all_have(cluster);
    json!({
        "circumstances": measured::circumstances(),
        "nodes": NODES,
        "rules": RULES,
        "policy_bytes": text.len(),
        "watches": now.watches,
        "memory_bytes": now.memory,
        "idle": idle,
        "change": now.since(&before),
    })
}

#[test]
fn a_change_costs_an_api_server_what_the_page_says() {
    let host = Sandbox::new().unwrap();
    let Some(cluster) = Cluster::start(&host.netns) else {
        skip(
            "a_change_costs_an_api_server_what_the_page_says",
            "UNDERPASS_KUBERNETES names no API server: `cargo xtask kubernetes` builds one",
        );
        return;
    };
    cluster.does(&["create", "namespace", "underpass"]);
    cluster.applies(&cluster.chart(Path::new(CHART), &[]));
    cluster.does(&[
        "wait",
        "--for=condition=Established",
        "crd",
        "--all",
        "--timeout=60s",
    ]);
    let folder = tempfile::tempdir().unwrap();
    let (agents, counter) = (
        folder.path().join("token"),
        folder.path().join("counter.token"),
    );
    token(&cluster, "u-underpass", &agents);
    token(&cluster, "u-underpass-counter", &counter);
    let (stop, stopped) = oneshot::channel::<()>();
    let found = thread::scope(|scope| {
        // When this thread panics the sender goes, and the other thread ends.
        let stop = stop;
        let following = scope.spawn(|| {
            run_in(Some(&host.netns), None, || {
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                runtime.enable_all().build().unwrap().block_on(async {
                    let mut tasks = JoinSet::new();
                    begin(&cluster, [&agents, &counter], &mut tasks);
                    let _ = stopped.await;
                });
            })
        });
        let found = measure(&cluster);
        drop(stop);
        following.join().unwrap().unwrap();
        found
    });
    let file = measured::file("api-server.json");
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&file, serde_json::to_string_pretty(&found).unwrap() + "\n").unwrap();
    }
    let committed: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    for place in [
        "/watches",
        "/change/requests",
        "/change/events",
        "/change/event_bytes",
    ] {
        let [now, then] =
            [&found, &committed].map(|of| of.pointer(place).and_then(Value::as_f64).unwrap());
        assert!(
            now < then * FACTOR && then < now * FACTOR,
            "bench/results/api-server.json is stale: {place} is {now}: `UPDATE_DOCS=1 cargo xtask kubernetes` writes it"
        );
    }
}
