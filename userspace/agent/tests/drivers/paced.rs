//! A driver that asks for a thousand things at once, and a `throttle` that has them go on one after the other.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sandbox::Cgroup;
use tokio::task::JoinSet;

use super::{
    cassandra::Cassandra,
    rust::{connect, in_cgroup},
};

const REQUESTS: u32 = 1_000;
const RATE: u32 = 200;

/// Time that other requests of the driver's and a busy host may take.
const SLACK: Duration = Duration::from_secs(4);

#[test]
fn a_thousand_requests_at_once_take_as_long_as_the_rate_says() {
    let test = "paced::a_thousand_requests_at_once_take_as_long_as_the_rate_says";
    let Some(cassandra) = Cassandra::provided(test) else {
        return;
    };
    // What passes at once after a rest: without `burst` it is what passes in a second.
    for (burst, at_once) in [(", burst = 1", 1), ("", RATE)] {
        let cgroup = Cgroup::new().unwrap();
        let pipeline = format!("pipeline = [{{ transform = \"throttle\", rate = {RATE}{burst} }}]");
        let agent = cassandra.agent_with(&cgroup, "enrich", "closed", &pipeline);
        let took = in_cgroup(&cgroup, async || {
            let session = Arc::new(connect(&cassandra, test).await.unwrap());
            let begun = Instant::now();
            let mut all = JoinSet::new();
            for _ in 0..REQUESTS {
                let session = session.clone();
                all.spawn(async move {
                    let select = "SELECT key FROM system.local";
                    session.query_unpaged(select, ()).await.map(drop)
                });
            }
            while let Some(answered) = all.join_next().await {
                answered.unwrap().unwrap();
            }
            begun.elapsed()
        });
        drop(agent);
        let least = Duration::from_secs(1) * (REQUESTS - at_once) / RATE;
        println!("{REQUESTS} requests at {RATE}/s{burst}: {took:?}, {least:?} at least");
        assert!(
            (least.mul_f64(0.95)..least + SLACK).contains(&took),
            "{took:?} instead of {least:?}{burst}"
        );
    }
}
