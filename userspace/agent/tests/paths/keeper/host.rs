//! A host with an agent whose flows are spliced, and what is seen of its keepers.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use sandbox::{Agent, Sandbox};

use super::BINARY;
use crate::common::traffic::{PATIENCE, Traffic};

pub struct Host {
    pub sandbox: Sandbox,
    pub listener: TcpListener,
}

impl Host {
    pub fn new() -> Self {
        let sandbox = Sandbox::new().unwrap();
        let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0").unwrap());
        let listener = listener.unwrap();
        Self { sandbox, listener }
    }

    pub fn to(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// A policy by which flows that are no CQL are not decoded, and spliced.
    pub fn policy(&self) -> String {
        let port = self.to().port();
        format!("[[rule]]\nname = \"rest\"\nto = [\":{port}\"]\naction = \"enrich\"\n")
    }

    pub fn agent(&self, engine: &str) -> Agent<'_> {
        self.agent_as(Path::new(BINARY), engine)
    }

    pub fn agent_as(&self, binary: &Path, engine: &str) -> Agent<'_> {
        let agent = self.agent_that_has_no_keeper_yet(binary, engine);
        agent.wait_for_log("keeper").unwrap();
        agent
    }

    pub fn agent_that_has_no_keeper_yet(&self, binary: &Path, engine: &str) -> Agent<'_> {
        let settings = format!("splice = \"{engine}\"");
        let (netns, cgroup) = (Some(&self.sandbox.netns), &self.sandbox.cgroup);
        let agent = Agent::start(binary, netns, cgroup, &settings, &self.policy()).unwrap();
        splices(&agent);
        agent
    }

    pub fn pair(&self) -> (TcpStream, TcpStream) {
        let to = self.to();
        let client = self.sandbox.client(|| TcpStream::connect(to));
        let (database, _) = self.listener.accept().unwrap();
        (client.unwrap().unwrap(), database)
    }

    /// Traffic that the kernel carries, and a keeper holds.
    pub fn traffic(&self, agent: &Agent<'_>, flows: u64) -> Vec<Traffic> {
        let traffic: Vec<Traffic> = (0..flows)
            .map(|seed| {
                let (client, database) = self.pair();
                Traffic::begin(client, database, seed)
            })
            .collect();
        until("they are kept", || kept(agent) == flows as f64);
        they_ride(agent);
        traffic
    }
}

pub fn works(agent: &Agent<'_>) {
    splices(agent);
    agent.wait_for_log("keeper").unwrap();
}

fn splices(agent: &Agent<'_>) {
    // Flows are relayed until the last engine was tried out; then it begins.
    agent.wait_for_log("path works path=\"splice_").unwrap();
}

pub fn until(what: &str, holds: impl FnMut() -> bool) {
    until_or(what, holds, String::new);
}

/// Waits; `instead` tells what holds where it does not come about.
fn until_or(what: &str, mut holds: impl FnMut() -> bool, instead: impl Fn() -> String) {
    // Agents begin anew several times, each with a trial of 64 MiB by every engine.
    let deadline = Instant::now() + 3 * PATIENCE;
    while !holds() {
        assert!(
            Instant::now() < deadline,
            "it does not come about that {what} {}",
            instead()
        );
        thread::sleep(Duration::from_millis(5));
    }
}

/// All of them, and none comes back any more: one that does ends with the agent.
pub fn they_ride(agent: &Agent<'_>) {
    let (mut before, mut looks) = (-1.0, 0);
    let instead = || format!("{:#?}", flows(agent));
    let ride = || {
        let handovers = agent.metric("underpass_handovers_total").unwrap();
        let rides = paths(agent).iter().all(|path| path == "splice");
        looks = if rides && handovers == before {
            looks + 1
        } else {
            0
        };
        before = handovers;
        looks > 15
    };
    until_or("they ride", ride, instead);
}

pub fn kept(agent: &Agent<'_>) -> f64 {
    agent.metric("underpass_kept_flows").unwrap()
}

pub fn flows(agent: &Agent<'_>) -> Vec<serde_json::Value> {
    agent.json("/flows").unwrap().as_array().unwrap().clone()
}

pub fn paths(agent: &Agent<'_>) -> Vec<String> {
    let path = |flow: &serde_json::Value| flow["path"].as_str().unwrap().to_owned();
    flows(agent).iter().map(path).collect()
}

/// Keepers by the command line, which names the control socket.
pub fn keepers(agent: &Agent<'_>) -> Vec<u32> {
    let control = agent.control().display().to_string();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|b| *b == 0);
        words.any(|w| w == b"keep") && words.any(|w| w == control.as_bytes())
    })
    .collect()
}

/// Sockets of keepers that are left in the folder.
pub fn keepers_sockets(agent: &Agent<'_>) -> usize {
    let folder = agent.control().parent().unwrap().to_owned();
    let entries = fs::read_dir(folder).unwrap().flatten();
    entries
        .filter(|e| e.file_name().to_string_lossy().contains(".keep-"))
        .count()
}

pub fn no_keeper_is_left(agent: &Agent<'_>) {
    until("no keeper is left", || keepers(agent).is_empty());
    assert_eq!(keepers_sockets(agent), 0);
}
