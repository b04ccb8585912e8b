//! Load that a fleet is for its etcd, measured with a real one and 200 hosts in this process. Writes `bench/results/etcd.json`, of which a test
//! writes `docs/scale.md` (`UPDATE_DOCS=1 cargo test -p underpass --test host scale`).
//!
//! `cargo run -p underpass-policy-source --example fleet`

#![expect(
    clippy::unwrap_used,
    reason = "who runs it by hand sees why it could not measure"
)]

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use limits::Limit;
use policy_source::{
    ETCD, Fleet, Follower, Fragment, Fragments, Pace, Settings, Sharer, Verdict, dial_plainly,
};
use sandbox::{Etcd, measured};
use serde_json::{Value, json};
use tls::Endpoint;
use tokio::{sync::watch, task::JoinSet, time};

const HOSTS: usize = 200;

/// The time of a measurement.
const LOOK: Duration = Duration::from_secs(12);

/// Tenants of the limit that hosts share, of which each host has some.
const TENANTS: usize = 100;
const TENANTS_OF_A_HOST: usize = 10;

/// Files of the policy that is pushed, and rules of each.
const FILES: usize = 10;
const RULES: usize = 100;

/// Counts of etcd's so far.
#[derive(Clone, Copy)]
struct Counted {
    at: Instant,
    sent: f64,
    received: f64,
    puts: f64,
    cpu: f64,
}

impl Counted {
    fn now(etcd: &Etcd<'_>) -> Self {
        let metric = |name: &str| metric(etcd, name);
        Self {
            at: Instant::now(),
            sent: metric("etcd_network_client_grpc_sent_bytes_total"),
            received: metric("etcd_network_client_grpc_received_bytes_total"),
            puts: metric("etcd_debugging_mvcc_put_total"),
            cpu: metric("process_cpu_seconds_total"),
        }
    }

    /// Returns what was counted since, all in all.
    fn since(&self, before: &Self) -> Value {
        json!({
            "seconds": (self.at - before.at).as_secs_f64(),
            "sent_bytes": self.sent - before.sent,
            "received_bytes": self.received - before.received,
            "puts": self.puts - before.puts,
            "cpu_seconds": self.cpu - before.cpu,
        })
    }
}

/// A metric of etcd's.
fn metric(etcd: &Etcd<'_>, name: &str) -> f64 {
    let endpoints = etcd.endpoints();
    let at = endpoints
        .first()
        .and_then(|url| url.strip_prefix("http://"));
    let mut stream = TcpStream::connect(at.unwrap()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    let mut lines = said.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap().parse().unwrap()
}

fn settings(etcd: &Etcd<'_>) -> Settings {
    let endpoints = etcd.endpoints();
    Settings {
        endpoints: endpoints
            .iter()
            .map(|url| Endpoint::parse(url, ETCD).unwrap())
            .collect(),
        prefix: "/underpass".to_owned(),
        login: None,
        tls: None,
    }
}

/// Hosts that follow the policy, and take everything.
fn follow(etcd: &Etcd<'_>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for number in 0..HOSTS {
        let (offers, verdicts) = (
            watch::Sender::new(None::<Arc<Fragments>>),
            watch::Sender::new(None),
        );
        let mut offered = offers.subscribe();
        let follower = Follower {
            settings: settings(etcd),
            host: format!("host{number}.example"),
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            pace: Pace::default(),
            dial: dial_plainly(),
            offers,
            verdicts: verdicts.subscribe(),
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
                    refused: BTreeMap::new(),
                    kept: None,
                }));
            }
        });
    }
    tasks
}

/// Waits until all hosts have a policy.
async fn all_have(fleet: &mut Fleet, digest: &str) {
    loop {
        let statuses = fleet.statuses().await.unwrap();
        if statuses.iter().filter(|status| status.has(digest)).count() == HOSTS {
            return;
        }
        time::sleep(Duration::from_millis(200)).await;
    }
}

