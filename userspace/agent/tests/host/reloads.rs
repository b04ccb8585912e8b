//! Files that have changed: put into force whole, or not at all and tried again.

use std::{
    fs,
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;
use sandbox::Agent;

use crate::common::*;

/// A host with a database, and what an application meets that dials it.
struct Reloads {
    hosts: Hosts,
    listener: TcpListener,
    to: SocketAddr,
}

impl Reloads {
    fn new() -> Self {
        let hosts = Hosts::new();
        let listener = hosts.listen(Distance::Here, Family::V4);
        let to = listener.local_addr().unwrap();
        Self {
            hosts,
            listener,
            to,
        }
    }

    fn policy(&self, action: &str, rest: &str) -> String {
        rule(action, &format!("{}\n{rest}", to(&[self.to.port()])))
    }

    fn dial(&self) -> io::Result<TcpStream> {
        self.hosts.client(|| TcpStream::connect(self.to))
    }
}

const REFUSED: &str = "underpass_policy_file_refused";

fn reloads(agent: &Agent<'_>, result: &str) -> f64 {
    let name = format!("underpass_reloads_total{{result=\"{result}\"}}");
    agent.metric(&name).unwrap_or(0.0)
}

#[test]
fn a_policy_is_reloaded_on_sighup_and_when_its_file_changes() {
    let host = Reloads::new();
    let agent = host.hosts.agent(&host.policy("enrich", ""));
    let kept = host.dial().unwrap();
    accept(&host.listener);
    agent.write_policy(&host.policy("deny", "")).unwrap();
    agent.signal(Signal::SIGHUP).unwrap();
    agent.wait_for_log("policy reloaded").unwrap();
    assert_eq!(host.dial().unwrap_err().kind(), ErrorKind::PermissionDenied);
    let flows = agent.metric("underpass_flows").unwrap();
    assert_eq!(flows, 1.0, "running flows go on");
    drop(kept);
    // Without a signal: the file is looked at once a second.
    agent.write_policy(&host.policy("bypass", "")).unwrap();
    eventually("the file was read again", || host.dial().is_ok());
    assert!(reloads(&agent, "ok") >= 2.0);
    let name = "underpass_connections_total{outcome=\"intercepted\",rule=\"r\"}";
    assert_eq!(agent.metric(name).unwrap(), 1.0, "counts survive a reload");
}

#[test]
fn a_bad_policy_changes_nothing_and_says_so() {
    let host = Reloads::new();
    let agent = host.hosts.agent(&host.policy("deny", ""));
    agent
        .write_policy("[[rule]]\nname = \"r\"\nacton = \"bypass\"\n")
        .unwrap();
    agent.signal(Signal::SIGHUP).unwrap();
    let line = agent.wait_for_log("the old policy stays in force").unwrap();
    assert!(line.contains("unknown field `acton`"), "{line}");
    assert_eq!(host.dial().unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert!(reloads(&agent, "error") >= 1.0);
}

#[test]
fn a_hangup_without_a_change_is_silent() {
    let hosts = Hosts::new();
    let observe = |port| rule("observe", &to(&[port]));
    let agent = hosts.agent(&observe(9));
    let counted = || ["ok", "error"].map(|result| reloads(&agent, result));
    let said = || {
        let log = agent.log();
        log.lines()
            .filter(|line| !line.contains("proxy::paths"))
            .count()
    };
    let before = said();
    for _ in 0..3 {
        agent.signal(Signal::SIGHUP).unwrap();
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(counted(), [0.0, 0.0]);
    assert_eq!(said(), before);
    agent.write_policy(&observe(10)).unwrap();
    agent.signal(Signal::SIGHUP).unwrap();
    eventually("it is read", || counted() == [1.0, 0.0]);
    agent.write_policy("?").unwrap();
    eventually("it is refused", || counted() == [1.0, 1.0]);
    // A bad file is said each time that somebody asks for it.
    agent.signal(Signal::SIGHUP).unwrap();
    eventually("it is refused", || counted() == [1.0, 2.0]);
}

/// Folders that a file names may come later, and the file itself may be out of reach for a while: nobody has to ask.
#[test]
fn a_refused_file_is_tried_again_and_told_once() {
    let host = Reloads::new();
    let hook = format!("{}=try_again_ms=100", test_hooks::VARIABLE);
    let agent = host.hosts.switched(&hook, "", &host.policy("deny", ""));
    let folder = tempfile::tempdir().unwrap();
    let away = folder.path().join("away");
    let audit = away.join("audit.log");
    let audits = format!(
        "fail = \"open\"\npipeline = [{{ transform = \"audit\", file = {audit:?}, full = \"drop\" }}]"
    );
    agent.write_policy(&host.policy("enrich", &audits)).unwrap();
    eventually("the file is refused", || reloads(&agent, "error") > 0.0);
    // Looked at once a second, and tried again as often.
    thread::sleep(Duration::from_secs(3));
    assert_eq!(reloads(&agent, "error"), 1.0);
    assert_eq!(agent.metric(REFUSED).unwrap(), 1.0);
    let told = agent.log().matches("cannot reload the file").count();
    assert_eq!(told, 1, "{}", agent.log());
    assert_eq!(host.dial().unwrap_err().kind(), ErrorKind::PermissionDenied);
    fs::create_dir(&away).unwrap();
    eventually("it comes into force", || host.dial().is_ok());
    assert!(audit.exists());
    eventually("it is told", || reloads(&agent, "ok") == 1.0);
    assert_eq!(agent.metric(REFUSED).unwrap(), 0.0);
}
