//! `when`: rules that are there at certain times.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::sys::signal::Signal;
use sandbox::{Agent, Sandbox};

use crate::common::*;

/// The window between these moments, which are seconds since 1970 and less than a day apart.
fn between(from: u64, to: u64) -> String {
    let time = |at: u64| format!("{:02}:{:02}:{:02}", at / 3600 % 24, at / 60 % 60, at % 60);
    format!(
        "{{ from = \"{}\", to = \"{}\", tz = \"UTC\" }}",
        time(from),
        time(to)
    )
}

/// A rule that refuses and one that takes in, until `edge`, and one that observes from then on.
fn policy([refused, carried]: [u16; 2], edge: u64) -> String {
    let (before, after) = (between(edge - 3600, edge), between(edge, edge + 3600));
    format!(
        "[[rule]]\nname = \"shut\"\nto = [\":{refused}\"]\naction = \"deny\"\nfail = \"closed\"\nwhen = {before}\n\
         [[rule]]\nname = \"night\"\nto = [\":{refused}\"]\naction = \"observe\"\nwhen = {after}\n\
         [[rule]]\nname = \"day\"\nto = [\":{carried}\"]\naction = \"enrich\"\nwhen = {before}\n"
    )
}

/// The output of a command that asks the agent.
fn asks(agent: &Agent<'_>, args: &[&str]) -> String {
    let mut command = Command::new(BINARY);
    command.args(args).arg("--admin").arg(agent.admin_socket());
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

#[test]
fn a_rule_is_there_while_its_window_is_open() {
    let sandbox = Sandbox::new().unwrap();
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    let listeners = [(); 2].map(|()| sandbox.server(listen).unwrap());
    let ports = [0, 1].map(|n: usize| listeners[n].local_addr().unwrap().port());
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let agent = Agent::start(Path::new(BINARY), netns, cgroup, "", "").unwrap();
    let force = |edge_in: Duration| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let edge = (now + edge_in).as_secs();
        agent.write_policy(&policy(ports, edge)).unwrap();
        agent.signal(Signal::SIGHUP).unwrap();
    };
    force(Duration::from_secs(600));
    let open = |rule: &str| {
        let metric = agent.metric(&format!("underpass_window_open{{rule=\"{rule}\"}}"));
        metric.unwrap_or(f64::NAN)
    };
    eventually("the policy is in force", || open("shut") == 1.0);
    assert_eq!(open("night"), 0.0);
    let dial = |port: u16| {
        sandbox
            .client(move || TcpStream::connect(("127.0.0.1", port)))
            .unwrap()
    };
    let refused = dial(ports[0]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    let mut client = dial(ports[1]).unwrap();
    let (mut database, _) = listeners[1].accept().unwrap();
    let pid = std::process::id().to_string();
    let to = format!("127.0.0.1:{}", ports[0]);
    let explained = asks(&agent, &["explain", "--pid", &pid, "--to", &to]);
    let [shut, night] = ["shut", "night"].map(|rule| {
        let mut lines = explained
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        let line = lines.find(|words| words.first() == Some(&rule));
        line.unwrap_or_else(|| panic!("{rule}: {explained}"))
            .join(" ")
    });
    assert_eq!(shut, "shut deny decides", "{explained}");
    assert!(
        night.starts_with("night observe not there now: every day "),
        "{explained}"
    );
    assert!(night.contains("UTC: closed until "), "{explained}");
    let file = agent.file().to_str().unwrap().to_owned();
    let listed = asks(&agent, &["check", &file, "--live"]);
    assert!(listed.contains("rule night: closed until "), "{listed}");

    // The next whole second, and one more.
    force(Duration::from_secs(2));
    eventually("the windows open and close", || {
        open("night") == 1.0 && open("shut") == 0.0
    });
    let _observed = dial(ports[0]).unwrap();
    eventually("the other rule is met", || {
        let flows = agent.json("/flows").unwrap();
        flows
            .as_array()
            .unwrap()
            .iter()
            .any(|flow| flow["rule"] == "night")
    });
    let log = agent.log();
    assert!(log.contains("the rule's window is open until "), "{log}");
    // A running flow keeps its rule.
    client.write_all(b"anything").unwrap();
    let mut bytes = [0; 8];
    database.read_exact(&mut bytes).unwrap();
    let flows = agent.json("/flows").unwrap();
    assert!(
        flows
            .as_array()
            .unwrap()
            .iter()
            .any(|flow| flow["rule"] == "day"),
        "{flows}"
    );
    let listed = asks(&agent, &["check", &file, "--live"]);
    assert!(listed.contains("rule shut: closed until "), "{listed}");
}
