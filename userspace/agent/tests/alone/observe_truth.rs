//! The meter against the truth: a real driver asks many times, over several connections, and
//! what the kernel has counted is what the database received and sent, and its latencies are
//! those of the driver. So are those of statements that are read from copies.
//!
//! Three clocks look at each request: the driver's program around its call, the kernel's at the
//! socket, the database's from having read the request to having written the answer. The kernel
//! is between the other two, and so must its quantiles be. What the driver adds by itself is the
//! median of the same calls, one at a time, to a database that answers at once; only that is taken
//! off. A busy driver adds more, because answers wait for it, but that cannot be told from what the
//! meter may miss, and to take it off would flatter the meter. Where the driver and the database
//! themselves disagree by more than the meter may, the driver is no clock: it is tried again with half
//! as many requests at once, and in the end that part is a skip, which a full run does not allow.

use std::{env, process::Command, sync::Arc, time::Duration};

use cql_node::{Delays, Node, NodeOptions, Tally};
use sandbox::{
    Agent,
    driver::{self, Client, Seen},
    soaked::{self, clock},
};
use serde_json::{Value, json};

use crate::common::*;

/// Requests, unless UNDERPASS_REQUESTS says otherwise: `cargo xtask soak` has a million.
const REQUESTS: usize = 200_000;
/// Requests that are read from copies, likewise.
const STATEMENTS: usize = 20_000;
/// Connections that carry requests; the driver has one more of its own.
const CONNECTIONS: usize = 4;
/// Requests on their way at once: so many that a million of them take a minute. No connection has more than the 512
/// stream ids whose latency is measured. After a round in which the driver was too busy there are half as many.
const IN_FLIGHT: usize = 1_000;
/// One at a time, to see what the driver adds.
const UNLOADED: usize = 2_000;
/// Long enough that answers which wait for the driver are no more than a few per cent of it.
const DELAYS: Delays = Delays {
    seed: 4,
    least: Duration::from_millis(20),
    tail: Duration::from_millis(40),
};
/// Error that chance adds to the quantiles of one flow of several.
const OF_FLOW: f64 = 0.01;
/// Rounds at most, as long as the driver was too busy.
const ROUNDS: usize = 4;
/// A driver that has asked nothing for so long has no more questions of its own.
const QUIET: Duration = Duration::from_secs(1);
/// Tolerance of some requests, and of [`MANY`].
const TOLERANCE: f64 = 0.05;
const TOLERANCE_OF_MANY: f64 = 0.03;
/// Requests of a full run.
const MANY: usize = 1_000_000;
/// The histogram's own error: half of a bucket.
const HALF_BUCKET: f64 = 1.0 / 64.0;

/// Quantiles of `/flows`.
const QUANTILES: [(&str, f64); 2] = [("p50_us", 0.5), ("p99_us", 0.99)];

fn in_runtime<T: Send>(hosts: &Hosts, application: impl AsyncFnOnce() -> T + Send) -> T {
    hosts.client(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(application())
    })
}

fn node(hosts: &Hosts, delays: Option<Delays>) -> Node {
    let options = NodeOptions {
        delays,
        ..NodeOptions::default()
    };
    hosts.direct(|| Node::start(options)).unwrap()
}

fn quantile(sorted_us: &[u32], quantile: f64) -> f64 {
    let rank = (quantile * sorted_us.len() as f64).ceil() as usize;
    f64::from(sorted_us[rank.max(1) - 1])
}

fn sorted(mut took_us: Vec<u32>) -> Vec<u32> {
    took_us.sort_unstable();
    took_us
}

/// The database's tally when all connections stand (or all would go over the first one) and the
/// driver has asked what it wants to know itself.
async fn when_quiet(node: &Node) -> Tally {
    let mut tally = node.tally();
    loop {
        tokio::time::sleep(QUIET).await;
        let now = node.tally();
        if now == tally && node.clients().len() == CONNECTIONS + 1 {
            return now;
        }
        tally = now;
    }
}

