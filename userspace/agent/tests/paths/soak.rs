//! All paths at once under one agent, while faults happen: no byte and no answer is wrong, no flow waits without a fault that explains
//! it, and nothing is left behind.
//!
//! A short run takes seconds and has two faults. A long one takes as many hours as `UNDERPASS_SOAK_HOURS` says (a fraction will do),
//! has faults of all kinds and a driver on Cassandra, and writes `bench/results/soak.json` where `UPDATE_DOCS` is set.
//! `UNDERPASS_SEED` repeats its faults. In its second half no fault ends the agent, so that the memory of one process is measured.

mod clients;
mod driver;
mod faults;
mod inject;
mod log;
mod page;
mod routes;
mod run;
mod streams;
mod watch;
#[path = "../drivers/workload.rs"]
mod workload;

use std::{
    env, net::SocketAddr, ops::Range, path::Path, sync::atomic::Ordering::Relaxed, thread,
    time::Duration,
};

use cql_node::{Delays, Node, NodeOptions};
use driver::Cassandra;
use faults::Fault;
use integrity::{Report, Server};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};
use routes::{ROUTES, place};
use run::Run;
use sandbox::{Agent, MemoryCgroup, Sandbox};
use watch::Sample;

use crate::common::{
    BINARY,
    ways::{self, WAYS, Way},
};

/// The options of the journal's file system, which the audit fills in minutes.
const DISK: &str = "size=8m,mode=0700";

/// The throttle's rate before the first reload.
const RATE: u32 = 1_000_000;

/// The pause before a fault: of a short run, and of a long one.
const PAUSE_MS: [Range<u64>; 2] = [50..150, 200..3_000];

/// The time before the first fault and after the last one, likewise.
const QUIET: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// The longest wait that no fault explains, likewise. Short runs have other tests beside them.
const LIMIT: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(1)];

/// The times of databases, which answer a later request first now and then.
const DELAYS: Delays = Delays {
    seed: 1,
    least: Duration::from_millis(1),
    tail: Duration::from_millis(2),
};

#[test]
fn nothing_is_wrong_or_waits_or_is_left_behind_whatever_fails() {
    let test = "soak::nothing_is_wrong_or_waits_or_is_left_behind_whatever_fails";
    let hours = env::var("UNDERPASS_SOAK_HOURS").ok();
    let hours: Option<f64> = hours.map(|hours| hours.parse().unwrap());
    let cassandra = hours.and_then(|_| Cassandra::provided(test));
    // The file system is in a namespace of mounts of this thread, and of those that it starts.
    let apart = || {
        let nothing = None::<&str>;
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(nothing, "/", nothing, private, nothing).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (disk, none) = (folder.path(), MsFlags::empty());
        mount(Some("disk"), disk, Some("tmpfs"), none, Some(DISK)).unwrap();
        let found = soak(disk, hours, cassandra.as_ref());
        umount2(disk, MntFlags::MNT_DETACH).unwrap();
        assert!(found.is_empty(), "{}", found.join("\n"));
    };
    thread::scope(|scope| match scope.spawn(apart).join() {
        Ok(()) => (),
        Err(panic) => std::panic::resume_unwind(panic),
    });
}

