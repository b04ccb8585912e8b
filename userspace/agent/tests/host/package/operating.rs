//! `docs/operating.md`: every command that it shows is run, in the order of the page, and says what the page has it say but for
//! numbers. `UPDATE_DOCS=1` writes what they say.
//!
//! Commands of packages run where systemd does, all others on a host where an application was connected before the agent came.

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader, Write as _},
    os::unix::process::CommandExt,
    path::Path,
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use nix::sys::signal::killpg;

use super::*;
use crate::common::operating::{Block, TEXT, blocks};

/// The kind of a block whose lines that begin with `# ` are commands.
pub(super) const CONSOLE: &str = "console";

/// The sections whose commands speak to dpkg and systemd.
const OF_PACKAGES: [&str; 4] = ["Installing", "In the journal", "Upgrading", "Removing"];

/// The section before the service runs: a policy is tried out.
const DRY_RUN: &str = "Trying a policy out";

/// The sections with output that tests elsewhere produce: in a terminal, in a browser, by a collector, by a driver.
const ELSEWHERE: [&str; 4] = [
    "In a terminal",
    "In a browser",
    "One collector for everything",
    "Warnings first",
];

/// Files of the page that a `cat` shows: they are written from it.
const SHOWS: &str = "# cat ";

/// The line that says that a command has ended.
const IS_DONE: &str = "-- done --";

/// A process by this name whose first argument is a shell script.
fn runs(host: &OtherHost<'_>, name: &str, script: &str) -> Held {
    host.succeeds(&["cp", "/bin/bash", &format!("/usr/bin/{name}")]);
    let mut command = host.command(&[name, "-c", script]);
    command.stderr(Stdio::null());
    let child = host.sandbox.client(|| command.spawn());
    Held(child.unwrap().unwrap())
}

/// A process that ends with the test.
pub(super) struct Held(pub(super) Child);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Bytes as `printf` takes them.
fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "\\{byte:03o}");
        text
    })
}

/// An application that asks four times as often for what there is as for what there is not.
fn web() -> String {
    let asks = |text: &str| format!("printf '{}' >&3; sleep 0.01", escaped(&query(4, 1, text)));
    let good = asks("SELECT v FROM shop.orders WHERE id = 1");
    let bad = asks("SELECT nothing FROM shop.orders WHERE id = 1");
    format!(
        "exec 3<>/dev/tcp/127.0.0.1/9042; cat <&3 >/dev/null &\nprintf '{}' >&3; sleep 0.1\n\
         while {good} && {good} && {good} && {good} && {bad}; do :; done",
        escaped(&startup(4, &[("CQL_VERSION", "3.0.0")]))
    )
}

/// An application that wants three connections at the same time, again and again.
const BATCH: &str =
    "while :; do for fd in 3 4 5; do exec {fd}<>/dev/tcp/127.0.0.1/9042; done; sleep 0.2; done";

/// An application that wants one connection, again and again.
const REPORTS: &str = "while :; do exec 3<>/dev/tcp/127.0.0.1/9042; sleep 0.1; done";

/// An operator's shell, which ends with this, and what it has started with it.
struct Shell {
    process: Child,
    says: Receiver<String>,
}

