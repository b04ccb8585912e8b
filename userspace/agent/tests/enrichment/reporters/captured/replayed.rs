//! `docs/capture.md`: its commands, run as they stand there, on a host with an application and two databases; and what is
//! replayed of a file.

use std::{
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use cql_node::{Node, NodeOptions};

use super::*;
use crate::common::{operating::blocks_of, world::Client};

/// The page.
const PAGE: &str = "capture.md";

const SCHEMA: [&str; 2] = [
    "CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    "CREATE TABLE shop.orders (id int PRIMARY KEY, v text)",
];

fn database(sandbox: &Sandbox, listen: &str, more: &str) -> Node {
    let listen: SocketAddr = listen.parse().unwrap();
    let schema = SCHEMA.iter().chain([&more]).map(|text| (*text).to_owned());
    let options = NodeOptions {
        listen,
        schema: schema.collect(),
        ..NodeOptions::default()
    };
    sandbox.server(|| Node::start(options)).unwrap().unwrap()
}

/// An application: orders by their numbers, one that is there and one that is not, and a write now and then.
fn application(mut client: Client, stop: &AtomicBool) {
    let reads = |id: i32| query(4, 1, &format!("SELECT v FROM shop.orders WHERE id = {id}"));
    while !stop.load(Relaxed) {
        for _ in 0..4 {
            client.ask(&reads(1));
        }
        for _ in 0..2 {
            client.ask(&query(4, 1, "SELECT id FROM shop.carts LIMIT 10"));
        }
        client.ask(&query(
            4,
            1,
            "INSERT INTO shop.orders (id, v) VALUES (7, 'seven')",
        ));
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_pages_commands_say_what_stands_there() {
    host(|host| {
        let carts = "CREATE TABLE shop.carts (id int PRIMARY KEY)";
        let first = database(host.sandbox, "127.0.0.1:9042", carts);
        // Without an order, and without a table.
        let _second = database(
            host.sandbox,
            "127.0.0.1:9043",
            "CREATE TABLE shop.other (id int PRIMARY KEY)",
        );
        let connects = || {
            let dial = || TcpStream::connect(first.addr());
            Client::begin(host.sandbox.client(dial).unwrap().unwrap(), 4)
        };
        let rule = "[[rule]]\nname = \"shop\"\nto = [\":PORT\"]\naction = \"enrich\"\n\
                    pipeline = [{ transform = \"stats\" }]\n";
        host.policy_to(first.addr().port(), rule);
        connects().ask(&query(
            4,
            1,
            "INSERT INTO shop.orders (id, v) VALUES (1, 'one')",
        ));
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stops = Stops(&stop);
            let client = connects();
            scope.spawn(|| application(client, &stop));
            for block in blocks_of(PAGE)
                .iter()
                .filter(|block| block.kind == "console")
            {
                let mut said = String::new();
                for line in block.text.lines() {
                    if let Some(command) = line.strip_prefix("# ") {
                        said += &format!("{line}\n{}", run(host, folder.path(), command));
                    }
                }
                block.holds(&said);
            }
        });
        let mode = fs::metadata(folder.path().join("incident.jsonl"))
            .unwrap()
            .permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
    });
}

/// Ends the application, also where the test fails.
struct Stops<'s>(&'s AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Whether a replay says that it could not ask in time, as on a machine that has other tests to run.
fn is_of_busy_machine(line: &str) -> bool {
    line.starts_with("up to ") && line.contains(" late: ")
}

/// Runs a command of the page in a folder, and returns what it says.
fn run(host: &Host<'_>, folder: &Path, command: &str) -> String {
    let binaries = Path::new(common::BINARY).parent().unwrap();
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg(format!("{command} 2>&1"))
        .current_dir(folder);
    shell
        .env("PATH", path)
        .env("UNDERPASS_ADMIN", host.agent.admin_socket());
    let output = host.sandbox.server(|| shell.output()).unwrap().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let lines = said.split_inclusive('\n');
    lines.filter(|line| !is_of_busy_machine(line)).collect()
}

/// A file with these lines behind the first one.
fn file(folder: &TempDir, lines: &[Value]) -> PathBuf {
    let file = folder.path().join("capture.jsonl");
    let first = json!({
        "underpass_capture": 1, "agent": "0", "began_unix_ms": 0, "rule": "r", "values": true,
    });
    let lines = [first]
        .iter()
        .chain(lines)
        .map(|line| format!("{line}\n"))
        .collect::<String>();
    fs::write(&file, lines).unwrap();
    file
}

fn record(op: &str, text: &str, values: Value, more: Value) -> Value {
    let mut record = json!({
        "at_us": 0, "flow": 1, "stream": 1, "op": op, "kind": "select", "keyspace": "shop",
        "statements": [{ "text": text, "values": values }], "consistency": "one",
        "outcome": "ok", "latency_us": 100, "request_bytes": 1, "response_bytes": 1,
    });
    record
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    record
}

#[test]
fn what_a_file_has_is_asked_and_compared() {
    let sandbox = Sandbox::new().unwrap();
    let node = database(
        &sandbox,
        "127.0.0.1:0",
        "CREATE TABLE shop.carts (id int PRIMARY KEY)",
    );
    let folder = tempfile::tempdir().unwrap();
    let write = "INSERT INTO orders (id, v) VALUES (?, ?)";
    let read = "SELECT v FROM orders WHERE id = ?";
    let one = json!(["0x00000001"]);
    let records = [
        record(
            "execute",
            write,
            json!(["0x00000001", "0x61"]),
            json!({ "kind": "select" }),
        ),
        record(
            "execute",
            read,
            one.clone(),
            json!({ "at_us": 1, "rows": 1 }),
        ),
        record("query", read, one.clone(), json!({ "at_us": 2, "rows": 1 })),
        record("query", read, json!([4]), json!({ "at_us": 3, "rows": 1 })),
        record(
            "query",
            "SELECT v FROM nowhere",
            json!([]),
            json!({
                "at_us": 4, "outcome": "error", "error_code": 0x2200,
            }),
        ),
        record(
            "query",
            read,
            one.clone(),
            json!({ "at_us": 5, "rows": 1, "later_page": true }),
        ),
        record(
            "query",
            "SELECT key FROM system.local",
            json!([]),
            json!({ "keyspace": "system" }),
        ),
        record("prepare", read, json!([]), json!({})),
        record(
            "batch",
            "DELETE FROM orders WHERE id = ?",
            json!(["0x00000009"]),
            json!({ "batch": "unlogged", "at_us": 6 }),
        ),
    ];
    let replay = |more: &[&str], records: &[Value]| {
        let file = file(&folder, records);
        let mut command = Command::new(common::BINARY);
        command
            .arg("replay")
            .arg(file)
            .args(["--to", &node.addr().to_string()]);
        command
            .args([
                "--compare",
                "--json",
                "--as-fast-as-possible",
                "--connections",
                "1",
            ])
            .args(more);
        let output = sandbox.server(|| command.output()).unwrap().unwrap();
        assert!(output.stderr.is_empty(), "{output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        (
            serde_json::from_str::<Value>(&said).unwrap(),
            output.status.code(),
        )
    };
    // Nothing that the file calls a read is written: the text counts.
    let (report, code) = replay(&[], &records);
    assert_eq!(code, Some(3), "{report}");
    assert_eq!(report["all"]["asked"], 4, "{report}");
    assert_eq!(report["all"]["rows_differ"], 2, "{report}");
    assert_eq!(report["all"]["errors_differ"], 0, "{report}");
    assert_eq!(report["capture"]["cut_off"], true);
    let left_out = &report["capture"]["left_out"];
    assert_eq!(left_out.as_object().unwrap().len(), 4, "{left_out}");
    // With what was written the rows are the same.
    let (report, code) = replay(&["--writes"], &records);
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(report["all"]["asked"], 6, "{report}");
    // The value that is made up finds nothing, and its rows are not compared.
    assert_eq!(report["all"]["rows_compared"], 2, "{report}");
    // An error that was not one.
    let failed = json!({ "outcome": "error", "error_code": 0x1200 });
    let (report, code) = replay(&[], &[record("execute", read, one, failed)]);
    assert_eq!(code, Some(3), "{report}");
    let difference = "was read_timeout, is ok: SELECT v FROM orders WHERE id = ?";
    assert_eq!(report["differences"][difference], 1, "{report}");
}

#[test]
fn keyspaces_that_are_not_there_are_made_and_dropped() {
    let sandbox = Sandbox::new().unwrap();
    let node = database(
        &sandbox,
        "127.0.0.1:0",
        "CREATE TABLE shop.carts (id int PRIMARY KEY)",
    );
    let folder = tempfile::tempdir().unwrap();
    let made = "CREATE KEYSPACE fresh WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}";
    let of = |at: u64, text: &str, keyspace: &str| {
        record(
            "query",
            text,
            json!([]),
            json!({ "at_us": at, "keyspace": keyspace }),
        )
    };
    let records = [
        of(0, "DROP KEYSPACE IF EXISTS gone", "gone"),
        of(1, made, "fresh"),
        of(2, "CREATE TABLE fresh.t (id int PRIMARY KEY)", "fresh"),
        of(3, "INSERT INTO t (id) VALUES (1)", "fresh"),
        of(4, "DROP KEYSPACE fresh", "fresh"),
    ];
    let mut command = Command::new(common::BINARY);
    command.arg("replay").arg(file(&folder, &records));
    command.args(["--to", &node.addr().to_string(), "--connections", "1"]);
    command.args(["--writes", "--compare", "--json", "--as-fast-as-possible"]);
    let output = sandbox.server(|| command.output()).unwrap().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["all"]["asked"], 5, "{report}");
    assert_eq!(report["all"]["errors_are"], 0, "{report}");
}

