//! Running connections are read where they are: those that were there before their rule, and before the agent.

use std::{
    io,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Instant,
};

use dataplane::NotAdopted;
use sandbox::{Agent, Netns, Resident, Sandbox, run_in};

use super::*;
use crate::common::{BINARY, PATIENCE, accept};

pub(super) const STATS: &str = "{ transform = \"stats\" }";

pub(super) fn taps() -> String {
    policy("fail = \"open\"\npath = \"tap\"", STATS)
}

pub(super) fn asks(c: &mut Conversation, version: u8, times: usize) {
    for _ in 0..times {
        c.client_sends(&query(version, 1, SELECT));
        c.server_sends(&rows(version, 1, 3));
    }
}

/// Whether so many requests were paired with their responses, each with its own: these have three rows.
pub(super) fn are_paired(agent: &Agent<'_>, requests: u64) -> bool {
    counted(agent) == (requests, 3 * requests)
}

/// Requests that were paired with their responses so far, and rows in these. Rows are counted a moment after the first request.
pub(super) fn counted(agent: &Agent<'_>) -> (u64, u64) {
    let list = agent.json("/statements").unwrap();
    let mut rows = list.as_array().unwrap().iter();
    let row = rows.find(|row| row["table"] == "orders");
    row.map_or((0, 0), |row| {
        let count = row["count"].as_u64().unwrap();
        (count, row["rows"].as_u64().unwrap_or_default())
    })
}

pub(super) fn shows_it_read(agent: &Agent<'_>, c: &Conversation) {
    let client = c.client.local_addr().unwrap().to_string();
    let shown = || {
        let flows = agent.json("/flows").unwrap();
        let mut flows = flows.as_array().unwrap().iter();
        flows.find(|f| f["client"] == client.as_str()).cloned()
    };
    // Running connections are looked for when the policy is in force.
    eventually("it is there", || shown().is_some());
    let flow = shown().unwrap();
    assert_eq!(
        (&flow["path"], &flow["action"]),
        (&"tap".into(), &"enrich".into())
    );
    let why = flow["why"].as_str().unwrap();
    assert!(
        why.starts_with("found running, joined in its middle: rule r"),
        "{why}"
    );
}

#[test]
fn a_running_connection_is_read_from_its_next_frame_on() {
    host(|host| {
        for version in [3, 4, 5] {
            host.policy("");
            let mut c = begin(host, version);
            asks(&mut c, version, 3);
            let (before, _) = counted(&host.agent);
            host.policy(&taps());
            shows_it_read(&host.agent, &c);
            // Which response the first one belongs to, nobody knows.
            asks(&mut c, version, 11);
            eventually("it is read", || are_paired(&host.agent, before + 10));
            c.ends();
        }
        assert_eq!(host.metric("observed_adopted", "rule=\"r\""), 3);
        eventually("their ends are told", || {
            host.agent.metric("underpass_tap_flows").unwrap() == 0.0
        });
    });
}

/// How it compresses, its handshake has said, which nobody has read.
#[test]
fn a_running_connection_that_compresses_is_read_from_its_next_frame_on() {
    host(|host| {
        for (version, codec) in [(4, Codec::Lz4), (4, Codec::Snappy), (5, Codec::Lz4)] {
            host.policy("");
            let mut c = host.connect();
            let options = [("COMPRESSION", codec.as_str().unwrap())];
            c.client_sends(&startup(version, &options));
            c.server_sends(&ready(version));
            let asks = |c: &mut Conversation, times: usize| {
                for _ in 0..times {
                    let asked = query(version, 1, SELECT);
                    c.client_sends(&framed(version, Some(codec), &asked));
                    let answered = rows(version, 1, 3);
                    c.server_sends(&framed(version, Some(codec), &answered));
                }
            };
            asks(&mut c, 3);
            let (before, _) = counted(&host.agent);
            host.policy(&taps());
            host.finds(&c);
            asks(&mut c, 11);
            let row = format!("v{version} {codec:?}");
            eventually(&row, || are_paired(&host.agent, before + 10));
            c.ends();
            eventually("its end is told", || {
                host.agent.metric("underpass_tap_flows").unwrap() == 0.0
            });
        }
    });
}

