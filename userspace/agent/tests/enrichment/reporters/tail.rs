//! `underpass tail`, as an operator runs it.

use std::{
    io::{BufRead, BufReader},
    os::unix::net::UnixStream,
    process::{Child, ChildStdout, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sandbox::Agent;

use super::*;

/// A running `underpass tail`, which watches already.
struct Tail {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Tail {
    fn begin(agent: &Agent<'_>, args: &[&str]) -> Self {
        let watchers = || agent.metric("underpass_tail_watchers").unwrap();
        let before = watchers();
        let mut child = Command::new(common::BINARY)
            .arg("tail")
            .args(args)
            .arg("--admin")
            .arg(agent.admin_socket())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        eventually("it watches", || watchers() > before);
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    /// The lines until the end, after the first one.
    fn rest(mut self) -> (Vec<String>, String, Option<i32>) {
        let rest = self.lines.by_ref().lines().map(Result::unwrap).collect();
        let mut said = String::new();
        let mut errors = self.child.stderr.take().unwrap();
        errors.read_to_string(&mut said).unwrap();
        (rest, said, self.child.wait().unwrap().code())
    }
}

fn told(lines: &[String]) -> Vec<Value> {
    let told = lines.iter().map(|line| serde_json::from_str(line).unwrap());
    told.collect()
}

/// The values of these fields, line by line.
fn fields(lines: &[Value], names: &[&str]) -> Vec<Value> {
    let of = |line: &Value| names.iter().map(|name| line[name].clone()).collect();
    lines.iter().map(of).collect()
}

const EXECUTED: &str = "SELECT v FROM shop.orders WHERE id = ?";

/// A statement that is prepared, executed, and fails when it is executed again.
fn prepares_and_executes(c: &mut Conversation, version: u8) {
    c.client_sends(&prepare(
        version,
        1,
        "SELECT v FROM shop.orders WHERE id = ?",
    ));
    c.server_sends(&prepared(version, 1));
    c.client_sends(&execute(version, 1));
    c.server_sends(&rows(version, 1, 3));
    c.client_sends(&execute(version, 1));
    c.server_sends(&error(version, 1, 0x1200));
    c.client_sends(&query(
        version,
        1,
        "INSERT INTO shop.carts (k) VALUES ('hidden')",
    ));
    c.server_sends(&void(version, 1));
}

#[test]
fn statements_are_told_as_they_pass() {
    host(|host| {
        for (path, version) in [("inline", 4), ("inline", 5), ("tap", 4), ("tap", 5)] {
            // `guard` does not look at what passes for anybody else.
            let (steps, fail) = match path {
                "tap" => ("{ transform = \"stats\" }", "open"),
                _ => (
                    "{ transform = \"guard\", refuse = [\"truncate\"] }",
                    "closed",
                ),
            };
            host.policy(&policy(
                &format!("fail = \"{fail}\"\npath = \"{path}\""),
                steps,
            ));
            let mut c = begin(host, version);
            let mut all = Tail::begin(&host.agent, &["--json", "--count", "4"]);
            let first: Value = serde_json::from_str(&all.line()).unwrap();
            assert_eq!(first["watching"]["flows"], 1, "{first}");
            let failed = Tail::begin(&host.agent, &["--json", "--errors", "--count", "1"]);
            let filter = "table=shop.carts,not user=etl,rule=r";
            let carts = Tail::begin(&host.agent, &["--json", "--count", "1", "--filter", filter]);
            let pattern = "insert into shop.*";
            let like = Tail::begin(&host.agent, &["--count", "1", "--statement", pattern]);
            prepares_and_executes(&mut c, version);
            let (lines, said, code) = all.rest();
            assert_eq!(code, Some(0), "{said}");
            let lines = told(&lines);
            assert_eq!(
                fields(&lines, &["kind", "table", "outcome", "rows", "statement"]),
                [
                    json!(["prepare", "orders", "ok", null, EXECUTED]),
                    json!(["select", "orders", "ok", 3, EXECUTED]),
                    json!(["select", "orders", "error", null, EXECUTED]),
                    json!([
                        "insert",
                        "carts",
                        "ok",
                        null,
                        "INSERT INTO shop.carts (k) VALUES (?)"
                    ]),
                ],
                "{path} {version}"
            );
            let flow = host.flow(&c);
            let of_flow = fields(
                &lines,
                &["flow", "client", "process", "pid", "path", "rule"],
            );
            let expected = json!([
                flow["id"],
                flow["client"],
                flow["process"],
                flow["pid"],
                flow["path"],
                "r"
            ]);
            assert_eq!(of_flow, vec![expected; 4]);
            let (lines, _, code) = failed.rest();
            let lines = told(&lines[1..]);
            assert_eq!(
                fields(&lines, &["error", "outcome"]),
                [json!(["read_timeout", "error"])]
            );
            assert_eq!(code, Some(0));
            let (lines, ..) = carts.rest();
            assert_eq!(
                fields(&told(&lines[1..]), &["keyspace", "kind"]),
                [json!(["shop", "insert"])]
            );
            let (lines, said, _) = like.rest();
            assert!(lines[0].starts_with("TIME (UTC)"), "{lines:?}");
            assert!(lines[1].contains("shop.carts"), "{lines:?}");
            assert!(
                lines[1].ends_with("INSERT INTO shop.carts (k) VALUES (?)"),
                "{lines:?}"
            );
            assert!(
                said.contains("Flows that are read: 1; that are not, and so not shown: 0."),
                "{said}"
            );
            assert!(said.ends_with("statements: 1\n"), "{said}");
            eventually("nobody watches", || {
                host.agent.metric("underpass_tail_watchers").unwrap() == 0.0
            });
            c.ends();
        }
    });
}

#[test]
fn what_is_not_read_is_said_and_what_copies_lack_is_left_out() {
    host(|host| {
        host.policy(
            "[[rule]]\nname = \"other\"\nto = [\":1\"]\naction = \"bypass\"\n\
             [[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"enrich\"\nfail = \"open\"\npath = \"tap\"\n\
             pipeline = [{ transform = \"count\" }]\n",
        );
        let mut c = begin(host, 4);
        let tail = Tail::begin(&host.agent, &["--count", "3"]);
        prepares_and_executes(&mut c, 4);
        let (lines, said, code) = tail.rest();
        assert_eq!((lines.len(), code), (4, Some(0)), "{lines:?}: {said}");
        assert!(lines[2].contains("shop.orders"), "{lines:?}");
        assert!(
            lines[3].contains("ERROR read_timeout: unknown"),
            "{lines:?}"
        );
        assert!(said.contains("which do not read: other."), "{said}");
        assert!(said.contains("no step looks at them: r."), "{said}");
        c.ends();
    });
}

#[test]
fn values_are_shown_only_where_the_file_allows_it() {
    host(|host| {
        host.policy(&policy(INLINE, ""));
        let output = Command::new(common::BINARY)
            .args(["tail", "--values", "--admin"])
            .arg(host.agent.admin_socket())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.contains("`tail_values = true` in [agent] of the policy file allows it"),
            "{said}"
        );
    });
    host_with("tail_values = true", |host| {
        for (path, version) in [("inline", 4), ("tap", 5)] {
            host.policy(&policy(
                &format!("path = \"{path}\""),
                "{ transform = \"stats\" }",
            ));
            let mut c = begin(host, version);
            let plain = Tail::begin(&host.agent, &["--json", "--count", "4"]);
            let values = Tail::begin(&host.agent, &["--json", "--count", "5", "--values"]);
            let text = Tail::begin(&host.agent, &["--values", "--count", "2"]);
            prepares_and_executes(&mut c, version);
            c.client_sends(&query(version, 1, "CREATE ROLE r WITH PASSWORD = 'secret'"));
            c.server_sends(&void(version, 1));
            let (lines, ..) = plain.rest();
            for hidden in ["secret", "hidden"] {
                assert!(!lines.concat().contains(hidden), "{lines:?}");
            }
            let (lines, ..) = values.rest();
            let lines = told(&lines[1..]);
            let literal = "INSERT INTO shop.carts (k) VALUES ('hidden')";
            assert_eq!(
                fields(&lines[1..4], &["values", "statement"]),
                [
                    json!([["'secret'"], EXECUTED]),
                    json!([["'secret'"], EXECUTED]),
                    json!([[], literal]),
                ]
            );
            // A password is never shown.
            assert!(!lines[4].to_string().contains("secret"), "{}", lines[4]);
            let (lines, ..) = text.rest();
            assert!(lines[2].ends_with("['secret']"), "{lines:?}");
            c.ends();
        }
    });
}

#[test]
fn a_watcher_that_does_not_read_slows_no_flow_and_is_told() {
    // More than wait for it in the agent and in its socket.
    const BURSTS: usize = 200;
    const EACH: i16 = 50;
    host(|host| {
        host.policy(&policy(INLINE, "{ transform = \"stats\" }"));
        let mut c = begin(host, 4);
        let mut idle = UnixStream::connect(host.agent.admin_socket()).unwrap();
        idle.write_all(b"GET /tail HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        eventually("it watches", || {
            host.agent.metric("underpass_tail_watchers").unwrap() == 1.0
        });
        let burst = |one: &dyn Fn(i16) -> Vec<u8>| (0..EACH).flat_map(one).collect::<Vec<u8>>();
        for _ in 0..BURSTS {
            c.client_sends(&burst(&|stream| query(4, stream, SELECT)));
            c.server_sends(&burst(&|stream| void(4, stream)));
        }
        let dropped = || host.agent.metric("underpass_tail_dropped_total").unwrap() as u64;
        let lost = dropped();
        assert!(lost > 0);
        idle.set_read_timeout(Some(common::PATIENCE)).unwrap();
        let mut lines = BufReader::new(idle).lines().map(Result::unwrap);
        let (mut seen, mut said) = (0, 0);
        // Of what is dropped between the last line and the count nothing is told yet.
        while seen + said < BURSTS as u64 * EACH as u64 {
            let Ok(line) = serde_json::from_str::<Value>(&lines.next().unwrap()) else {
                // Of the HTTP around it.
                continue;
            };
            seen += u64::from(line["statement"].is_string());
            said += line["dropped"].as_u64().unwrap_or(0);
        }
        assert_eq!((said, dropped()), (lost, lost));
        drop(lines);
        eventually("it is gone", || {
            host.agent.metric("underpass_tail_watchers").unwrap() == 0.0
        });
        c.ends();
    });
}

#[test]
fn it_ends_with_its_terminal_and_with_whoever_reads_it() {
    host(|host| {
        host.policy(&policy(INLINE, "{ transform = \"stats\" }"));
        let mut c = begin(host, 4);
        let interrupted = Tail::begin(&host.agent, &[]);
        kill(Pid::from_raw(interrupted.child.id() as i32), Signal::SIGINT).unwrap();
        let (_, said, code) = interrupted.rest();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.ends_with("statements: 0\n"), "{said}");
        // As `tail | head -1` does.
        let Tail {
            mut child,
            mut lines,
        } = Tail::begin(&host.agent, &["--json"]);
        lines.read_line(&mut String::new()).unwrap();
        drop(lines);
        c.client_sends(&query(4, 1, SELECT));
        c.server_sends(&void(4, 1));
        assert_eq!(child.wait().unwrap().code(), Some(0));
        c.ends();
    });
}
