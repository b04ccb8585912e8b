//! Limits that hosts share: the lease on what each wants.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use limits::Limit;
use policy_source::{Sharer, Sharing, dial_plainly};
use sandbox::Etcd;
use tokio::{sync::watch, task::JoinSet};

use super::common::{PACE, PATIENCE, eventually, runtime, settings};

#[test]
fn a_lease_is_as_long_as_the_fleets_period_asks_for() {
    let etcd = Etcd::start(None, 1).unwrap();
    let runtime = runtime();
    let prefix = "/underpass/limits";
    let put = |key: &str, value: &str| {
        let key = format!("{prefix}/{key}");
        etcd.ctl(0, &["put", &key, value]).unwrap();
    };
    let levels = |period_ms: u64| {
        let levels = format!("{{\"seen\":0,\"period_ms\":{period_ms},\"limits\":{{}}}}");
        put("fleet/levels", &levels);
    };
    // Somebody else leads, whose levels are this test's.
    put("fleet/leader", "another");
    let failed = Arc::new(Mutex::new(Vec::new()));
    let limits = watch::Sender::new(vec![Arc::new(Limit::new("shop.user", 1000.0))]);
    let sharer = Sharer {
        settings: settings(&etcd.endpoints()),
        host: "h".to_owned(),
        pace: PACE,
        dial: dial_plainly(),
        limits: limits.subscribe(),
        tell: {
            let failed = failed.clone();
            Box::new(move |news| {
                if let Sharing::Failed(failure) = news {
                    failed.lock().unwrap().push(failure.to_string());
                }
            })
        },
    };
    let mut tasks = JoinSet::new();
    tasks.spawn_on(async { match sharer.run().await {} }, runtime.handle());
    let key = format!("{prefix}/hosts/h");
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
    let leader = format!("{prefix}/fleet/leader");
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
    assert_eq!(*failed.lock().unwrap(), Vec::<String>::new());
}