#[test]
fn an_observed_connection_is_read_when_its_rule_taps() {
    host(|host| {
        for version in [3, 4, 5] {
            host.policy("[[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"observe\"\n");
            let mut c = begin(host, version);
            asks(&mut c, version, 3);
            let (before, _) = counted(&host.agent);
            host.policy(&taps());
            eventually("it is tapped", || host.flow(&c)["path"] == "tap");
            asks(&mut c, version, 10);
            let are_all = |count| are_paired(&host.agent, before + count);
            eventually("it is read", || are_all(9) || are_all(10));
            c.ends();
        }
        assert_eq!(host.metric("observed_adopted", "rule=\"r\""), 3);
        let bytes = "underpass_observed_requests_total{opcode=\"query\",rule=\"r\"}";
        assert_eq!(host.agent.metric(bytes).unwrap(), 39.0);
    });
}

#[test]
fn the_middle_of_a_frame_is_not_taken_for_a_beginning() {
    host(|host| {
        let mut c = begin(host, 4);
        let long = format!("{SELECT} /*{}*/", " ".repeat(3_000));
        let long = query(4, 1, &long);
        // Its rest looks like a frame, but for its end.
        let (first, rest) = long.split_at(1_500);
        c.client.write_all(first).unwrap();
        c.server_gets(first);
        host.policy(&taps());
        shows_it_read(&host.agent, &c);
        let rest = [&query(4, 7, "TRUNCATE shop.orders")[..9], &rest[9..]].concat();
        c.client.write_all(&rest).unwrap();
        c.server_gets(&rest);
        c.server_sends(&rows(4, 1, 3));
        // Of responses it was joined before, so that the first one has its request.
        asks(&mut c, 4, 10);
        eventually("it is read", || are_paired(&host.agent, 10));
        let list = host.agent.json("/statements").unwrap();
        assert!(!list.to_string().contains("TRUNCATE"), "{list}");
        c.ends();
    });
}

/// The kernel has two policies, and a rule that comes in front moves the others' numbers.
#[test]
fn a_connection_that_says_nothing_for_two_policies_is_still_its_rules() {
    host(|host| {
        let in_front = |name: &str, port: u16| {
            let rule = taps().replace("\"r\"", &format!("\"{name}\""));
            rule.replace("PORT", &port.to_string())
        };
        host.policy("");
        let mut c = begin(host, 4);
        host.policy(&taps());
        shows_it_read(&host.agent, &c);
        host.policy(&[in_front("x", 1), taps()].concat());
        host.policy(&[in_front("y", 2), in_front("x", 1), taps()].concat());
        shows_it_read(&host.agent, &c);
        asks(&mut c, 4, 11);
        let told = || host.agent.json("/statements").unwrap();
        let all = || told().as_array().unwrap().clone();
        let count = |row: &Value| row["count"].as_u64().unwrap();
        eventually("it is read", || all().iter().map(count).sum::<u64>() >= 10);
        let rules = all().into_iter().map(|row| row["rule"].clone());
        assert!(
            rules.collect::<Vec<_>>().iter().all(|rule| rule == "r"),
            "{}",
            told()
        );
        c.ends();
    });
}

/// A database and its clients, whose agent comes and goes.
struct Mortal {
    sandbox: Sandbox,
    listener: TcpListener,
}

impl Mortal {
    fn new() -> Self {
        let sandbox = Sandbox::new().unwrap();
        let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
        let listener = listener.unwrap().unwrap();
        Self { sandbox, listener }
    }

    fn agent(&self) -> Agent<'_> {
        self.agent_as(Path::new(BINARY))
    }

    fn agent_as(&self, binary: &Path) -> Agent<'_> {
        let port = self.listener.local_addr().unwrap().port();
        let rules = taps().replace("PORT", &port.to_string());
        let Sandbox { netns, cgroup, .. } = &self.sandbox;
        Agent::start(binary, Some(netns), cgroup, "", &rules).unwrap()
    }

    /// A connection that is logged in, and is read.
    fn connect(&self) -> Conversation {
        let to = self.listener.local_addr().unwrap();
        let client = self.sandbox.client(|| TcpStream::connect(to));
        converse(client.unwrap(), &self.listener)
    }

    /// A connection from outside the agent's cgroup, of which it sees nothing.
    fn connect_unseen(&self) -> Conversation {
        let to = self.listener.local_addr().unwrap();
        let client = self.sandbox.server(|| TcpStream::connect(to));
        converse(client.unwrap(), &self.listener)
    }
}