/// A clock must not wait for a processor: this thread and those that it starts go before what else
/// runs on the machine.
fn go_first() {
    let own = nix::unistd::gettid().to_string();
    let mut renice = Command::new("renice");
    let done = renice.args(["-n", "-15", "-p", &own]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// Latency that the driver adds to a request by itself, in µs.
fn overhead_us(hosts: &Hosts) -> f64 {
    let node = node(hosts, None);
    let seen = in_runtime(hosts, async || {
        let client = Arc::new(Client::connect(node.addr(), CONNECTIONS).await.unwrap());
        driver::drive(&client, UNLOADED, 1).await.unwrap()
    });
    quantile(&sorted(seen.took_us), 0.5)
}

/// A session's time, by three clocks.
struct Round {
    seen: Seen,
    database_us: Vec<u32>,
    flows: Vec<Value>,
    /// The statement's row, if there is one and it has this session's requests alone.
    rows: Vec<Value>,
}

fn round(
    hosts: &Hosts,
    node: &Node,
    agent: &Agent<'_>,
    requests: usize,
    in_flight: usize,
) -> Round {
    let (before, seen, flows) = in_runtime(hosts, async || {
        let client = Client::connect(node.addr(), CONNECTIONS).await;
        let client = Arc::new(client.unwrap());
        let before = when_quiet(node).await;
        let seen = driver::drive(&client, requests, in_flight).await.unwrap();
        // While the connections are open: quantiles are by flow.
        (before, seen, idle_flows(agent))
    });
    assert_eq!(seen.took_us.len(), requests);
    eventually("the flows have ended", || {
        agent.json("/flows").unwrap().as_array().unwrap().is_empty()
    });
    let mut tally = node.tally();
    the_driver_agrees(&before, &tally, &seen);
    let database_us = tally.took_us.split_off(before.took_us.len());
    Round {
        seen,
        database_us,
        flows,
        rows: Vec::new(),
    }
}

/// Holds the meter's quantiles to the other clocks; false: the driver was so busy that it is none.
fn the_clocks_agree(round: Round, overhead_us: f64) -> bool {
    let (asked, is_tapped) = (round.seen.took_us.len(), !round.rows.is_empty());
    let mut clocks = Vec::new();
    let least = round.seen.took_us.len() / CONNECTIONS / 2;
    let tolerance = match round.seen.took_us.len() >= MANY {
        true => TOLERANCE_OF_MANY,
        false => TOLERANCE,
    };
    let (client_us, database_us) = (sorted(round.seen.took_us), sorted(round.database_us));
    let pool = round.flows.iter();
    let pool = pool.filter(|flow| flow["requests"].as_u64().unwrap() as usize > least);
    let pool: Vec<_> = pool.collect();
    assert_eq!(pool.len(), CONNECTIONS, "{:?}", round.flows);
    // Of few requests those of one flow are too few.
    let judged: Vec<_> = match round.rows.is_empty() {
        true => pool,
        false => round.rows.iter().collect(),
    };
    let mut is_driver_a_clock = true;
    for (name, q) in QUANTILES {
        let (client, database) = (quantile(&client_us, q), quantile(&database_us, q));
        let truth = client - overhead_us;
        let is_busy = truth / database - 1.0 > tolerance - HALF_BUCKET;
        is_driver_a_clock &= !is_busy;
        for flow in &judged {
            let kernel = flow[name].as_f64().unwrap();
            let off = |truth: f64| kernel / truth - 1.0;
            let all = format!(
                "{name}: driver {client} less {overhead_us:.0}, kernel {kernel} ({:+.2} %), \
                 database {database} ({:+.2} %)",
                100.0 * off(truth),
                100.0 * off(database)
            );
            eprintln!("{all}");
            clocks.push(clock(name, kernel, [client, overhead_us, database]));
            assert!(kernel > database * (1.0 - HALF_BUCKET - OF_FLOW), "{all}");
            assert!(kernel < client * (1.0 + HALF_BUCKET + OF_FLOW), "{all}");
            assert!(off(database).abs() < tolerance, "{all}");
            assert!(is_busy || off(truth).abs() < tolerance, "{all}");
        }
    }
    if is_tapped && is_driver_a_clock && asked >= MANY {
        soaked::keep("requests", json!({ "requests": asked, "clocks": clocks }));
    }
    is_driver_a_clock
}

#[test]
fn requests_of_a_driver_are_counted_and_measured() {
    let passive = |port| rule("observe", &to(&[port]));
    count_and_measure(passive, requests(REQUESTS), |_, _| Vec::new());
}

#[test]
fn statements_of_a_driver_are_counted_and_measured_by_copies() {
    let tapped = |port| {
        let stats = "\nfail = \"open\"\npath = \"tap\"\npipeline = [{ transform = \"stats\" }]";
        rule("enrich", &(to(&[port]) + stats))
    };
    count_and_measure(tapped, requests(STATEMENTS), each_statement_is_counted);
}

fn requests(otherwise: usize) -> usize {
    let requests = env::var("UNDERPASS_REQUESTS");
    requests.map_or(otherwise, |n| n.parse().unwrap())
}

/// By `rows` the agent's own rows of what a session has asked are held to the clocks, too.
fn count_and_measure(
    policy: impl Fn(u16) -> String,
    requests: usize,
    rows: impl Fn(&Agent<'_>, &Seen) -> Vec<Value>,
) {
    let _turn = crate::turn();
    go_first();
    let hosts = Hosts::new();
    let overhead_us = overhead_us(&hosts);
    // Each with an agent of its own, whose rows have this round's requests alone.
    for nth in 0..ROUNDS {
        let node = node(&hosts, Some(DELAYS));
        let agent = hosts.agent(&policy(node.addr().port()));
        let mut round = round(&hosts, &node, &agent, requests, IN_FLIGHT >> nth);
        the_meter_agrees(&agent, &node.tally());
        round.rows = rows(&agent, &round.seen);
        if the_clocks_agree(round, overhead_us) {
            return;
        }
    }
    let reason = "the machine is too busy: answers wait for the driver";
    sandbox::skip::skip("observe_truth", reason);
}

/// Each statement that the driver's program has asked is read from copies, and no more. Returns their row.
fn each_statement_is_counted(agent: &Agent<'_>, seen: &Seen) -> Vec<Value> {
    let asked = (seen.took_us.len() - seen.errors, seen.errors);
    let mut row = None;
    eventually("each statement is counted", || {
        let list = agent.json("/statements").unwrap();
        let rows = list.as_array().unwrap();
        let of = |table: &str| {
            let mut rows = rows.iter();
            rows.find(|row| row["table"] == table && row["kind"] == "select")
        };
        let count = |table| of(table).map_or(0, |row| row["count"].as_u64().unwrap() as usize);
        row = of("t").cloned();
        (count("t"), count("absent")) == asked
    });
    assert_eq!(
        agent
            .metric("underpass_tap_gaps_total{rule=\"r\"}")
            .unwrap_or(0.0),
        0.0
    );
    row.into_iter().collect()
}

/// All flows, when nothing is in flight on any.
fn idle_flows(agent: &Agent<'_>) -> Vec<Value> {
    let mut idle = Vec::new();
    eventually("nothing is in flight", || {
        let flows = agent.json("/flows").unwrap();
        idle.clone_from(flows.as_array().unwrap());
        idle.len() == CONNECTIONS + 1 && idle.iter().all(|flow| flow["in_flight"] == 0)
    });
    idle
}

/// The database's tally is what the driver's program did.
fn the_driver_agrees(before: &Tally, after: &Tally, seen: &Seen) {
    let [error, query, result, execute] = [0x00, 0x07, 0x08, 0x0a];
    let (all, errors) = (seen.took_us.len() as u64, seen.errors as u64);
    assert_eq!(errors, all.div_ceil(driver::ERROR_EVERY as u64));
    let requests = |opcode: usize| after.requests[opcode] - before.requests[opcode];
    let responses = |opcode: usize| after.responses[opcode] - before.responses[opcode];
    assert_eq!([requests(execute), requests(query)], [all - errors, errors]);
    assert_eq!(
        [responses(result), responses(error)],
        [all - errors, errors]
    );
}

/// By opcode and to the byte, of all connections from their beginning to their end.
fn the_meter_agrees(agent: &Agent<'_>, tally: &Tally) {
    let metrics = agent.metrics().unwrap();
    let value = |name: &str, labels: &str| {
        let name = format!("underpass_observed_{name}{{{labels}rule=\"r\"}}");
        metrics.get(&name).copied().unwrap_or(0.0) as u64
    };
    for (opcode, name) in dataplane::OPCODES.iter().enumerate() {
        let label = format!("opcode=\"{name}\",");
        let counted = [
            value("requests_total", &label),
            value("responses_total", &label),
        ];
        let truth = [tally.requests[opcode], tally.responses[opcode]];
        assert_eq!(counted, truth, "{name}");
    }
    for (direction, bytes) in [
        ("to_database", tally.bytes_in),
        ("to_client", tally.bytes_out),
    ] {
        let label = format!("direction=\"{direction}\",");
        assert_eq!(value("bytes_total", &label), bytes, "{direction}");
        assert_eq!(value("gaps_total", &label), 0, "{direction}");
    }
    let event = 0x0c;
    let answers = tally.responses.iter().sum::<u64>() - tally.responses[event];
    assert_eq!(value("seconds_count", ""), answers);
    assert_eq!(value("unmatched_responses_total", ""), 0);
}
