//! `mode = "shadow"`: a rule counts, and the rules behind it decide.

use std::{
    fs,
    io::ErrorKind,
    net::{TcpListener, TcpStream},
    path::Path,
    process::Command,
};

use nix::sys::signal::Signal;
use sandbox::{Agent, Sandbox};

use crate::common::{operator::output, *};

fn says(args: &[&str], agent: &Agent<'_>) -> String {
    let mut command = Command::new(BINARY);
    command.args(args).arg("--admin").arg(agent.admin_socket());
    String::from_utf8(output(&mut command).stdout).unwrap()
}

#[test]
fn a_rule_in_shadow_counts_and_the_next_one_decides() {
    let sandbox = Sandbox::new().unwrap();
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap().unwrap();
    let address = listener.local_addr().unwrap();
    let to = to(&[address.port()]);
    let shadow = |name: &str, more: &str| {
        format!(
            "[[rule]]\nname = {name:?}\nmode = \"shadow\"\n{to}\naction = \"deny\"\nfail = \"closed\"\n{more}\n"
        )
    };
    let policy = [
        shadow("all", ""),
        shadow("others", "process = [\"nobody\"]"),
        shadow("root", "uid = [\"root\"]"),
        rule("observe", &to),
        shadow("behind", ""),
    ];
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let agent = Agent::start(Path::new(BINARY), netns, cgroup, "", &policy.concat()).unwrap();
    let dial = || sandbox.client(|| TcpStream::connect(address)).unwrap();
    let _clients = [(); 3].map(|()| dial().unwrap());
    let counted = |rule: &str, outcome: &str| {
        let name = "underpass_connections_total";
        let metric = agent.metric(&format!("{name}{{outcome=\"{outcome}\",rule=\"{rule}\"}}"));
        metric.unwrap_or(0.0)
    };
    let shadowed = ["all", "others", "root", "r", "behind"].map(|rule| counted(rule, "shadowed"));
    assert_eq!(shadowed, [3.0, 0.0, 3.0, 0.0, 0.0]);
    assert_eq!(
        (counted("r", "untouched"), counted("all", "denied")),
        (3.0, 0.0)
    );

    let (pid, at) = (std::process::id().to_string(), address.to_string());
    let explained = says(&["explain", "--pid", &pid, "--to", &at], &agent);
    let has = |text: &str, words: &[&str]| {
        let mut lines = text.lines();
        lines.any(|line| words.iter().all(|word| line.contains(word)))
    };
    assert!(
        has(&explained, &["all", "deny", "it stands in shadow"]),
        "{explained}"
    );
    assert!(
        has(&explained, &["r ", "observe", "decides"]),
        "{explained}"
    );
    let file = agent.file();
    let file = file.to_str().unwrap();
    let live = says(
        &["check", file, "--file-only", "--live", "--to", &at],
        &agent,
    );
    assert!(has(&live, &["all", "deny", " 3 ", "in shadow"]), "{live}");
    assert!(
        has(&live, &["passed over: all, which stands in shadow"]),
        "{live}"
    );

    // It decides when the key is gone.
    let text = fs::read_to_string(agent.file()).unwrap();
    fs::write(agent.file(), text.replacen("mode = \"shadow\"\n", "", 1)).unwrap();
    agent.signal(Signal::SIGHUP).unwrap();
    eventually("it decides", || {
        dial().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    });
    assert!(counted("all", "denied") >= 1.0);
}
