//! `underpass capture`, as an operator runs it.

mod replayed;

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Output, Stdio},
    time::Instant,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sandbox::{Agent, Sandbox};
use tempfile::TempDir;

use super::*;

/// A running `underpass capture`.
struct Capture {
    child: Option<Child>,
    folder: TempDir,
}

impl Capture {
    fn begin(agent: &Agent<'_>, args: &[&str]) -> Self {
        let captures = || agent.metric("underpass_captures").unwrap();
        let before = captures();
        let folder = tempfile::tempdir().unwrap();
        let child = command(agent, args, &folder.path().join("file"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let capture = Self {
            child: Some(child),
            folder,
        };
        eventually("it captures", || captures() > before);
        capture
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().unwrap();
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("file")
    }

    /// How many lines there are.
    fn lines(&self) -> usize {
        let text = fs::read_to_string(self.file()).unwrap();
        text.lines().count()
    }

    /// Everything that it says, once it has ended.
    fn output(&mut self) -> Output {
        self.child.take().unwrap().wait_with_output().unwrap()
    }

    /// The lines of the file, after ctrl-C.
    fn ends(mut self) -> Vec<Value> {
        self.signal(Signal::SIGINT);
        let output = self.output();
        assert!(output.status.success(), "{output:?}");
        lines(&self.file())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn command(agent: &Agent<'_>, args: &[&str], out: &Path) -> Command {
    let mut command = Command::new(common::BINARY);
    command.arg("capture").args(args);
    command.arg("--out").arg(out);
    command.arg("--admin").arg(agent.admin_socket());
    command
}

fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    // The last one may be on its way.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

const TEXT: &str = "SELECT v FROM shop.orders WHERE id = ? AND x = 'hidden'";

/// A statement that is executed, fails when it is executed again, and a text with a value.
fn asks(c: &mut Conversation, version: u8) {
    c.client_sends(&execute(version, 1));
    c.server_sends(&rows(version, 1, 3));
    c.client_sends(&query(
        version,
        2,
        "INSERT INTO shop.carts (k, n) VALUES ('hidden', 4242424242)",
    ));
    c.server_sends(&void(version, 2));
    c.client_sends(&execute(version, 1));
    c.server_sends(&error(version, 1, 0x1200));
}

#[test]
fn a_flows_requests_are_in_the_file_without_values_unless_they_are_wanted() {
    host(|host| {
        for (path, version) in [("inline", 4), ("inline", 5), ("tap", 4), ("tap", 5)] {
            host.policy(&policy(
                &format!("path = \"{path}\""),
                "{ transform = \"stats\" }",
            ));
            let mut c = begin(host, version);
            let mut other = begin(host, version);
            // Before anybody captures, and before the tap's reader looks again.
            let prepares = || {
                let rows = host.agent.json("/statements").unwrap();
                let mut rows = rows.as_array().unwrap().iter();
                let row = rows.find(|row| row["kind"] == "prepare");
                row.map_or(0, |row| row["count"].as_u64().unwrap())
            };
            let before = prepares();
            c.client_sends(&prepare(version, 1, TEXT));
            c.server_sends(&prepared(version, 1));
            eventually("it is read", || prepares() > before);
            let id = host.flow(&c)["id"].to_string();
            let masked = Capture::begin(&host.agent, &[&id, "--for", "1m"]);
            let values = Capture::begin(&host.agent, &["--rule", "r", "--with-values"]);
            asks(&mut c, version);
            other.client_sends(&query(version, 1, SELECT));
            other.server_sends(&void(version, 1));
            eventually("all is told", || {
                [masked.lines(), values.lines()] == [1 + 3, 1 + 4]
            });
            let mode = fs::metadata(masked.file()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let masked = masked.ends();
            let text = format!("{masked:?}");
            for hidden in ["hidden", "secret", "424242", "736563"] {
                assert!(!text.contains(hidden), "{text}");
            }
            assert_eq!(masked.len(), 5, "{path} {version}: {text}");
            assert_eq!(
                fields(&masked[..1], &["underpass_capture", "flow", "values"]),
                [json!([1, id, false])]
            );
            let names = [
                "op",
                "kind",
                "keyspace",
                "table",
                "consistency",
                "page_size",
                "outcome",
                "rows",
                "error_code",
            ];
            assert_eq!(
                fields(&masked[1..4], &names),
                [
                    json!([
                        "execute",
                        "select",
                        "shop",
                        "orders",
                        "local_one",
                        100,
                        "ok",
                        3,
                        null
                    ]),
                    json!([
                        "query", "insert", "shop", "carts", "one", null, "ok", null, null
                    ]),
                    json!([
                        "execute",
                        "select",
                        "shop",
                        "orders",
                        "local_one",
                        100,
                        "error",
                        null,
                        0x1200
                    ]),
                ],
                "{path} {version}"
            );
            let executed = json!([{
                "text": "SELECT v FROM shop.orders WHERE id = ? AND x = 'xxxxxx'",
                "values": [6],
            }]);
            let queried = json!([{
                "text": "INSERT INTO shop.carts (k, n) VALUES ('xxxxxx', 1111111111)",
            }]);
            assert_eq!(
                fields(&masked[1..4], &["statements"]),
                [json!([executed]), json!([queried]), json!([executed])]
            );
            let end = json!(["interrupted", 3, 0, 0]);
            assert_eq!(
                fields(&masked[4..], &["end", "requests", "dropped", "gaps"]),
                [end]
            );
            // Of the other flow too, and as they were.
            let values = values.ends();
            let said = host.agent.log();
            assert!(
                said.contains("requests are captured with their values"),
                "{said}"
            );
            let statements = fields(&values[1..5], &["statements"]);
            let executed = json!([{ "text": TEXT, "values": ["0x736563726574"] }]);
            assert_eq!(statements[0], json!([executed]));
            assert_eq!(statements[3], json!([[{ "text": SELECT }]]));
            c.ends();
            other.ends();
        }
    });
}

/// The values of these fields, line by line.
fn fields(lines: &[Value], names: &[&str]) -> Vec<Value> {
    let of = |line: &Value| names.iter().map(|name| line[name].clone()).collect();
    lines.iter().map(of).collect()
}

#[test]
fn what_nobody_reads_is_refused_with_the_advice_what_to_do() {
    host(|host| {
        let folder = tempfile::tempdir().unwrap();
        let refused = |args: &[&str]| {
            let file = folder.path().join("refused");
            let output = command(&host.agent, args, &file).output().unwrap();
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            assert!(!file.exists());
            String::from_utf8(output.stderr).unwrap()
        };
        let of = |action: &str, rest: &str| {
            format!("[[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"{action}\"\n{rest}\n")
        };
        host.policy(&of("observe", ""));
        let c = begin(host, 4);
        let id = host.flow(&c)["id"].as_str().unwrap().to_owned();
        for said in [refused(&[&id]), refused(&["--rule", "r"])] {
            assert!(said.contains("nobody reads"), "{said}");
            assert!(said.contains("{ transform = \"stats\" }"), "{said}");
        }
        c.ends();
        host.policy(&of(
            "enrich",
            "fail = \"open\"\npath = \"tap\"\npipeline = [{ transform = \"count\" }]",
        ));
        let c = begin(host, 4);
        let id = host.flow(&c)["id"].to_string();
        for said in [refused(&[&id]), refused(&["--rule", "r"])] {
            assert!(said.contains("the beginnings of requests alone"), "{said}");
        }
        c.ends();
        let said = refused(&["--rule", "nothing"]);
        assert!(said.contains("there is no rule \"nothing\""), "{said}");
        assert!(refused(&["4711"]).contains("there is no flow 4711"));
        host.policy(&policy(INLINE, "{ transform = \"stats\" }"));
        let both = [1, 2].map(|_| Capture::begin(&host.agent, &["--rule", "r"]));
        let said = refused(&["--rule", "r"]);
        assert!(said.contains("2 captures run already"), "{said}");
        drop(both);
        eventually("nobody captures", || {
            host.agent.metric("underpass_captures").unwrap() == 0.0
        });
        let taken = folder.path().join("taken");
        fs::write(&taken, "kept").unwrap();
        let output = command(&host.agent, &["--rule", "r"], &taken)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("name another by --out"), "{said}");
        assert_eq!(fs::read_to_string(&taken).unwrap(), "kept");
    });
}

#[test]
fn a_capture_that_does_not_read_slows_no_flow_and_says_what_it_missed() {
    /// More than waits for it in the agent and in its socket.
    const REQUESTS: u64 = 400;
    host(|host| {
        for path in ["inline", "tap"] {
            host.policy(&policy(
                &format!("path = \"{path}\""),
                "{ transform = \"stats\" }",
            ));
            let mut c = begin(host, 4);
            let capture = Capture::begin(&host.agent, &["--rule", "r", "--for", "1m"]);
            let dropped = || {
                host.agent
                    .metric("underpass_capture_dropped_total")
                    .unwrap()
            };
            let told = || host.agent.metric("underpass_captured_total").unwrap();
            let before = (dropped(), told());
            capture.signal(Signal::SIGSTOP);
            let text = format!(
                "INSERT INTO shop.carts (k) VALUES ('{}')",
                "y".repeat(48 << 10)
            );
            for _ in 0..REQUESTS {
                // Every byte arrives.
                c.client_sends(&query(4, 1, &text));
                c.server_sends(&void(4, 1));
            }
            let counts = || ((told() - before.1) as u64, (dropped() - before.0) as u64);
            // Copies of so much at once may be lost: then there are fewer, and gaps.
            let mut seen = counts();
            eventually("all is told or dropped", || {
                thread::sleep(Duration::from_millis(300));
                std::mem::replace(&mut seen, counts()) == counts()
            });
            let (all, lost) = counts();
            assert!(lost > 0 || path == "tap");
            capture.signal(Signal::SIGCONT);
            // A line for each request that is told, and one or more for the others.
            eventually("it is told", || {
                let lines = lines(&capture.file());
                let missed = lines.iter().filter_map(|line| line["dropped"].as_u64());
                let records = lines.iter().filter(|line| line["outcome"].is_string());
                (records.count() as u64, missed.sum::<u64>()) == (all, lost)
            });
            let lines = capture.ends();
            let end = lines.last().unwrap();
            assert_eq!(
                (&end["requests"], &end["dropped"]),
                (&json!(all), &json!(lost)),
                "{path}"
            );
            let gaps = end["gaps"].as_u64().unwrap();
            assert!(
                all + lost == REQUESTS || path == "tap" && gaps > 0,
                "{path}: {end}"
            );
            c.ends();
        }
    });
}

/// Reads an answer slowly, for so long at most.
fn trickles(mut stream: UnixStream, longest: Duration) -> String {
    /// Less in a second than is asked.
    const BYTES: usize = 16 << 10;
    const PAUSE: Duration = Duration::from_millis(50);
    let (begun, mut said, mut piece) = (Instant::now(), Vec::new(), [0; BYTES]);
    while begun.elapsed() < longest {
        match stream.read(&mut piece).unwrap() {
            0 => break,
            bytes => said.extend(&piece[..bytes]),
        }
        thread::sleep(PAUSE);
    }
    String::from_utf8(said).unwrap()
}

#[test]
fn a_capture_ends_with_its_time_however_slowly_it_is_read() {
    /// Less than it takes to read all that may wait.
    const LONGEST: Duration = Duration::from_secs(20);
    host(|host| {
        host.policy(&policy(INLINE, "{ transform = \"stats\" }"));
        let mut c = begin(host, 4);
        let mut stream = UnixStream::connect(host.agent.admin_socket()).unwrap();
        let asked = "GET /capture?rule=r&for=1s HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(asked.as_bytes()).unwrap();
        let text = format!(
            "INSERT INTO shop.carts (k) VALUES ('{}')",
            "y".repeat(48 << 10)
        );
        let said = thread::scope(|scope| {
            let reads = scope.spawn(|| trickles(stream, LONGEST));
            while !reads.is_finished() {
                c.client_sends(&query(4, 1, &text));
                c.server_sends(&void(4, 1));
            }
            reads.join().unwrap()
        });
        let end = said.lines().find(|line| line.starts_with("{\"end\":"));
        let end: Value = serde_json::from_str(end.expect("it goes on")).unwrap();
        let told = said.matches("\"outcome\":").count();
        assert_eq!(
            fields(std::slice::from_ref(&end), &["end", "requests"]),
            [json!(["time", told])]
        );
        assert!(end["dropped"].as_u64().unwrap() > 0, "{end}");
        c.ends();
    });
}

#[test]
fn a_capture_of_an_agent_that_dies_is_good_up_to_there() {
    let sandbox = Sandbox::new().unwrap();
    let rules = "[[rule]]\nname = \"r\"\nto = [\":1\"]\naction = \"enrich\"\n\
                 pipeline = [{ transform = \"stats\" }]\n";
    let netns = Some(&sandbox.netns);
    let binary = Path::new(common::BINARY);
    let mut agent = Agent::start(binary, netns, &sandbox.cgroup, "", rules).unwrap();
    let mut capture = Capture::begin(&agent, &["--rule", "r", "--for", "1m"]);
    agent.kill().unwrap();
    let output = capture.output();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("good up to there"), "{said}");
    let lines = lines(&capture.file());
    assert_eq!(
        fields(&lines[1..], &["end", "requests"]),
        [json!(["agent", 0])]
    );
}