fn converse(client: io::Result<TcpStream>, listener: &TcpListener) -> Conversation {
    let mut c = Conversation {
        client: client.unwrap(),
        server: accept(listener).0,
        in_segments: false,
    };
    c.client.set_nodelay(true).unwrap();
    c.server.set_nodelay(true).unwrap();
    c.client.set_read_timeout(Some(PATIENCE)).unwrap();
    c.client_sends(&startup(4, &[("CQL_VERSION", "3.0.0")]));
    c.server_sends(&ready(4));
    c
}

#[test]
fn connections_of_containers_are_read_that_were_there_before_the_agent() {
    let host = Mortal::new();
    let (netns, cgroup) = (Netns::new().unwrap(), &host.sandbox.cgroup);
    let resident = Resident::start(&netns, None).unwrap();
    let to = host.listener.local_addr().unwrap();
    // Another database at the same address.
    let listener = run_in(Some(&netns), None, || TcpListener::bind(to));
    let listener = listener.unwrap().unwrap();
    let connect = |cgroup| {
        let client = run_in(Some(&netns), cgroup, || TcpStream::connect(to));
        converse(client.unwrap(), &listener)
    };
    let (mut c, mut unseen) = (connect(Some(cgroup)), connect(None));
    let mut own = host.connect();
    let agent = host.agent();
    shows_it_read(&agent, &c);
    shows_it_read(&agent, &own);
    for c in [&mut c, &mut own, &mut unseen] {
        asks(c, 4, 11);
    }
    eventually("both are read", || are_paired(&agent, 20));
    let adopted = agent.metric("underpass_observed_adopted_total{rule=\"r\"}");
    assert_eq!(adopted.unwrap(), 2.0);
    for reason in NotAdopted::ALL {
        let sample = format!(
            "underpass_observed_not_adopted{{reason=\"{}\"}}",
            reason.as_str()
        );
        assert_eq!(agent.metric(&sample).unwrap(), 0.0, "{sample}");
    }
    for c in [c, own, unseen] {
        c.ends();
    }
    drop(resident);
    eventually("their ends are told", || {
        agent.metric("underpass_tap_flows").unwrap() == 0.0
    });
}

#[test]
fn the_next_agent_goes_on_with_what_the_dead_one_has_read() {
    let host = Mortal::new();
    let mut agent = host.agent();
    let mut c = host.connect();
    asks(&mut c, 4, 3);
    eventually("it is read", || are_paired(&agent, 3));
    agent.kill().unwrap();
    asks(&mut c, 4, 3);
    agent.restart().unwrap();
    shows_it_read(&agent, &c);
    asks(&mut c, 4, 11);
    eventually("it is read again", || are_paired(&agent, 10));
    // It is told that it is over, too.
    c.ends();
    eventually("its end is told", || {
        agent.metric("underpass_tap_flows").unwrap() == 0.0
    });
}

/// An agent's program with a test hook, in this folder.
fn hooked(folder: &Path, hook: &str) -> PathBuf {
    let script = folder.join("underpass");
    let hook = format!("{}={hook}", test_hooks::VARIABLE);
    sandbox::program::switched(&script, BINARY, &hook).unwrap();
    script
}

#[test]
fn a_reader_that_panics_between_flows_reads_on() {
    const PANICS: u32 = 3;
    let folder = tempfile::tempdir().unwrap();
    let host = Mortal::new();
    let agent = host.agent_as(&hooked(folder.path(), &format!("tap_looks_panic={PANICS}")));
    let mut c = host.connect();
    let failed = || agent.metric("underpass_tap_failed_looks_total");
    for asked in 1.. {
        asks(&mut c, 4, 1);
        eventually("it is read", || are_paired(&agent, asked));
        if failed().unwrap() == f64::from(PANICS) {
            break;
        }
    }
    assert_eq!(agent.log().matches("are read on, but").count(), 1);
    c.ends();
    eventually("its end is told", || {
        agent.metric("underpass_tap_flows").unwrap() == 0.0
    });
}

