//! Rules with `audit`: which lines there are, what is in them and what is not; what becomes of them when
//! the file cannot be written.

mod crash;
mod files;
mod full;
mod host_crash;

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use nix::sys::signal::Signal;
use sandbox::{Agent, Sandbox};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{
    BINARY, accept, eventually,
    frames::{RESPONSE, RESULT, frame, query, ready, startup, void},
    wire::{
        Conversation, Host, PREPARE, auth_response, auth_success, authenticate, host, set_keyspace,
    },
};

const SELECT: &str = "SELECT v FROM shop.orders WHERE id = 4711";

/// One rule, `r`, with an audit in this file before other steps. Its flows come to the agent: what is told of copies
/// `reporters::tapped` says.
fn policy(file: &Path, settings: &str, steps: &str) -> String {
    format!(
        "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\npath = \"inline\"\naction = \"enrich\"\n\
         pipeline = [{{ transform = \"audit\", file = \"{}\"{settings} }}{steps}]\n",
        file.display()
    )
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    (folder, file)
}

/// Without a line. It stays the same file: one that has gone may be written for a moment longer.
fn emptied(file: &Path) {
    fs::write(file, "").unwrap();
}

fn begin(host: &Host<'_>, version: u8) -> Conversation {
    let mut c = host.connect();
    let options = [
        ("CQL_VERSION", "3.0.0"),
        ("DRIVER_NAME", "a \"driver\""),
        ("DRIVER_VERSION", "1.2"),
        ("APPLICATION_NAME", "billing"),
    ];
    c.client_sends(&startup(version, &options));
    c.server_sends(&ready(version));
    c.in_segments = version >= 5;
    c
}

fn asks(c: &mut Conversation, version: u8, text: &str) {
    c.client_sends(&query(version, 1, text));
    c.server_sends(&void(version, 1));
}

fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text.split_inclusive('\n');
    // Not one that is being written.
    let whole = lines.filter(|line| line.ends_with('\n'));
    whole
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// When there are so many.
fn wait_for(file: &Path, count: usize) -> Vec<Value> {
    eventually("the lines are there", || lines(file).len() >= count);
    let lines = lines(file);
    assert_eq!(lines.len(), count, "{lines:#?}");
    lines
}

fn records(host: &Host<'_>, outcome: &str) -> u64 {
    let labels = format!("journal=\"audit\",outcome=\"{outcome}\"");
    // It is not there before there is something to count.
    let sample = format!("underpass_journal_records_total{{{labels}}}");
    host.agent.metric(&sample).unwrap_or_default() as u64
}

fn error(version: u8, stream: i16, code: i32, message: &str) -> Vec<u8> {
    let length = (message.len() as u16).to_be_bytes();
    let body = [&code.to_be_bytes()[..], &length, message.as_bytes()].concat();
    frame(RESPONSE | version, stream, 0x00, &body)
}

#[test]
fn who_did_what() {
    let (_folder, file) = folder();
    host(|host| {
        host.policy(&policy(&file, "", ""));
        let cgroup = host.sandbox.cgroup.rule_path();
        for version in [4, 5] {
            emptied(&file);
            host.policy(&policy(&file, "", ""));
            let mut c = begin(host, version);
            asks(&mut c, version, SELECT);
            c.client_sends(&query(version, 2, "USE shop"));
            c.server_sends(&set_keyspace(version, 2, "shop"));
            c.client_sends(&query(version, 3, "DROP TABLE orders"));
            c.server_sends(&error(version, 3, 0x2100, "no"));
            let client = c.client.local_addr().unwrap().to_string();
            let lines = wait_for(&file, 4);
            c.ends();
            for line in &lines {
                assert_eq!(line["rule"], "r");
                assert_eq!(line["client"], client.as_str());
                assert_eq!(line["application"], "billing");
                assert_eq!(line["driver"], "a \"driver\"");
                assert_eq!(line["driver_version"], "1.2");
                assert_eq!(line["pid"], std::process::id());
                assert_eq!(line["cgroup"].as_str(), cgroup.to_str(), "{line}");
                assert!(line["time"].as_str().unwrap().ends_with('Z'), "{line}");
                assert!(line["latency_us"].as_u64().is_some(), "{line}");
            }
            let all = |key: &str| lines.iter().map(|line| &line[key]).collect::<Vec<_>>();
            assert_eq!(all("kind"), ["startup", "select", "use", "drop"]);
            assert_eq!(all("outcome"), ["ok", "ok", "ok", "error"]);
            assert_eq!(lines[1]["keyspace"], "shop");
            assert_eq!(lines[1]["table"], "orders");
            assert_eq!(lines[1]["consistency"], "one");
            assert_eq!(
                lines[1]["fingerprint"],
                "SELECT v FROM shop.orders WHERE id = ?"
            );
            assert_eq!(lines[2]["keyspace"], "shop");
            assert_eq!(lines[3]["error"], "unauthorized");
            let text = fs::read_to_string(&file).unwrap();
            assert!(!text.contains("4711"), "a value: {text}");
            assert!(!text.contains("\"statement\""), "{text}");
        }
    });
}

