//! Every way of reading on every path, whichever sides' sockets the rule lets into sockmaps, and answers from a
//! kilobyte to 64 MiB. On short legs every frame is edited: requests become longer, and answers shorter.

use std::{env, net::TcpListener, path::Path, time::Duration};

use integrity::{Choices, Cql, Options, Plan, Reading, Server, drive};
use sandbox::{Agent, Sandbox};

use super::LOADED;
use crate::common::ways::{edit, sum};

/// MiB for each way of reading on each path, unless UNDERPASS_READERS_MIB says otherwise: `cargo xtask soak` has
/// many. UNDERPASS_READERS_PATH: this path alone.
const MIB: u64 = 1;

/// The largest answer.
const ANSWER: u64 = 64 << 20;

/// A path: its rule, and the metric that counts its bytes.
const PATHS: [(&str, &str, &str); 8] = [
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
        "edited, the client's leg short",
        "action = \"enrich\"\nshortcut = \"client\"",
        "underpass_shortcut_bytes_total{way=\"shortcut\"}",
    ),
    (
        "edited, the database's leg short",
        "action = \"enrich\"\nshortcut = \"database\"",
        "underpass_shortcut_bytes_total{way=\"shortcut\"}",
    ),
    (
        "edited, both legs short",
        "action = \"enrich\"\nshortcut = true",
        "underpass_shortcut_bytes_total{way=\"shortcut\"}",
    ),
];

/// Beginning of the names of paths whose frames the agent edits, every one of them.
const EDITED: &str = "edited";

/// Ends that wait for their sockets, as those do whose sockets may be let in.
const WAITING: [&str; 3] = ["poll", "epoll-level", "epoll-edge"];

/// Answers in one go and piece by piece, and readers that are behind.
const SHAPES: [&str; 4] = ["bulk-down", "duplex", "pipelined", "slow-reader"];

/// Further ones of edited streams: requests in one go, ends that come first on one side, and readers that stop.
const EDITED_SHAPES: [&str; 4] = [
    "bulk-up",
    "half-close-client",
    "half-close-server",
    "stopped-reader",
];

/// Seeds of a soak's round: more than there are ways of reading.
const PLANS: u64 = 100;

/// Hang limit of a storm, which nothing runs beside.
const STORM: Duration = Duration::from_secs(1);

/// MiB for each way of reading, and for how long an end may get nothing.
fn load() -> (u64, Duration) {
    match env::var("UNDERPASS_READERS_MIB") {
        Ok(mib) => (mib.parse().unwrap(), STORM),
        Err(_) => (MIB, LOADED),
    }
}

/// Whether a path has this way of reading: past TCP splice(2) finds nothing
/// (docs/decisions/0005-shortcut.md).
fn has(path: &str, reading: Reading) -> bool {
    !(path == "shortcut" || path.starts_with(EDITED)) || reading != Reading::Splice
}

/// Checks that the agent has changed so many frames, and had nothing else to say of any, and that no leg was long.
fn assert_all_edited(agent: &Agent<'_>, frames: u64, path: &str) {
    let changed = "underpass_transforms_total{outcome=\"changed\",reason=\"\",rule=\"r\",transform=\"rewrite\"}";
    assert!(frames > 0, "{path}");
    assert_eq!(agent.metric(changed).unwrap(), frames as f64, "{path}");
    for (name, count) in [
        ("underpass_transforms_total", frames as f64),
        ("underpass_pipeline_unseen_total", 0.0),
        ("underpass_pipeline_unreadable_total", 0.0),
        ("underpass_long_legs_total", 0.0),
    ] {
        assert_eq!(sum(agent, name), count, "{path}: {name}");
    }
}

#[test]
fn whoever_reads_in_whatever_way_gets_every_byte_on_every_path() {
    let (mib, hang_limit) = load();
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
        let is_edited = path.starts_with(EDITED);
        let steps = if is_edited { edit() } else { String::new() };
        let policy = format!("[[rule]]\nname = \"r\"\nto = [\":{port}\"]\n{rule}\n{steps}");
        let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
        let binary = Path::new(env!("CARGO_BIN_EXE_underpass"));
        let agent = Agent::start(binary, netns, cgroup, "splice = \"auto\"", &policy).unwrap();
        if path.starts_with("splice") {
            agent
                .wait_for_log("path works path=\"splice_egress\"")
                .unwrap();
        }
        if is_edited {
            agent.wait_for_log("path works path=\"shortcut\"").unwrap();
        }
        // What is in a sockmap tells less (docs/decisions/0026-sockets-of-applications.md).
        let allowed: Vec<String> = match counted {
            "" => vec![],
            _ => vec!["fionread".to_owned()],
        };
        let readings = Reading::ALL.iter().filter(|r| has(path, **r));
        let further: &[&str] = if is_edited { &EDITED_SHAPES } else { &[] };
        let mut edited_frames = 0;
        for (nth, reading) in (1..).zip(readings) {
            let names = [&WAITING[..], &SHAPES, further, &[reading.name()]].concat();
            let plan = Plan {
                choices: Choices::named(&names).unwrap(),
                bytes: mib << 20,
                connection_max: ANSWER.min(mib << 20),
                connections: (1, 4),
                seed: sandbox::seed() * PLANS + nth,
                hang_limit,
                cql: is_edited.then(|| Cql {
                    is_edited,
                    ..Cql::default()
                }),
                ..Plan::new(server.addr())
            };
            let report = sandbox.client(|| drive(&plan)).unwrap();
            assert!(
                report.passed(&allowed),
                "{path}, {}: {report}",
                reading.name()
            );
            edited_frames += report.edited_frames;
        }
        if is_edited {
            assert_all_edited(&agent, edited_frames, path);
        }
        if !counted.is_empty() {
            assert!(agent.metric(counted).unwrap() > 0.0, "{path}");
        }
    }
    assert!(tried > 0, "no path is called {alone:?}");
}