impl Shell {
    fn new(host: &OtherHost<'_>, folder: &str) -> Self {
        let mut command = host.command(&["sh", "-c", "cd \"$1\"; exec sh 2>&1", "sh", folder]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let mut process = host.sandbox.server(|| command.spawn()).unwrap().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (heard, says) = mpsc::channel();
        thread::spawn(move || {
            let mut lines = lines.map_while(Result::ok);
            // Until the test is over.
            lines.all(|line| heard.send(line).is_ok())
        });
        Self { process, says }
    }

    /// Has it run a command: what that says.
    fn runs(&mut self, command: &str) -> String {
        let to = self.process.stdin.as_mut().unwrap();
        writeln!(to, "{command}\necho '{IS_DONE}'").unwrap();
        let mut said = String::new();
        loop {
            let line = self.says.recv_timeout(PATIENCE * 2);
            let line = line.unwrap_or_else(|e| panic!("{e}: {command}: {said}"));
            match line.strip_suffix(IS_DONE) {
                // What was said had no end of line.
                Some("") => return said,
                Some(last) => return said + last + "\n",
                None => said += &(line + "\n"),
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.process.id() as i32), Signal::SIGKILL);
        let _ = self.process.wait();
    }
}

/// Runs a block's commands in a folder, and returns what they say; the page's own text is written to a file that is shown.
pub(super) fn said(host: &OtherHost<'_>, block: &str, folder: &str) -> String {
    let mut said = String::new();
    let mut shell = Shell::new(host, folder);
    let commands = block.lines().filter(|line| line.starts_with("# "));
    for line in commands {
        let command = &line[2..];
        if let Some(file) = line.strip_prefix(SHOWS) {
            let after = &block[block.find(line).unwrap() + line.len() + 1..];
            let text = after.split("\n# ").next().unwrap();
            put(host, file, &format!("{}\n", text.trim_end_matches('\n')));
        }
        if command.contains("underpass_limits_") {
            eventually("its limit is held", || {
                let metrics = [
                    "curl",
                    "--silent",
                    "--fail",
                    "http://127.0.0.1:9464/metrics",
                ];
                host.succeeds(&metrics).contains("underpass_limits_hosts{")
            });
        }
        said += &format!("{line}\n{}", shell.runs(command));
        if ["policy push", "policy rollback"]
            .iter()
            .any(|changes| command.contains(changes))
        {
            eventually("each host has said what it makes of it", || {
                let status = host.run(&["underpass", "policy", "status", "--json"]);
                let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
                // A host that has said nothing yet is not behind, but not there.
                let hosts = status["hosts"].as_array();
                hosts.is_some_and(|hosts| !hosts.is_empty()) && status["behind"] == 0
            });
        }
        if command.contains("init --output") {
            eventually("the application is read", || {
                host.succeeds(&["underpass", "flows"]).contains("web")
            });
        }
        if command.contains("run --dry-run") {
            eventually("its rule is met", || {
                let listed = host.run(&["underpass", "check", FILE, "--live"]);
                let listed = String::from_utf8(listed.stdout).unwrap();
                listed.contains("RULE") && !listed.contains("never met")
            });
        }
    }
    said
}

/// Writes a file; one of a running agent's policy is in force when this returns.
fn put(host: &OtherHost<'_>, file: &str, text: &str) {
    let in_force = || {
        let said = host.run(&["underpass", "config"]);
        said.status.success().then_some(said.stdout)
    };
    let is_policy = file.starts_with("/etc/underpass/");
    let before = in_force().filter(|_| is_policy);
    let write = "cd /root; printf %s \"$2\" > \"$1\"";
    host.succeeds(&["sh", "-c", write, "sh", file, text]);
    eventually("it is in force", || {
        before.is_none() || before != in_force()
    });
}

/// Holds a section's commands to the page, on a host where systemd runs and packages are in a folder.
pub fn holds(host: &OtherHost<'_>, section: &str) {
    assert!(OF_PACKAGES.contains(&section));
    let of = blocks().into_iter();
    for block in of.filter(|block| block.section == section && block.kind == CONSOLE) {
        block.holds(&said(host, &block.text, "/run/packages"));
    }
}

/// Lays out a host with an application that asks: the agent's policy file, and the files that the package brings.
pub(super) fn lay_out(host: &OtherHost<'_>) {
    host.succeeds(&["ln", "-s", BINARY, "/usr/bin/underpass"]);
    let (conf_d, docs) = ("/etc/underpass/conf.d", "/usr/share/doc/underpass");
    host.succeeds(&[
        "mkdir",
        "-p",
        conf_d,
        "/run/underpass",
        "/var/log/underpass",
        docs,
    ]);
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config");
    for folder in ["grafana", "prometheus"] {
        let from = config.join(folder).canonicalize().unwrap();
        host.succeeds(&["ln", "-s", shown(&from), docs]);
    }
    let agent = format!(
        "[agent]\nadmin = \"127.0.0.1:9180\"\nmetrics = \"127.0.0.1:9464\"\ncgroup = {:?}\n",
        host.sandbox.cgroup.path()
    );
    // Nothing of a service is in the journal.
    let journal = "#!/bin/sh\necho 'INFO ready'\n";
    let write = "printf %s \"$2\" > \"$1\"; chmod 755 \"$1\"";
    for (file, text) in [(FILE, agent.as_str()), ("/usr/bin/journalctl", journal)] {
        host.succeeds(&["sh", "-c", write, "sh", file, text]);
    }
}

/// The agent, once it runs.
pub(super) fn serves(host: &OtherHost<'_>, folder: &Path) -> Held {
    let mut run = host.command(&["underpass", "run"]);
    run.env("UNDERPASS_TEST_HOOKS", "strict_calls=true");
    let log = fs::File::create(folder.join("log")).unwrap();
    let agent = host.sandbox.server(|| run.stderr(log).spawn());
    let agent = Held(agent.unwrap().unwrap());
    eventually("the agent runs", || {
        host.run(&["underpass", "flows"]).status.success()
    });
    agent
}

#[test]
fn every_command_of_the_page_says_what_the_page_has_it_say() {
    let folder = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::new().unwrap();
    let options = NodeOptions {
        listen: "127.0.0.1:9042".parse().unwrap(),
        ..with_a_table()
    };
    let _database = sandbox.server(|| Node::start(options)).unwrap().unwrap();
    let host = OtherHost::new(&sandbox);
    lay_out(&host);
    let _web = runs(&host, "web", &web());
    let (mut agent, mut batch) = (None, None);
    let is_here =
        |block: &Block| block.kind == CONSOLE && !OF_PACKAGES.contains(&block.section.as_str());
    for block in blocks().into_iter().filter(is_here) {
        let _reports = (block.section == DRY_RUN).then(|| runs(&host, "reports", REPORTS));
        if block.section != DRY_RUN {
            agent.get_or_insert_with(|| serves(&host, folder.path()));
        }
        let said = said(&host, &block.text, "/root");
        // What the first policy of the page lets `batch` have.
        if block.text.contains("limit = {") {
            batch.get_or_insert_with(|| runs(&host, "batch", BATCH));
            thread::sleep(Duration::from_millis(500));
        }
        block.holds(&said);
    }
}

#[test]
fn every_output_of_the_page_is_a_tests() {
    for block in blocks() {
        let is_here = block.kind == CONSOLE;
        let is_elsewhere = block.kind == TEXT && ELSEWHERE.contains(&block.section.as_str());
        // Files and commands without output.
        let is_input = ["sh", "toml", "yaml", "ini", "python"].contains(&block.kind.as_str());
        assert!(
            is_here || is_elsewhere || is_input,
            "no test says this: {block:#?}"
        );
    }
}