#[test]
fn logins_are_shown_and_passwords_never() {
    let (_folder, file) = folder();
    host(|host| {
        host.policy(&policy(&file, ", statement = true", ""));
        for (version, accepted) in [(4, true), (4, false), (5, true)] {
            emptied(&file);
            host.policy(&policy(&file, ", statement = true", ""));
            let mut c = host.connect();
            c.client_sends(&startup(version, &[("CQL_VERSION", "3.0.0")]));
            c.server_sends(&authenticate(version));
            c.in_segments = version >= 5;
            c.client_sends(&auth_response(version, 1, b"\0ann\0s3cret"));
            if !accepted {
                c.server_sends(&error(version, 1, 0x0100, "bad credentials"));
                let lines = wait_for(&file, 2);
                assert_eq!(lines[1]["kind"], "auth_response");
                assert_eq!(lines[1]["outcome"], "error");
                assert_eq!(lines[1]["error"], "bad_credentials");
                assert_eq!(lines[1]["user"], "ann");
                c.ends();
                continue;
            }
            c.server_sends(&auth_success(version, 1));
            asks(&mut c, version, SELECT);
            asks(&mut c, version, "CREATE ROLE bob WITH PASSWORD = 's3cret'");
            let lines = wait_for(&file, 4);
            c.ends();
            assert_eq!(lines[0]["user"], Value::Null);
            assert_eq!(lines[1]["outcome"], "ok");
            for line in &lines[1..] {
                assert_eq!(line["user"], "ann");
            }
            assert_eq!(lines[2]["statement"], SELECT);
            assert_eq!(lines[3]["kind"], "create");
            assert_eq!(lines[3]["statement"], Value::Null);
            assert!(!fs::read_to_string(&file).unwrap().contains("s3cret"));
        }
    });
}

/// A flow that has logged in.
fn logs_in(host: &Host<'_>, user: &str) -> Conversation {
    let mut c = host.connect();
    c.client_sends(&startup(4, &[("CQL_VERSION", "3.0.0")]));
    c.server_sends(&authenticate(4));
    let token = format!("\0{user}\0s3cret");
    c.client_sends(&auth_response(4, 1, token.as_bytes()));
    c.server_sends(&auth_success(4, 1));
    c
}

#[test]
fn a_client_that_logs_in_again_is_the_user_whom_the_database_took_last() {
    let (_folder, file) = folder();
    host(|host| {
        for (settings, expected) in [
            ("", &[Some("ann"), Some("bob"), Some("bob"), None][..]),
            (", users = [\"bob\"]", &[Some("bob"), Some("bob"), None]),
        ] {
            emptied(&file);
            let settings = format!(", kinds = [\"select\"]{settings}");
            host.policy(&policy(&file, &settings, ""));
            let mut c = logs_in(host, "ann");
            asks(&mut c, 4, SELECT);
            // Nobody can tell who it is that logs in by another mechanism.
            for (token, accepted) in [
                (&b"\0bob\0x"[..], true),
                (b"\0eve\0x", false),
                (b"another mechanism's", true),
            ] {
                c.client_sends(&auth_response(4, 1, token));
                let answer = match accepted {
                    true => auth_success(4, 1),
                    false => error(4, 1, 0x0100, "bad credentials"),
                };
                c.server_sends(&answer);
                asks(&mut c, 4, SELECT);
            }
            c.ends();
            let lines = wait_for(&file, expected.len());
            let users: Vec<_> = lines.iter().map(|line| line["user"].as_str()).collect();
            assert_eq!(users, expected, "{settings}");
        }
    });
}

#[test]
fn whose_requests_are_shown_is_chosen_and_which() {
    let (_folder, file) = folder();
    host(|host| {
        for (settings, expected) in [
            ("users = [\"ann\"]", [("ann", "orders"), ("ann", "items")]),
            (
                "not_users = [\"ann\"]",
                [("bob", "orders"), ("bob", "items")],
            ),
            (
                "not_tables = [\"shop.items\"]",
                [("ann", "orders"), ("bob", "orders")],
            ),
        ] {
            emptied(&file);
            let settings = format!(", kinds = [\"select\"], {settings}");
            host.policy(&policy(&file, &settings, ""));
            for user in ["ann", "bob"] {
                let mut c = logs_in(host, user);
                asks(&mut c, 4, SELECT);
                asks(&mut c, 4, "SELECT v FROM shop.items");
                c.ends();
            }
            // Nobody knows who this is, so it is there, behind all others.
            let mut c = begin(host, 4);
            asks(&mut c, 4, SELECT);
            c.ends();
            let lines = wait_for(&file, 3);
            let shown = lines.iter().map(|line| (&line["user"], &line["table"]));
            let expected = expected.map(|(user, table)| (user.into(), table.into()));
            let last = (Value::Null, "orders".into());
            let all = [&expected[..], &[last]].concat();
            assert!(
                shown.eq(all.iter().map(|(user, table)| (user, table))),
                "{settings}: {lines:#?}"
            );
        }
    });
}