/// Runs, and returns the findings.
fn soak(disk: &Path, hours: Option<f64>, cassandra: Option<&Cassandra>) -> Vec<String> {
    let sandbox = Sandbox::new().unwrap();
    let cgroup = sandbox.cgroup.path().to_owned();
    let serve = || {
        streams::lower_priority();
        WAYS.each_ref().map(|way| way.server(&sandbox))
    };
    let servers = thread::scope(|scope| scope.spawn(serve).join().unwrap());
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let nodes = ROUTES.each_ref().map(|route| {
        let start = || node(any);
        // The shortcut needs both ends beneath the agent's cgroup.
        let node = match route.name {
            "local" => sandbox.client(start),
            _ => sandbox.server(start),
        };
        node.unwrap().unwrap()
    });
    let addrs: Vec<SocketAddr> = nodes.iter().map(Node::addr).collect();
    let mut nodes = Vec::from(nodes);
    let mortal = nodes.remove(place("mortal"));
    let others = ways::rules(&servers) + &cassandra.map(Cassandra::rule).unwrap_or_default();
    let memory = MemoryCgroup::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("agent");
    match &memory {
        Some(memory) => memory.program(&program, BINARY).unwrap(),
        None => sandbox::program::switched(&program, BINARY, "").unwrap(),
    }
    let policy = run::policy(&addrs, disk, &others, RATE);
    let drain = faults::DRAINS.as_secs();
    let settings = format!("splice = \"auto\"\nmax_flows = 5000\ndrain = \"{drain}s\"");
    let netns = Some(&sandbox.netns);
    let agent = Agent::start(&program, netns, &sandbox.cgroup, &settings, &policy).unwrap();
    agent.wait_for_log("keeper started").unwrap();
    let run = Run::new(
        &sandbox,
        agent,
        (addrs, mortal),
        (others, disk),
        memory,
        LIMIT[usize::from(hours.is_some())],
    );
    let (samples, streams) = carry(&run, &servers, hours, cassandra);
    for route in run.idle_routes() {
        run.log.finding(format!("{route}: nothing went that way"));
    }
    drop((nodes, servers));
    let result = page::result(&run, &samples, &streams, hours);
    let mut found = run.finish();
    drop(sandbox);
    if cgroup.exists() {
        found.push(format!("{} is left", cgroup.display()));
    }
    found.extend(page::growth(&result));
    println!("{result:#}");
    if hours.is_some() && env::var_os("UPDATE_DOCS").is_some() {
        page::write(&result, &found);
    }
    found
}

/// Has traffic and faults until the time is over. Returns samples of the agent, and the reports of streams.
fn carry(
    run: &Run<'_>,
    servers: &[Server; WAYS.len()],
    hours: Option<f64>,
    cassandra: Option<&Cassandra>,
) -> (Vec<Sample>, Vec<Report>) {
    let time = hours.map(|hours| Duration::from_secs_f64(hours * 3600.0));
    let is_long = usize::from(time.is_some());
    thread::scope(|scope| {
        let samples = scope.spawn(|| watch::watch(run));
        let mut streams = Vec::new();
        let ways: &'static [Way; WAYS.len()] = &WAYS;
        for (way, server) in ways.iter().zip(servers) {
            streams.push(scope.spawn(move || streams::stream(run, way, server)));
        }
        for route in 0..ROUTES.len() {
            for client in 0..clients::CLIENTS {
                let asks = move || clients::asks(run, route, client);
                scope.spawn(move || run.sandbox.client(asks).unwrap());
            }
        }
        for name in ["untouched", "changed"] {
            let come = move || clients::come_and_go(run, place(name));
            scope.spawn(move || run.sandbox.client(come).unwrap());
        }
        if let Some(cassandra) = cassandra {
            scope.spawn(|| driver::works(run, cassandra));
        }
        // A panic of one's own, too, has to end the others.
        let faults = scope.spawn(|| {
            thread::sleep(QUIET[is_long]);
            // Every path, before anything fails.
            let carries = || Ok(run.kernel_carries() && run.idle_routes().is_empty());
            if let Err(error) = run::eventually(carries) {
                let text = format!("not every path carries: {error}");
                run.log.finding(text);
            }
            let mut few = Fault::FEW.len();
            inject::inject(run, PAUSE_MS[is_long].clone(), || match time {
                Some(time) if run.log.now() >= time => Vec::new(),
                // The second half has one agent.
                Some(time) => {
                    let stays = run.log.now() > time / 2;
                    let all = Fault::ALL.into_iter();
                    all.filter(|fault| !(stays && fault.ends_process()))
                        .collect()
                }
                None if few == 0 => Vec::new(),
                None => {
                    few -= 1;
                    Fault::FEW.into()
                }
            });
            thread::sleep(QUIET[is_long]);
            run.note_carried(&run.agent());
        });
        let ended = faults.join();
        run.over.store(true, Relaxed);
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
        let streams = streams.into_iter().map(|sent| sent.join().unwrap());
        let streams = streams.collect();
        (samples.join().unwrap(), streams)
    })
}

/// Starts a database, which differs from the others in its address alone.
fn node(listen: SocketAddr) -> anyhow::Result<Node> {
    let schema = [
        "CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
        "CREATE TABLE shop.orders (id int PRIMARY KEY, v text)",
        "CREATE TABLE shop.never (id int PRIMARY KEY)",
    ];
    Node::start(NodeOptions {
        listen,
        schema: schema.map(str::to_owned).to_vec(),
        delays: Some(DELAYS),
        ..NodeOptions::default()
    })
}
