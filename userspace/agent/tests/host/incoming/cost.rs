//! Cost of each path for a client on another host: medians over rounds in turns, and their ratio to
//! a connection that nobody looks at. By hand: `cargo test --release -p underpass --test host -- \
//! --ignored --nocapture what_each_path_costs`.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    os::fd::AsFd,
    path::Path,
    thread,
    time::Instant,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sandbox::Agent;

use super::hosts::*;
use crate::common::{BINARY, Family, accept, enrich, eventually, rule, to};

const ROUNDS: usize = 5;
const EXCHANGES: usize = 4_000;
/// The first of them are not counted.
const WARM_UP: usize = 400;

const REQUEST_BODY: u8 = 119;
const ANSWER_BODY: u8 = 247;

/// A frame of the native protocol, or what looks like none.
fn message(first: u8, opcode: u8, body: u8) -> Vec<u8> {
    let mut bytes = vec![first, 0, 0, 1, opcode, 0, 0, 0, body];
    bytes.resize(9 + usize::from(body), 0);
    bytes
}

struct Road {
    name: &'static str,
    splice: &'static str,
    /// None: there is no agent.
    policy: Option<String>,
    is_cql: bool,
    /// Path as `flows` has it, if the agent carries the flow.
    path: Option<&'static str>,
}

fn roads() -> Vec<Road> {
    let road = |name, splice, policy, is_cql, path| Road {
        name,
        splice,
        policy,
        is_cql,
        path,
    };
    let agents = || Some(enrich(&[PORT]));
    let simple = |action| Some(rule(action, &to(&[PORT])));
    vec![
        road("direct", "off", None, true, None),
        road("bypass", "off", simple("bypass"), true, None),
        road("observe", "off", simple("observe"), true, None),
        road("splice", "egress", agents(), false, Some("splice")),
        road("relay", "off", agents(), false, Some("relay")),
        road("enrich", "off", agents(), true, Some("enrich")),
    ]
}

/// Answers every request; ends with its client.
fn answer(mut database: TcpStream, request: usize, answer: &[u8]) {
    database.set_nonblocking(true).unwrap();
    let (mut buffer, mut have) = ([0; 4096], 0);
    loop {
        match database.read(&mut buffer) {
            Ok(0) => return,
            Ok(n) => have += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                let mut fds = [PollFd::new(database.as_fd(), PollFlags::POLLIN)];
                poll(&mut fds, PollTimeout::NONE).unwrap();
            }
            Err(e) => panic!("{e}"),
        }
        while have >= request {
            have -= request;
            database.write_all(answer).unwrap();
        }
    }
}

/// In microseconds: the median of a round.
fn round(client: &mut TcpStream, request: &[u8], answer: usize) -> f64 {
    let mut took = Vec::with_capacity(EXCHANGES);
    let mut got = vec![0; answer];
    for _ in 0..EXCHANGES {
        let begun = Instant::now();
        client.write_all(request).unwrap();
        client.read_exact(&mut got).unwrap();
        took.push(begun.elapsed());
    }
    let mut took = took.split_off(WARM_UP);
    took.sort();
    took.get(took.len() / 2).unwrap().as_secs_f64() * 1e6
}

#[test]
#[ignore = "measures"]
fn what_each_path_costs() {
    let roads = roads();
    let hosts: Vec<Hosts> = roads.iter().map(|_| Hosts::new()).collect();
    let mut travelled = Vec::new();
    let mut agents = Vec::new();
    for (road, hosts) in roads.iter().zip(&hosts) {
        let bind = || std::net::TcpListener::bind((Family::V4.database(), PORT));
        let listener = hosts.database.client(bind).unwrap().unwrap();
        let agent = road.policy.as_ref().map(|policy| {
            let (netns, cgroup) = (Some(&hosts.database.netns), &hosts.database.cgroup);
            let settings = format!("splice = \"{}\"", road.splice);
            let policy = INCOMING.to_owned() + policy;
            let agent = Agent::start(Path::new(BINARY), netns, cgroup, &settings, &policy).unwrap();
            if road.splice != "off" {
                agent.wait_for_log("path works").unwrap();
            }
            agent
        });
        let mut client = hosts.connect(Family::V4).unwrap();
        client.set_nodelay(true).unwrap();
        let (database, _) = accept(&listener);
        database.set_nodelay(true).unwrap();
        let versions = if road.is_cql { (4, 0x84) } else { (0x41, 0x42) };
        let request = message(versions.0, 7, REQUEST_BODY);
        let response = message(versions.1, 8, ANSWER_BODY);
        let length = (request.len(), response.len());
        let server = thread::spawn(move || answer(database, length.0, &response));
        round(&mut client, &request, length.1);
        if let (Some(agent), Some(path)) = (&agent, road.path) {
            eventually("it is on its path", || {
                agent.json("/flows").unwrap()[0]["path"] == path
            });
        }
        travelled.push((client, request, length.1, server));
        agents.push(agent);
    }
    let mut medians = vec![Vec::new(); roads.len()];
    for turn in 0..ROUNDS {
        for step in 0..roads.len() {
            // Nobody is always first.
            let n = (turn + step) % roads.len();
            let (client, request, answer, _) = travelled.get_mut(n).unwrap();
            medians
                .get_mut(n)
                .unwrap()
                .push(round(client, request, *answer));
        }
    }
    let of_rounds = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        *all.get(all.len() / 2).unwrap()
    };
    let medians: Vec<f64> = medians.into_iter().map(of_rounds).collect();
    let direct = *medians.first().unwrap();
    println!("| path | p50 µs | × direct |");
    println!("| --- | --- | --- |");
    for (road, median) in roads.iter().zip(medians) {
        println!("| {} | {median:.1} | {:.2} |", road.name, median / direct);
    }
    for (client, _, _, server) in travelled {
        drop(client);
        server.join().unwrap();
    }
}