#[test]
fn what_is_bound_is_never_shown() {
    const ID: &[u8] = b"0123456789abcdef";
    const TEXT: &str = "SELECT v FROM shop.orders WHERE id = ?";
    let (_folder, file) = folder();
    host(|host| {
        for (version, settings) in [
            (4, ""),
            (5, ""),
            (4, ", statement = true"),
            (5, ", statement = true"),
        ] {
            emptied(&file);
            host.policy(&policy(&file, settings, ""));
            let mut c = begin(host, version);
            let text = [&(TEXT.len() as i32).to_be_bytes()[..], TEXT.as_bytes()].concat();
            let v5 = |bytes: &'static [u8]| if version < 5 { &[][..] } else { bytes };
            let prepare = [&text[..], v5(&[0; 4])].concat();
            c.client_sends(&frame(version, 1, PREPARE, &prepare));
            let prepared = [&4_i32.to_be_bytes()[..], &[0, 16], ID, &[0; 100]].concat();
            c.server_sends(&frame(RESPONSE | version, 1, RESULT, &prepared));
            // At ONE, with one value.
            let value = [&[0, 1][..], v5(&[0; 3]), &[1, 0, 1, 0, 0, 0, 5], b"b0und"].concat();
            let execute = [&[0, 16][..], ID, v5(&[0, 1, b'm']), &value].concat();
            c.client_sends(&frame(version, 2, 0x0A, &execute));
            c.server_sends(&void(version, 2));
            let asked = [&text[..], &value].concat();
            c.client_sends(&frame(version, 3, 0x07, &asked));
            c.server_sends(&void(version, 3));
            let lines = wait_for(&file, 4);
            c.ends();
            for line in &lines[2..] {
                assert_eq!(line["kind"], "select", "{line}");
                assert_eq!(line["values"], 1, "{line}");
            }
            assert_eq!(
                lines[3]["statement"] == TEXT,
                !settings.is_empty(),
                "{}",
                lines[3]
            );
            let written = fs::read(&file).unwrap();
            let has = |bytes: &[u8]| written.windows(bytes.len()).any(|at| at == bytes);
            assert!(has(b"shop.orders") && !has(b"b0und"), "{lines:#?}");
            // Nor in hexadecimal.
            assert!(!has(b"6230756e64"), "{lines:#?}");
        }
    });
}

#[test]
fn what_is_refused_is_shown_with_its_reason() {
    let (_folder, file) = folder();
    host(|host| {
        let guard = ", { transform = \"guard\", refuse = [\"truncate\"] }";
        host.policy(&policy(&file, ", kinds = [\"ddl\"]", guard));
        for version in [4, 5] {
            emptied(&file);
            host.policy(&policy(&file, ", kinds = [\"ddl\"]", guard));
            let mut c = begin(host, version);
            let bytes = c.wrap(&query(version, 7, "TRUNCATE shop.orders"));
            c.client.write_all(&bytes).unwrap();
            let lines = wait_for(&file, 1);
            c.server_gets_nothing();
            assert_eq!(lines[0]["kind"], "truncate");
            assert_eq!(lines[0]["outcome"], "refused");
            assert_eq!(lines[0]["by"], "guard");
            assert_eq!(lines[0]["reason"], "truncate");
            assert!(c.client.read(&mut [0; 512]).unwrap() > 0);
            // What the database answers afterwards is its own.
            c.client_sends(&query(version, 1, "DROP TABLE shop.orders"));
            c.server_sends(&void(version, 1));
            let lines = wait_for(&file, 2);
            assert_eq!(lines[1]["outcome"], "ok");
            assert_eq!(lines[1]["by"], Value::Null);
            c.ends();
        }
    });
}

