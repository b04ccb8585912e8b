//! The agent's log: its format, and its level while it runs.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{BufRead, BufReader, ErrorKind},
    os::unix::{fs::MetadataExt, net::UnixDatagram},
    path::Path,
    process::{Child, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sandbox::{Agent, Sandbox};
use serde_json::Value;

use crate::common::{operator::output, *};

/// `underpass log` with these arguments: what it says, if it succeeds, and otherwise what it complains of.
fn log(agent: &Agent<'_>, args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(BINARY);
    command
        .arg("log")
        .args(args)
        .arg("--control")
        .arg(agent.control());
    let output = output(&mut command);
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

#[test]
fn the_level_changes_while_the_agent_runs() {
    let sandbox = Sandbox::new().unwrap();
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let policy =
        |level: &str| format!("[log]\nlevel = \"{level}\"\n{}", rule("observe", &to(&[9])));
    let agent = Agent::start(
        Path::new(BINARY),
        netns,
        cgroup,
        "max_flows = 100",
        &policy("warn,agent=info"),
    );
    let agent = agent.unwrap();
    assert_eq!(log(&agent, &[]).unwrap(), "warn,agent=info\n");
    // At level debug it says of a hangup that nothing has changed.
    let unchanged = "the file has not changed";
    let hangs_up = || {
        let before = agent
            .metric("underpass_reloads_total{result=\"ok\"}")
            .unwrap();
        agent.signal(Signal::SIGHUP).unwrap();
        before
    };
    hangs_up();
    let said = log(&agent, &["info,agent::control=debug"]).unwrap();
    assert_eq!(
        said,
        "info,agent::control=debug (before: warn,agent=info)\n"
    );
    assert!(!agent.log().contains(unchanged), "{}", agent.log());
    hangs_up();
    agent.wait_for_log(unchanged).unwrap();
    let complaint = log(&agent, &["debgu"]).unwrap_err();
    assert!(
        complaint.contains("expected off, error, warn"),
        "{complaint}"
    );
    assert_eq!(log(&agent, &[]).unwrap(), "info,agent::control=debug\n");
    // The file's level holds once it says another.
    agent.write_policy(&policy("error")).unwrap();
    agent.wait_for_log("log level changed level=error").unwrap();
    eventually("the file's is in force", || {
        log(&agent, &[]).unwrap() == "error\n"
    });
    agent.write_policy(&policy("loud")).unwrap();
    let said = agent
        .wait_for_log("log.level: expected off, error, warn")
        .unwrap();
    assert!(said.contains("found \"loud\""), "{said}");
}

/// A policy whose sockets are in this folder.
fn policy_in(folder: &Path, sandbox: &Sandbox, pins: &str, log: &str) -> String {
    format!(
        "[agent]\ncontrol = {:?}\nadmin_socket = {:?}\npins = {pins:?}\ncgroup = {:?}\nmax_flows = 100\n{log}\n{}",
        folder.join("control.sock"),
        folder.join("admin.sock"),
        sandbox.cgroup.path(),
        rule("observe", &to(&[9]))
    )
}

#[test]
fn each_line_is_an_object_if_the_log_is_json() {
    let sandbox = Sandbox::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    let pins = format!("/sys/fs/bpf/underpass-json-{}", std::process::id());
    for (format, args) in [("json", &[][..]), ("text", &["--log-format", "json"])] {
        let log = format!("[log]\nformat = \"{format}\"");
        fs::write(&file, policy_in(folder.path(), &sandbox, &pins, &log)).unwrap();
        let mut command = Command::new(BINARY);
        command.args(["run", "--config"]).arg(&file).args(args);
        let agent = sandbox.server(|| command.stderr(Stdio::piped()).spawn());
        let mut agent = agent.unwrap().unwrap();
        let lines = BufReader::new(agent.stderr.take().unwrap()).lines();
        let mut messages = Vec::new();
        for line in lines {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let of = |key: &str| line[key].as_str().unwrap().to_owned();
            assert_eq!(of("level"), "INFO", "{line}");
            assert!(
                of("timestamp").ends_with('Z') && !of("target").is_empty(),
                "{line}"
            );
            messages.push(of("message"));
            if of("message") == "ready" {
                assert_eq!(line["rules"], 1);
                kill(Pid::from_raw(agent.id() as i32), Signal::SIGTERM).unwrap();
            }
        }
        assert!(agent.wait().unwrap().success());
        assert!(
            messages.last().unwrap().starts_with("detached"),
            "{messages:?}"
        );
    }
}

/// A journal, where the agent looks for it in a mount namespace of its own.
struct Journal {
    folder: tempfile::TempDir,
    socket: UnixDatagram,
}

impl Journal {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("journal")).unwrap();
        let socket = UnixDatagram::bind(folder.path().join("journal/socket")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { folder, socket }
    }

    /// Runs an agent with this journal and this log on standard error, which may be called a stream of the journal.
    fn agent(&self, sandbox: &Sandbox, log: &str, is_stream: bool, args: &[&str]) -> Child {
        let at = |name: &str| self.folder.path().join(name);
        // Tests are in one process, and each has a cgroup.
        let own = sandbox.cgroup.path().file_name().unwrap().to_str();
        let pins = format!("/sys/fs/bpf/journald-{}", own.unwrap());
        let policy = at("policy.toml");
        fs::write(&policy, policy_in(self.folder.path(), sandbox, &pins, log)).unwrap();
        let stderr = File::create(at("stderr")).unwrap();
        let numbers = stderr.metadata().unwrap();
        let inode = numbers.ino() + u64::from(!is_stream);
        // What else is in /run is none of its business.
        let mounts = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && \
                      mount --bind \"$1\" /run/systemd/journal && shift && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", mounts, "sh"]);
        command
            .arg(at("journal"))
            .args([BINARY, "run", "--config"])
            .arg(&policy)
            .args(args)
            .env("JOURNAL_STREAM", format!("{}:{inode}", numbers.dev()))
            .stderr(stderr);
        sandbox.server(|| command.spawn()).unwrap().unwrap()
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.folder.path().join("stderr")).unwrap()
    }

    /// The next record whose message begins like this.
    fn hears(&self, message: &str) -> HashMap<String, String> {
        loop {
            let mut bytes = [0; 1 << 16];
            let length = match self.socket.recv(&mut bytes) {
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                received => received.unwrap_or_else(|e| panic!("{e}: {}", self.stderr())),
            };
            let text = String::from_utf8(bytes[..length].to_vec()).unwrap();
            let fields = text.lines().map(|line| line.split_once('=').unwrap());
            let fields: HashMap<_, _> = fields
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect();
            if fields["MESSAGE"].starts_with(message) {
                return fields;
            }
        }
    }
}