#[test]
fn a_reader_that_panics_costs_one_flow() {
    let folder = tempfile::tempdir().unwrap();
    let host = Mortal::new();
    let agent = host.agent_as(&hooked(folder.path(), "panics_at=WORD"));
    let (mut c, mut other) = (host.connect(), host.connect());
    asks(&mut other, 4, 1);
    eventually("it is read", || are_paired(&agent, 1));
    for _ in 0..3 {
        c.client_sends(&query(
            4,
            1,
            "SELECT word FROM shop.other WHERE word = 'WORD'",
        ));
        c.server_sends(&rows(4, 1, 3));
        asks(&mut c, 4, 1);
    }
    asks(&mut other, 4, 3);
    eventually("the other is read on", || are_paired(&agent, 4));
    let stopped = "underpass_tap_stopped_total{reason=\"panicked\",rule=\"r\"}";
    assert_eq!(agent.metric(stopped).unwrap(), 1.0);
    assert_eq!(agent.log().matches("has panicked").count(), 1);
    // Another one that has its port is another flow.
    c.ends();
    let mut c = host.connect();
    asks(&mut c, 4, 3);
    eventually("a new one is read", || are_paired(&agent, 7));
}

/// Deaths of the agent, unless UNDERPASS_DEATHS says otherwise: `cargo xtask soak` has a hundred.
const DEATHS: usize = 2;

/// The longest that a request may take beyond what one takes without the tap. The processors are busy with agents that start.
const PATIENT: Duration = Duration::from_secs(1);

/// The 99th percentile with the tap, in those without it at the same time: what chance does on busy processors, and no more.
const P99_AT_MOST: f64 = 1.5;

/// Sets it when dropped.
struct Stops<'s>(&'s AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn no_application_notices_how_often_the_agent_dies() {
    const CONNECTIONS: usize = 2;
    let deaths = std::env::var("UNDERPASS_DEATHS");
    let deaths = deaths.map_or(DEATHS, |deaths| deaths.parse().unwrap());
    let host = Mortal::new();
    let mut agent = host.agent();
    let are_read = |agent: &Agent<'_>| {
        eventually("all are read", || {
            agent.metric("underpass_tap_flows").unwrap() == CONNECTIONS as f64
        });
    };
    let stop = AtomicBool::new(false);
    let ask = |mut c: Conversation| {
        let mut took = Vec::new();
        while !stop.load(Relaxed) {
            let began = Instant::now();
            // Panics when a byte is missing or wrong.
            asks(&mut c, 4, 1);
            took.push(began.elapsed());
        }
        c.ends();
        took
    };
    let (read, unseen) = thread::scope(|scope| {
        let clients = [(); CONNECTIONS].map(|()| host.connect());
        let others = [(); CONNECTIONS].map(|()| host.connect_unseen());
        let clients = clients.map(|c| scope.spawn(|| ask(c)));
        let others = others.map(|c| scope.spawn(|| ask(c)));
        // Also if what follows fails.
        let stops = Stops(&stop);
        for _ in 0..deaths {
            are_read(&agent);
            agent.kill().unwrap();
            agent.restart().unwrap();
        }
        are_read(&agent);
        eventually("requests are paired again", || counted(&agent).0 > 1_000);
        drop(stops);
        let all = |asking: [thread::ScopedJoinHandle<'_, Vec<Duration>>; CONNECTIONS]| {
            let mut took = asking.map(|thread| thread.join().unwrap()).concat();
            took.sort_unstable();
            took
        };
        (all(clients), all(others))
    });
    eventually("all is told", || {
        agent.metric("underpass_tap_flows").unwrap() == 0.0
    });
    let (paired, rows) = counted(&agent);
    assert!(paired > 1_000);
    assert_eq!(rows, 3 * paired);
    let p99 = |took: &[Duration]| took[took.len() * 99 / 100];
    let (p99, unseen_p99) = (p99(&read), p99(&unseen));
    let [slowest, unseen_slowest] = [&read, &unseen].map(|took| *took.last().unwrap());
    let requests = read.len();
    eprintln!(
        "{deaths} deaths, {requests} requests: p99 {p99:?}, the slowest {slowest:?}; without the tap {unseen_p99:?} and {unseen_slowest:?}"
    );
    if deaths > DEATHS {
        let us = |took: Duration| took.as_micros() as u64;
        let found = json!({
            "deaths": deaths, "requests": requests, "p99_us": us(p99), "slowest_us": us(slowest),
            "unseen_p99_us": us(unseen_p99), "unseen_slowest_us": us(unseen_slowest),
        });
        sandbox::soaked::keep("deaths", found);
    }
    assert!(slowest < PATIENT + unseen_slowest, "{slowest:?}");
    // Beside other tests a few deaths tell nothing of it.
    if deaths > DEATHS {
        let most = unseen_p99.mul_f64(P99_AT_MOST);
        assert!(p99 <= most, "{p99:?}, without the tap {unseen_p99:?}");
    }
}
