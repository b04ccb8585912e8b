//! `limit` of a rule: one client has so many connections, and no more.

use std::{
    io::ErrorKind,
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
};

use nix::sys::signal::Signal;
use rustix::{process::Uid, thread::set_thread_res_uid};
use sandbox::{Agent, Sandbox};

use crate::common::*;

/// Opens connections as a process of its own, until it is refused, and says how many it had.
const OPENS: &str = "n=0; while exec {fd}<>/dev/tcp/127.0.0.1/$1; do n=$((n+1)); test $n -lt 20 || break; done 2>/dev/null; echo $n";

fn policy(to: &str, limit: &str) -> String {
    rule("bypass", &format!("{to}\nlimit = {limit}"))
}

#[test]
fn a_client_has_as_many_connections_as_its_rule_lets_it_have() {
    let sandbox = Sandbox::new().unwrap();
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap().unwrap();
    let address = listener.local_addr().unwrap();
    let to = to(&[address.port()]);
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let text = rule("bypass", &to);
    let mut agent = Agent::start(Path::new(BINARY), netns, cgroup, "", &text).unwrap();
    let force = |agent: &Agent<'_>, limit: &str, nth: f64| {
        agent.write_policy(&policy(&to, limit)).unwrap();
        agent.signal(Signal::SIGHUP).unwrap();
        let name = "underpass_reloads_total{result=\"ok\"}";
        eventually("it is in force", || agent.metric(name).unwrap() == nth);
    };
    // The hook that counts back comes with the first limit.
    force(&agent, "{ connections = 3 }", 1.0);
    let dial = |uid: u32| {
        let connect = || {
            let uid = Uid::from_raw(uid);
            set_thread_res_uid(Some(uid), Some(uid), Some(uid))?;
            TcpStream::connect(address)
        };
        sandbox.client(connect).unwrap()
    };
    let refused = |uid: u32| dial(uid).unwrap_err().kind() == ErrorKind::PermissionDenied;
    let mut of_one: Vec<TcpStream> = (0..3).map(|_| dial(1_000).unwrap()).collect();
    assert!(refused(1_000), "the fourth");
    let _of_another = dial(2_000).unwrap();
    let denied = agent.json("/denied").unwrap();
    assert_eq!(denied[0]["cause"], "limit", "{denied}");
    assert_eq!(denied[0]["reason"], "client_limit", "{denied}");
    assert_eq!(cause(&agent, "client_limit"), 1.0);
    let counted = "underpass_connections_total{outcome=\"denied\",rule=\"r\"}";
    assert_eq!(agent.metric(counted).unwrap(), 1.0);

    // One that ends makes room, whatever became of it.
    of_one.pop();
    of_one.push(dial(1_000).unwrap());
    assert!(refused(1_000));

    // A rule that comes again goes on counting.
    force(&agent, "{ connections = 4 }", 2.0);
    of_one.push(dial(1_000).unwrap());
    assert!(refused(1_000));

    // A process has its own, which end with it. While no agent is there, the limit holds.
    force(&agent, "{ connections = 7, per = \"process\" }", 3.0);
    let opens = || {
        let mut bash = Command::new("bash");
        bash.args(["-c", OPENS, "bash", &address.port().to_string()])
            .stderr(Stdio::null());
        let output = sandbox.client(|| bash.output().unwrap()).unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!([opens(), opens()], ["7", "7"]);
    agent.kill().unwrap();
    assert_eq!(opens(), "7");
    assert!(dial(1_000).is_ok());
}
