//! A flood of SYNs at a gateway's edge: who is connected hardly notices, and nothing grows.

mod flood;

use std::{
    fs,
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use flood::{Flood, SOURCES};
use sandbox::{Agent, stay_on_one_processor};

use crate::common::{
    Family, gateway as hosts,
    gateway::{Hosts, QUICK, both},
    works,
};

/// With the flood and without it in turns, so that whatever else this machine does falls on both.
const TURN: Duration = Duration::from_millis(60);
/// Rate that two cores bear which also run the clients, the gateway and the databases.
const EACH_MS: u32 = 60;
/// How often the comparison is made before it is believed: others use this machine.
const TRIES: usize = 2;
/// A machine that is busy does not get through all of the sources.
const LIMIT: Duration = Duration::from_secs(4);
/// Far fewer than there are sources.
const MAX_FORWARDED: u32 = 8_192;

fn resident_kib(agent: &Agent<'_>) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// Medians of a request's latency without the flood and with it.
fn compare(client: &mut TcpStream, flood: &Flood) -> [Duration; 2] {
    let (is_on, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let (until, began) = (flood.sent() + SOURCES, Instant::now());
    let mut took = [Vec::new(), Vec::new()];
    thread::scope(|scope| {
        scope.spawn(|| {
            while flood.sent() < until && began.elapsed() < LIMIT {
                is_on.store(true, Relaxed);
                flood.run(TURN, EACH_MS);
                is_on.store(false, Relaxed);
                thread::sleep(TURN);
            }
            done.store(true, Relaxed);
        });
        scope.spawn(|| {
            // Elsewhere than whoever sends, if the kernel has a choice.
            stay_on_one_processor().unwrap();
            while !done.load(Relaxed) {
                let (on, began) = (is_on.load(Relaxed), Instant::now());
                assert!(works(client), "an established connection is lost");
                if on == is_on.load(Relaxed) {
                    took[usize::from(on)].push(began.elapsed());
                }
            }
        });
    });
    took.map(|mut took| {
        took.sort_unstable();
        took[took.len() / 2]
    })
}

#[test]
fn established_connections_keep_their_latency_and_nothing_grows() {
    let _turn = crate::turn();
    let hosts = Hosts::new();
    // The answers to the flood find nobody.
    let netns = &hosts.gateway.netns;
    netns
        .ip(&["route", "add", "11.0.0.0/8", "via", hosts::CLIENT])
        .unwrap();
    let settings = format!("max_forwarded = {MAX_FORWARDED}");
    let agent = hosts.agent_of(&settings, &both("bypass", ""), QUICK);
    let mut client = hosts.connect(Family::V4).unwrap();
    assert!(works(&mut client));
    let flood = Flood::new(&hosts);
    let before = resident_kib(&agent);
    let mut medians = Vec::new();
    for _ in 0..TRIES {
        let [without, with] = compare(&mut client, &flood);
        medians.push((without, with));
        if with <= without * 6 / 5 {
            break;
        }
    }
    // Where two cores have not got through all of them in that time.
    while flood.sent() < SOURCES {
        flood.run(TURN, EACH_MS);
    }
    let (without, with) = *medians.last().unwrap();
    assert!(with <= without * 6 / 5, "{medians:?}");
    let forwarded = "underpass_edge_connections_total{outcome=\"forwarded\",rule=\"v4\"}";
    let forwarded = agent.metric(forwarded).unwrap();
    assert!(forwarded > f64::from(2 * MAX_FORWARDED), "{forwarded}");
    let grown = resident_kib(&agent).saturating_sub(before);
    assert!(grown < 2048, "{grown} KiB");
    assert!(works(&mut hosts.connect(Family::V4).unwrap()), "a new one");
}