#[test]
fn what_was_asked_is_told_of_a_database_that_goes_away() {
    /// When the second request is asked; the database goes in the middle.
    const SECOND: Duration = Duration::from_secs(4);
    let sandbox = Sandbox::new().unwrap();
    let node = database(
        &sandbox,
        "127.0.0.1:0",
        "CREATE TABLE shop.carts (id int PRIMARY KEY)",
    );
    let folder = tempfile::tempdir().unwrap();
    let reads = |at: Duration| {
        let at = at.as_micros() as u64;
        record(
            "query",
            "SELECT id FROM carts",
            json!([]),
            json!({ "at_us": at }),
        )
    };
    let records = [Duration::ZERO, SECOND, SECOND, SECOND].map(reads);
    let mut command = Command::new(common::BINARY);
    command.arg("replay").arg(file(&folder, &records));
    command.args([
        "--to",
        &node.addr().to_string(),
        "--connections",
        "1",
        "--json",
    ]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let replay = sandbox.server(|| command.spawn()).unwrap().unwrap();
    thread::sleep(SECOND / 2);
    drop(node);
    let output = replay.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("cannot be connected to any more"), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let counts = [&report["all"]["asked"], &report["all"]["unanswered"]];
    assert_eq!(counts, [&json!(2), &json!(1)], "{report}");
    let lost = [&report["not_asked"], &report["connections_lost"]];
    assert_eq!(lost, [&json!(2), &json!(1)], "{report}");
}

#[test]
fn a_database_that_cannot_be_asked_is_said() {
    let sandbox = Sandbox::new().unwrap();
    let options = NodeOptions::of_user("ann", "right");
    let node = sandbox.server(|| Node::start(options)).unwrap().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let query = record("query", "SELECT key FROM shop.t", json!([]), json!({}));
    let capture = file(&folder, &[query]);
    let [right, wrong] = ["right", "wrong"].map(|password| {
        let file = folder.path().join(password);
        fs::write(&file, format!("{password}\n")).unwrap();
        file.display().to_string()
    });
    let to = node.addr().to_string();
    let replay = |file: &Path, to: &str, more: &[&str]| {
        let mut command = Command::new(common::BINARY);
        command
            .arg("replay")
            .arg(file)
            .args(["--to", to])
            .args(more);
        let output = sandbox.server(|| command.output()).unwrap().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    for (to, more, said) in [
        ("127.0.0.1:1", vec![], "Connection refused"),
        (&*to, vec![], "give --user and --password-file"),
        (
            &*to,
            vec!["--user", "ann", "--password-file", &wrong],
            "cannot ask the database",
        ),
    ] {
        let (code, error) = replay(&capture, to, &more);
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains(said), "{error}");
    }
    let (code, error) = replay(&capture, &to, &["--user", "ann", "--password-file", &right]);
    assert_eq!((code, &*error), (Some(0), ""));
    fs::write(folder.path().join("none"), "none\n").unwrap();
    let (code, error) = replay(&folder.path().join("none"), &to, &[]);
    assert_eq!(code, Some(1));
    assert!(error.contains("it is no capture"), "{error}");
}