/// Bytes at which the agent fails end the flow that has them, as it is counted and told, and no other.
#[test]
fn a_panic_ends_one_flow_whose_requests_are_shown() {
    let (folder, file) = folder();
    let hook = format!("{}=panics_at=WORD", test_hooks::VARIABLE);
    let script = folder.path().join("underpass");
    sandbox::program::switched(&script, BINARY, &hook).unwrap();
    let sandbox = Sandbox::new().unwrap();
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap().unwrap();
    let to = listener.local_addr().unwrap();
    let rule =
        policy(&file, ", not_kinds = [\"startup\"]", "").replace("PORT", &to.port().to_string());
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let agent = Agent::start(&script, netns, cgroup, "", &rule).unwrap();
    let connect = || {
        let client = sandbox.client(|| TcpStream::connect(to)).unwrap().unwrap();
        let mut c = Conversation {
            client,
            server: accept(&listener).0,
            in_segments: false,
        };
        c.client_sends(&startup(4, &[("CQL_VERSION", "3.0.0")]));
        c.server_sends(&ready(4));
        c
    };
    let (mut bad, mut other) = (connect(), connect());
    bad.client_sends(&query(4, 3, "TRUNCATE shop.orders"));
    bad.client
        .write_all(&query(4, 4, "SELECT v FROM shop.orders WHERE w = 'WORD'"))
        .unwrap();
    let lines = wait_for(&file, 1);
    assert_eq!(lines[0]["kind"], "truncate");
    assert_eq!(lines[0]["outcome"], "unanswered");
    let ended = |peer: &mut TcpStream| peer.read(&mut [0; 64]).map_or(true, |read| read == 0);
    assert!(ended(&mut bad.client) && ended(&mut bad.server));
    let closed = "underpass_flows_closed_total{reason=\"panicked\"}";
    eventually("it is counted", || agent.metric(closed).unwrap() == 1.0);
    other.client_sends(&query(4, 1, SELECT));
    other.server_sends(&void(4, 1));
    assert_eq!(wait_for(&file, 2)[1]["outcome"], "ok");
    other.ends();
    eventually("all flows end", || {
        agent.metric("underpass_flows").unwrap() == 0.0
    });
}

#[test]
fn what_was_never_answered_is_shown() {
    let (_folder, file) = folder();
    host(|host| {
        host.policy(&policy(&file, ", not_kinds = [\"startup\"]", ""));
        for version in [4, 5] {
            emptied(&file);
            host.policy(&policy(&file, ", not_kinds = [\"startup\"]", ""));
            let mut c = begin(host, version);
            c.client_sends(&query(version, 3, "TRUNCATE shop.orders"));
            c.client_sends(&query(version, 2, SELECT));
            c.ends();
            let lines = wait_for(&file, 2);
            let all = |key: &str| lines.iter().map(|line| &line[key]).collect::<Vec<_>>();
            assert_eq!(all("kind"), ["truncate", "select"]);
            assert_eq!(all("outcome"), ["unanswered", "unanswered"]);
            assert_eq!(
                lines[1]["fingerprint"],
                "SELECT v FROM shop.orders WHERE id = ?"
            );
        }
    });
}

/// Many requests at once, and their answers as far as the flow is read.
fn asks_much(c: &mut Conversation, count: usize, text: &str) {
    let (mut to, mut from) = (c.client.try_clone().unwrap(), c.server.try_clone().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for n in 0..count {
                to.write_all(&query(4, n as i16, text)).unwrap();
            }
        });
        scope.spawn(move || {
            for n in 0..count {
                let mut got = query(4, n as i16, text);
                from.read_exact(&mut got).unwrap();
                from.write_all(&void(4, n as i16)).unwrap();
            }
        });
        for n in 0..count {
            let mut answer = void(4, n as i16);
            c.client.read_exact(&mut answer).unwrap();
        }
    });
}

#[test]
fn what_was_said_is_written_before_the_agent_ends() {
    const REQUESTS: usize = 100;
    let (_folder, file) = folder();
    let sandbox = Sandbox::new().unwrap();
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap().unwrap();
    let to = listener.local_addr().unwrap();
    let policy =
        policy(&file, ", kinds = [\"select\"]", "").replace("PORT", &to.port().to_string());
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let settings = "workers = 1";
    let mut agent = Agent::start(Path::new(BINARY), netns, cgroup, settings, &policy).unwrap();
    let mut client = sandbox.client(|| TcpStream::connect(to)).unwrap().unwrap();
    let (mut server, _) = accept(&listener);
    let mut exchange = |question: &[u8], answer: &[u8]| {
        client.write_all(question).unwrap();
        server.read_exact(&mut vec![0; question.len()]).unwrap();
        server.write_all(answer).unwrap();
        client.read_exact(&mut vec![0; answer.len()]).unwrap();
    };
    exchange(&startup(4, &[("CQL_VERSION", "3.0.0")]), &ready(4));
    for _ in 0..REQUESTS {
        exchange(&query(4, 1, SELECT), &void(4, 1));
    }
    client.write_all(&query(4, 2, SELECT)).unwrap();
    server
        .read_exact(&mut vec![0; query(4, 2, SELECT).len()])
        .unwrap();
    agent.stop().unwrap();
    let lines = lines(&file);
    assert_eq!(lines.len(), REQUESTS + 1);
    assert_eq!(lines[REQUESTS]["outcome"], "unanswered");
}