fn policy() -> Fragments {
    let rule = |n: usize| {
        format!(
            "[[rule]]\nname = \"r{n}\"\nto = [\"10.0.0.1:{}\"]\naction = \"bypass\"\n",
            n + 1
        )
    };
    let file = |n: usize| Fragment {
        name: format!("{n}.toml"),
        text: (n * RULES..(n + 1) * RULES).map(rule).collect(),
    };
    Fragments::new(0, (0..FILES).map(file).collect()).unwrap()
}

/// Hosts that share a limit whose tenants never ask for the same twice.
fn share(etcd: &Etcd<'_>) -> JoinSet<()> {
    let (mut tasks, mut shares) = (JoinSet::new(), Vec::new());
    for number in 0..HOSTS {
        let limit = Arc::new(Limit::new("shop.user", 1_000.0));
        for tenant in 0..TENANTS_OF_A_HOST {
            let tenant = (number * TENANTS_OF_A_HOST / 3 + tenant) % TENANTS;
            shares.push(limit.share(&tenant.to_string()));
        }
        let limits = watch::Sender::new(vec![limit]);
        let sharer = Sharer {
            settings: settings(etcd),
            host: format!("host{number}.example"),
            pace: Pace::default(),
            dial: dial_plainly(),
            limits: limits.subscribe(),
            tell: Box::new(|_| {}),
        };
        tasks.spawn(async move {
            let _held = limits;
            match sharer.run().await {}
        });
    }
    thread::spawn(move || {
        loop {
            for share in &shares {
                (0..fastrand::usize(..40)).for_each(|_| share.count(false));
            }
            thread::sleep(Duration::from_millis(500));
        }
    });
    tasks
}

async fn measure(etcd: &Etcd<'_>) -> Value {
    let following = follow(etcd);
    let mut fleet = Fleet::connect(&settings(etcd), &dial_plainly())
        .await
        .unwrap();
    let wanted = fleet.wanted().await.unwrap().unwrap().digest();
    all_have(&mut fleet, &wanted).await;
    time::sleep(Duration::from_secs(2)).await;
    let before = Counted::now(etcd);
    time::sleep(LOOK).await;
    let idle = Counted::now(etcd).since(&before);

    let fragments = policy();
    let (digest, bytes) = (
        fragments.digest(),
        fragments
            .files
            .iter()
            .map(|file| file.text.len())
            .sum::<usize>(),
    );
    let before = Counted::now(etcd);
    fleet.push(fragments, None, 0).await.unwrap();
    all_have(&mut fleet, &digest).await;
    let push = Counted::now(etcd).since(&before);
    let memory = metric(etcd, "process_resident_memory_bytes");
    drop((following, fleet));

    let sharing = share(etcd);
    time::sleep(Duration::from_secs(6)).await;
    let before = Counted::now(etcd);
    time::sleep(LOOK).await;
    let shared = Counted::now(etcd).since(&before);
    let length = |key: &str| {
        let args = [
            "get",
            "--print-value-only",
            &format!("/underpass/limits/{key}"),
        ];
        etcd.ctl(0, &args).unwrap().trim().len()
    };
    let (record, levels) = (length("hosts/host7.example"), length("fleet/levels"));
    drop(sharing);
    json!({
        "circumstances": measured::circumstances(),
        "hosts": HOSTS,
        "idle": idle,
        "push": {"rules": FILES * RULES, "bytes": bytes, "seen": push},
        "memory_bytes": memory,
        "sharing": {
            "tenants": TENANTS, "tenants_of_a_host": TENANTS_OF_A_HOST,
            "record_bytes": record, "levels_bytes": levels, "seen": shared,
        },
    })
}

fn main() {
    let etcd = Etcd::start(None, 1).unwrap();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let measured = runtime.block_on(measure(&etcd));
    let text = serde_json::to_string_pretty(&measured).unwrap() + "\n";
    fs::write(measured::file("etcd.json"), &text).unwrap();
    println!("{text}");
}
