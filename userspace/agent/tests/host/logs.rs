//! The agent's log: its format, and its level while it runs.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
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

#[test]
fn each_line_is_an_object_if_the_log_is_json() {
    let sandbox = Sandbox::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    let at = |name: &str| folder.path().join(name);
    let pins = format!("/sys/fs/bpf/underpass-json-{}", std::process::id());
    for (format, args) in [("json", &[][..]), ("text", &["--log-format", "json"])] {
        let text = format!(
            "[agent]\ncontrol = {:?}\nadmin_socket = {:?}\npins = {pins:?}\ncgroup = {:?}\nmax_flows = 100\n\
             [log]\nformat = \"{format}\"\n{}",
            at("control.sock"),
            at("admin.sock"),
            sandbox.cgroup.path(),
            rule("observe", &to(&[9]))
        );
        fs::write(&file, text).unwrap();
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
