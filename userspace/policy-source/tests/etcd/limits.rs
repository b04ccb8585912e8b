//! Limits that hosts share: the lease on what each wants.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use limits::Limit;
use policy_source::{Pace, Sharer, Sharing, dial_plainly};
use sandbox::Etcd;
use tokio::{sync::watch, task::JoinSet};

use super::common::{PACE, PATIENCE, Runtime, eventually, runtime, settings};

const PREFIX: &str = "/underpass/limits";

const RATE: f64 = 1000.0;

/// A host that shares limits, as this test has them.
struct Host {
    limits: watch::Sender<Vec<Arc<Limit>>>,
    /// News, in their order.
    said: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl Host {
    fn new(runtime: &Runtime, etcd: &Etcd<'_>, pace: Pace, limit: &Arc<Limit>) -> Self {
        let limits = watch::Sender::new(vec![limit.clone()]);
        let said = Arc::new(Mutex::new(Vec::new()));
        let sharer = Sharer {
            settings: settings(&etcd.endpoints()),
            host: "h".to_owned(),
            pace,
            dial: dial_plainly(),
            limits: limits.subscribe(),
            tell: {
                let said = said.clone();
                Box::new(move |news| match news {
                    Sharing::InStep => said.lock().unwrap().push("in step".to_owned()),
                    Sharing::Failed(failure) => said.lock().unwrap().push(failure.to_string()),
                    Sharing::Looked { .. } => {}
                })
            },
        };
        let mut tasks = JoinSet::new();
        tasks.spawn_on(async { match sharer.run().await {} }, runtime.handle());
        Self {
            limits,
            said,
            _tasks: tasks,
        }
    }

    fn said(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }
}

fn limit() -> Arc<Limit> {
    Arc::new(Limit::new("shop.user", RATE))
}

fn put(etcd: &Etcd<'_>, key: &str, value: &str) {
    let key = format!("{PREFIX}/{key}");
    etcd.ctl(0, &["put", &key, value]).unwrap();
}

/// Has somebody else lead, whose levels are this test's.
fn lead(etcd: &Etcd<'_>) {
    put(etcd, "fleet/leader", "another");
}

#[test]
fn a_lease_is_as_long_as_the_fleets_period_asks_for() {
    let etcd = Etcd::start(None, 1).unwrap();
    let runtime = runtime();
    let levels = |period_ms: u64| {
        let levels = format!("{{\"seen\":0,\"period_ms\":{period_ms},\"limits\":{{}}}}");
        put(&etcd, "fleet/levels", &levels);
    };
    lead(&etcd);
    let host = Host::new(&runtime, &etcd, PACE, &limit());
    let key = format!("{PREFIX}/hosts/h");
    // As `etcdctl lease timetolive` says it: granted with TTL(4s).
    let number = |key: &str, of: &str| -> Option<i64> {
        let found = etcd.ctl(0, &["get", key, "--write-out", "json"]).unwrap();
        let (_, number) = found.split_once(&format!("\"{of}\":"))?;
        let number = number.split(|c: char| !c.is_ascii_digit()).next()?;
        number.parse().ok()
    };
    let granted = || {
        let lease = format!("{:x}", number(&key, "lease")?);
        let said = etcd.ctl(0, &["lease", "timetolive", &lease]).ok()?;
        let (_, granted) = said.split_once("TTL(")?;
        Some(granted.split_once("s)")?.0.to_owned())
    };
    let has = |seconds: &str| {
        eventually(&format!("a lease of {seconds} s"), PATIENCE, || {
            granted().as_deref() == Some(seconds)
        })
    };
    has("4");
    levels(3_000);
    has("12");
    // A little more is none of its business.
    levels(4_000);
    std::thread::sleep(Duration::from_secs(5));
    has("12");
    levels(1_000);
    has("4");
    // Long after the first lease has ended, the host is still there.
    assert!(etcd.ctl(0, &["get", &key]).unwrap().contains("shop.user"));

    // A leader goes on to lead, on the lease that it has then.
    let leader = format!("{PREFIX}/fleet/leader");
    etcd.ctl(0, &["del", &leader]).unwrap();
    eventually("it leads", PATIENCE, || number(&leader, "lease").is_some());
    let (since, before) = (number(&leader, "create_revision"), number(&leader, "lease"));
    eventually("it leads on another lease", PATIENCE, || {
        // Its own levels take the place of these.
        levels(3_000);
        let lease = number(&leader, "lease");
        lease != before && lease == number(&key, "lease")
    });
    assert_eq!(number(&leader, "create_revision"), since);
    assert_eq!(host.said(), ["in step"]);
}

#[test]
fn a_reload_while_etcd_is_away_has_the_hosts_share_at_once() {
    let mut etcd = Etcd::start(None, 1).unwrap();
    let runtime = runtime();
    lead(&etcd);
    // A lease of four minutes, a third of which is more than the longest wait.
    let levels = "{\"seen\":0,\"period_ms\":60000,\"limits\":{\"shop.user\":{\"hosts\":2}}}";
    put(&etcd, "fleet/levels", levels);
    let wait = Duration::from_secs(60);
    let pace = Pace {
        shortest_wait: wait,
        longest_wait: wait,
        ..PACE
    };
    let (before, after) = (limit(), limit());
    let host = Host::new(&runtime, &etcd, pace, &before);
    eventually("it is in step", PATIENCE, || host.said() == ["in step"]);
    etcd.kill(0).unwrap();
    eventually("it waits", PATIENCE, || host.said().len() == 2);
    assert_eq!(before.share("alice").rate(), Some(RATE / 2.0));
    host.limits.send_replace(vec![after.clone()]);
    let mut tenants = 0;
    eventually("the new policy's limit has it", PATIENCE, || {
        tenants += 1;
        after.share(&tenants.to_string()).rate() == Some(RATE / 2.0)
    });
    // The wait goes on.
    assert_eq!(host.said().len(), 2);
}

#[test]
fn what_a_host_wants_is_there_again_at_its_next_look_when_it_is_lost() {
    let etcd = Etcd::start(None, 1).unwrap();
    let runtime = runtime();
    let host = Host::new(&runtime, &etcd, PACE, &limit());
    let key = format!("{PREFIX}/hosts/h");
    let ctl = |args: &[&str]| etcd.ctl(0, args).unwrap();
    let is_there = || ctl(&["get", &key]).contains("shop.user");
    eventually("it has said what it wants", PATIENCE, is_there);
    ctl(&["del", &key]);
    eventually("it has said it again", PATIENCE, is_there);

    // A clone of the host has written it, and ends.
    let granted = ctl(&["lease", "grant", "60"]);
    let lease = granted.split_whitespace().nth(1).unwrap();
    ctl(&["put", &key, "{\"limits\":{}}", "--lease", lease]);
    ctl(&["lease", "revoke", lease]);
    eventually("it has said it once more", PATIENCE, is_there);

    // All of it is lost, who leads and the levels too.
    ctl(&["del", "--prefix", PREFIX]);
    eventually("all is there again", PATIENCE, || {
        let levels = ctl(&["get", &format!("{PREFIX}/fleet/levels")]);
        is_there() && levels.contains("\"hosts\":1")
    });
    assert_eq!(host.said(), ["in step"]);
}