fn ends(agent: &mut Child) {
    kill(Pid::from_raw(agent.id() as i32), Signal::SIGTERM).unwrap();
    assert!(agent.wait().unwrap().success());
}

#[test]
fn a_service_logs_to_the_journal_with_fields() {
    let sandbox = Sandbox::new().unwrap();
    let asked = "[log]\nformat = \"journald\"";
    for (log, is_stream, args) in [
        ("", true, &[][..]),
        (asked, false, &[]),
        ("", false, &["--log-format", "journald"]),
    ] {
        let journal = Journal::new();
        let mut agent = journal.agent(&sandbox, log, is_stream, args);
        let ready = journal.hears("ready cgroup=");
        for (field, value) in [
            ("PRIORITY", "6"),
            ("SYSLOG_IDENTIFIER", "underpass"),
            ("UNDERPASS_TARGET", "agent::commands::run"),
            ("UNDERPASS_RULES", "1"),
        ] {
            assert_eq!(ready[field], value, "{ready:?}");
        }
        ends(&mut agent);
        let detached = journal.hears("detached");
        assert_eq!(detached["UNDERPASS_SIGNAL"], "SIGTERM");
        assert_eq!(journal.stderr(), "");
    }
}

#[test]
fn a_log_whose_journal_is_gone_is_on_standard_error() {
    let sandbox = Sandbox::new().unwrap();
    // Not a stream of the journal, and not asked for: text, and nothing in the journal.
    let journal = Journal::new();
    let mut agent = journal.agent(&sandbox, "", false, &[]);
    eventually("it is ready", || journal.stderr().contains("ready cgroup="));
    ends(&mut agent);
    journal.socket.set_nonblocking(true).unwrap();
    let heard = journal.socket.recv(&mut [0; 64]);
    assert_eq!(heard.map_err(|e| e.kind()), Err(ErrorKind::WouldBlock));

    let journal = Journal::new();
    let mut agent = journal.agent(&sandbox, "", true, &[]);
    journal.hears("ready");
    fs::remove_file(journal.folder.path().join("journal/socket")).unwrap();
    kill(Pid::from_raw(agent.id() as i32), Signal::SIGHUP).unwrap();
    let policy = journal.folder.path().join("policy.toml");
    fs::write(&policy, fs::read_to_string(&policy).unwrap() + "\n").unwrap();
    eventually("the log goes on", || {
        journal.stderr().contains("policy reloaded")
    });
    ends(&mut agent);
    let stderr = journal.stderr();
    assert!(stderr.contains("detached"), "{stderr}");
    assert_eq!(
        stderr
            .matches("log records go to standard error until")
            .count(),
        1
    );
}
