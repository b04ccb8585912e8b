//! Every way of reading on every path, whichever sides' sockets the rule lets into sockmaps, and answers from a
//! kilobyte to 64 MiB.

use std::{env, net::TcpListener, path::Path};

use integrity::{Choices, Cql, Options, Plan, Reading, Server, drive};
use sandbox::{Agent, Sandbox};

use super::LOADED;

/// MiB for each way of reading on each path, unless UNDERPASS_READERS_MIB says otherwise: `cargo xtask soak` has
/// many. UNDERPASS_READERS_PATH: this path alone.
const MIB: u64 = 1;

/// The largest answer.
const ANSWER: u64 = 64 << 20;

/// A path: its rule, and the metric that counts its bytes.
const PATHS: [(&str, &str, &str); 6] = [
    ("untouched", "action = \"bypass\"\nshortcut = false", ""),
    ("relay", "action = \"enrich\"\nshortcut = false", ""),
    (
        "splice, the client let in",
        "action = \"enrich\"\nshortcut = \"client\"",
        "underpass_spliced_bytes_total{direction=\"to_client\"}",
    ),
    (
        "splice, both let in",
        "action = \"enrich\"\nshortcut = true",
        "underpass_spliced_bytes_total{direction=\"to_client\"}",
    ),
    (
        "shortcut",
        "action = \"bypass\"\nshortcut = true",
        "underpass_shortcut_bytes_total{way=\"shortcut\"}",
    ),
    (
        SHORT_LEGS,
        "action = \"enrich\"\nshortcut = true\n\
         pipeline = [{ transform = \"throttle\", rate = 1000000, burst = 1000000, per = \"client\", mode = \"delay\" }]",
        "underpass_shortcut_bytes_total{way=\"shortcut\"}",
    ),
];

/// The path whose bytes the agent edits.
const SHORT_LEGS: &str = "short legs";

/// Ends that wait for their sockets, as those do whose sockets may be let in.
const WAITING: [&str; 3] = ["poll", "epoll-level", "epoll-edge"];

/// Answers in one go and piece by piece, and readers that are behind.
const SHAPES: [&str; 4] = ["bulk-down", "duplex", "pipelined", "slow-reader"];

/// Seeds of a soak's round: more than there are ways of reading.
const PLANS: u64 = 100;

fn mib() -> u64 {
    let told = env::var("UNDERPASS_READERS_MIB");
    told.map_or(MIB, |mib| mib.parse().unwrap())
}

/// Whether a path has this way of reading: past TCP splice(2) finds nothing
/// (docs/decisions/0005-shortcut.md).
fn has(path: &str, reading: Reading) -> bool {
    !["shortcut", SHORT_LEGS].contains(&path) || reading != Reading::Splice
}

#[test]
fn whoever_reads_in_whatever_way_gets_every_byte_on_every_path() {
    let alone = env::var("UNDERPASS_READERS_PATH").ok();
    let chosen = PATHS
        .iter()
        .filter(|(path, ..)| alone.as_deref().is_none_or(|alone| alone == *path));
    let mut tried = 0;
    for (path, rule, counted) in chosen.copied() {
        tried += 1;
        let sandbox = Sandbox::new().unwrap();
        let serve = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let options = Options {
                never_blocks: !counted.is_empty(),
                ..Options::default()
            };
            Server::start_with(listener, options).unwrap()
        };
        // The shortcut needs both ends beneath the agent's cgroup.
        let server = match path {
            "shortcut" => sandbox.client(serve),
            _ => sandbox.server(serve),
        };
        let server = server.unwrap();
        let port = server.addr().port();
        let policy = format!("[[rule]]\nname = \"r\"\nto = [\":{port}\"]\n{rule}\n");
        let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
        let binary = Path::new(env!("CARGO_BIN_EXE_underpass"));
        let agent = Agent::start(binary, netns, cgroup, "splice = \"auto\"", &policy).unwrap();
        if path.starts_with("splice") {
            agent
                .wait_for_log("path works path=\"splice_egress\"")
                .unwrap();
        }
        // What is in a sockmap tells less (docs/decisions/0026-sockets-of-applications.md).
        let allowed: Vec<String> = match counted {
            "" => vec![],
            _ => vec!["fionread".to_owned()],
        };
        let readings = Reading::ALL.iter().filter(|r| has(path, **r));
        for (nth, reading) in (1..).zip(readings) {
            let names = [&WAITING[..], &SHAPES, &[reading.name()]].concat();
            let plan = Plan {
                choices: Choices::named(&names).unwrap(),
                bytes: mib() << 20,
                connection_max: ANSWER.min(mib() << 20),
                connections: (1, 4),
                seed: sandbox::seed() * PLANS + nth,
                hang_limit: LOADED,
                cql: (path == SHORT_LEGS).then(Cql::default),
                ..Plan::new(server.addr())
            };
            let report = sandbox.client(|| drive(&plan)).unwrap();
            assert!(
                report.passed(&allowed),
                "{path}, {}: {report}",
                reading.name()
            );
        }
        if !counted.is_empty() {
            assert!(agent.metric(counted).unwrap() > 0.0, "{path}");
        }
    }
    assert!(tried > 0, "no path is called {alone:?}");
}
