//! The agent comes, goes, crashes; flows that it must not serve.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;
use sandbox::{Agent, Netns, Sandbox, run_in};

use crate::common::*;

fn outcome(agent: &Agent<'_>, rule: &str, outcome: &str) -> f64 {
    let name = format!("underpass_connections_total{{outcome=\"{outcome}\",rule=\"{rule}\"}}");
    agent.metric(&name).unwrap()
}

/// One host with a database on the loopback.
struct Host {
    sandbox: Sandbox,
    listener: TcpListener,
    to: SocketAddr,
}

impl Host {
    fn new() -> Self {
        let sandbox = Sandbox::new().unwrap();
        let listener = sandbox
            .server(|| TcpListener::bind("127.0.0.1:0"))
            .unwrap()
            .unwrap();
        let to = listener.local_addr().unwrap();
        Self {
            sandbox,
            listener,
            to,
        }
    }

    fn agent(&self, settings: &str, policy: &str) -> Agent<'_> {
        let (netns, cgroup) = (Some(&self.sandbox.netns), &self.sandbox.cgroup);
        Agent::start(Path::new(BINARY), netns, cgroup, settings, policy).unwrap()
    }

    fn dial(&self) -> io::Result<TcpStream> {
        self.sandbox.client(|| TcpStream::connect(self.to)).unwrap()
    }

    fn policy(&self, action: &str, rest: &str) -> String {
        rule(action, &format!("{}\n{rest}", to(&[self.to.port()])))
    }
}

#[test]
fn a_killed_agent_leaves_new_connections_to_their_rules_fail() {
    for (fail, succeeds) in [
        ("", true),
        ("fail = \"open\"", true),
        ("fail = \"closed\"", false),
    ] {
        let host = Host::new();
        let mut agent = host.agent("", &host.policy("enrich", fail));
        let mut relayed = host.dial().unwrap();
        accept(&host.listener);
        agent.kill().unwrap();
        // As if the database had closed it: an end or a reset, not a hang.
        relayed.set_read_timeout(Some(PATIENCE)).unwrap();
        match relayed.read(&mut [0; 1]) {
            Ok(0) => {}
            Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("{other:?}"),
        }
        match host.dial() {
            Ok(client) => {
                assert!(succeeds, "fail = closed");
                let (_, source) = accept(&host.listener);
                assert_eq!(source, client.local_addr().unwrap());
                assert_eq!(client.peer_addr().unwrap(), host.to);
            }
            Err(error) => {
                assert!(!succeeds, "fail = open: {error}");
                assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            }
        }
    }
}

#[test]
fn the_next_agent_takes_over_what_a_killed_one_left() {
    let host = Host::new();
    let mut agent = host.agent("", &host.policy("enrich", "fail = \"closed\""));
    agent.kill().unwrap();
    assert_eq!(host.dial().unwrap_err().kind(), ErrorKind::PermissionDenied);
    agent.restart().unwrap();
    host.dial().unwrap();
    accept(&host.listener);
    assert_eq!(outcome(&agent, "r", "intercepted"), 1.0);
    assert_eq!(
        std::fs::read_dir(agent.pins()).unwrap().count(),
        1,
        "one generation of pins"
    );
}

#[test]
fn a_stopped_agent_leaves_nothing() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let host = Host::new();
        let mut agent = host.agent("", &host.policy("enrich", "fail = \"closed\""));
        agent.signal(signal).unwrap();
        assert!(agent.stop().unwrap_or_default().success());
        assert!(!agent.pins().exists());
        host.dial()
            .expect("stopped on purpose, it lifts the policy");
    }
}

#[test]
fn detach_removes_what_a_killed_agent_left_and_refuses_while_one_runs() {
    let host = Host::new();
    let mut agent = host.agent("", &host.policy("enrich", "fail = \"closed\""));
    let detach = |option: &str, path: &Path| {
        let mut detach = Command::new(BINARY);
        detach.arg("detach").arg(option).arg(path).output().unwrap()
    };
    let refused = detach("--pins", agent.pins());
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("another underpass holds"), "{said}");
    agent.kill().unwrap();
    // The policy file says where they are.
    let detached = detach("--config", &agent.file());
    let said = format!("hooks pinned at {} are gone", agent.pins().display());
    let heard = String::from_utf8_lossy(&detached.stdout).into_owned();
    assert!(
        detached.status.success() && heard.contains(&said),
        "{heard}"
    );
    host.dial().unwrap();
    assert!(
        detach("--pins", agent.pins()).status.success(),
        "nothing left to do is fine"
    );
}

#[test]
fn two_agents_do_not_share_pins() {
    let host = Host::new();
    let agent = host.agent("", &host.policy("enrich", ""));
    // Sockets of its own are not enough.
    let file = agent.file().with_file_name("second.toml");
    let text = std::fs::read_to_string(agent.file()).unwrap();
    std::fs::write(
        &file,
        text.replace("control.sock", "second.sock")
            .replace("admin.sock", "other.sock"),
    )
    .unwrap();
    let second = Command::new(BINARY)
        .arg("run")
        .arg("--config")
        .arg(file)
        .output();
    let said = String::from_utf8_lossy(&second.unwrap().stderr).into_owned();
    assert!(said.contains("another underpass holds"), "{said}");
    host.dial().unwrap();
    assert_eq!(
        outcome(&agent, "r", "intercepted"),
        1.0,
        "the first one is unharmed"
    );
}

#[test]
fn two_agents_do_not_share_a_cgroup_whatever_their_pins_and_ports() {
    let host = Host::new();
    let mut agent = host.agent("", &host.policy("enrich", "fail = \"closed\""));
    let file = agent.file().with_file_name("second.toml");
    let text = std::fs::read_to_string(agent.file()).unwrap();
    let pins = PathBuf::from(format!("{}-second", agent.pins().display()));
    let text = text
        .replace(agent.pins().to_str().unwrap(), pins.to_str().unwrap())
        .replace("control.sock", "second.sock")
        .replace("admin.sock", "other.sock");
    std::fs::write(&file, text).unwrap();
    let mut second = Command::new(BINARY);
    second.arg("run").arg("--config").arg(&file);
    // Where its listeners find a free port.
    let refused = host.sandbox.server(|| second.output()).unwrap().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let pid = format!("[{}]", agent.pid());
    assert!(!refused.status.success(), "{said}");
    assert!(
        said.contains("another agent is attached to") && said.contains(&pid),
        "{said}"
    );
    host.dial().unwrap();
    accept(&host.listener);
    assert_eq!(
        outcome(&agent, "r", "intercepted"),
        1.0,
        "the first one is unharmed"
    );
    assert!(std::fs::read_dir(&pins).is_ok_and(|mut left| left.next().is_none()) || !pins.exists());
    // Dead, it is in nobody's way.
    agent.kill().unwrap();
    agent.restart().unwrap();
}

#[test]
fn agents_at_cgroups_of_which_one_is_beneath_the_other_say_so() {
    let host = Host::new();
    let mut agent = host.agent("", &host.policy("enrich", "fail = \"closed\""));
    let whole = host.sandbox.cgroup.path().to_owned();
    let child = whole.join("child");
    std::fs::create_dir(&child).unwrap();
    let file = agent.file().with_file_name("second.toml");
    let text = std::fs::read_to_string(agent.file()).unwrap();
    let pins = PathBuf::from(format!("{}-second", agent.pins().display()));
    let text = text
        .replace(agent.pins().to_str().unwrap(), pins.to_str().unwrap())
        .replace(whole.to_str().unwrap(), child.to_str().unwrap())
        .replace("control.sock", "second.sock")
        .replace("admin.sock", "other.sock");
    std::fs::write(&file, text).unwrap();
    let log = file.with_extension("log");
    let mut second = Command::new(BINARY);
    second.arg("run").arg("--config").arg(&file);
    second.stderr(std::fs::File::create(&log).unwrap());
    // Where its listeners find a free port.
    let mut second = host.sandbox.server(|| second.spawn()).unwrap().unwrap();
    let says = |text: &str| std::fs::read_to_string(&log).unwrap().contains(text);
    eventually("the second one runs", || says("ready cgroup"));
    assert!(says("another agent is attached above this one's cgroup"));
    agent.stop().unwrap();
    agent.restart().unwrap();
    let beneath = "another agent is attached beneath this one's cgroup";
    agent.wait_for_log(beneath).unwrap();
    agent.stop().unwrap();
    second.kill().unwrap();
    second.wait().unwrap();
    let mut detach = Command::new(BINARY);
    detach.args(["detach", "--pins"]).arg(&pins);
    detach
        .arg("--control")
        .arg(file.with_file_name("second.sock"));
    assert!(detach.status().unwrap().success());
    std::fs::remove_dir(&child).unwrap();
}

#[test]
fn connections_from_before_the_agent_are_left_alone() {
    let host = Host::new();
    let mut early = host.dial().unwrap();
    let (mut database, _) = accept(&host.listener);
    let agent = host.agent("", &host.policy("enrich", ""));
    let names = (early.local_addr().unwrap(), early.peer_addr().unwrap());
    early.write_all(b"anything").unwrap();
    let mut bytes = [0; 8];
    database.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"anything");
    assert_eq!(
        (early.local_addr().unwrap(), early.peer_addr().unwrap()),
        names
    );
    assert_eq!(agent.metric("underpass_flows").unwrap(), 0.0);
}

#[test]
fn where_other_namespaces_are_not_served_a_process_there_follows_its_rules_fail() {
    for (fail, succeeds) in [("open", true), ("closed", false)] {
        let host = Host::new();
        let container = Netns::new().unwrap();
        let cgroup = Some(&host.sandbox.cgroup);
        // The same address and port, but the container's own.
        let bind = || TcpListener::bind(host.to);
        let listener = run_in(Some(&container), None, bind).unwrap().unwrap();
        let policy = host.policy("enrich", &format!("fail = \"{fail}\""));
        let agent = host.agent("max_namespaces = 0", &policy);
        let dial = || TcpStream::connect(host.to);
        let dialled = run_in(Some(&container), cgroup, dial).unwrap();
        match dialled {
            Ok(_) => {
                assert!(succeeds);
                accept(&listener);
                assert_eq!(outcome(&agent, "r", "failed_open"), 1.0);
            }
            Err(error) => {
                assert!(!succeeds, "{error}");
                assert_eq!(error.kind(), ErrorKind::PermissionDenied);
                assert_eq!(outcome(&agent, "r", "failed_closed"), 1.0);
            }
        }
        assert_eq!(cause(&agent, "foreign_netns"), 1.0);
    }
}

#[test]
fn a_socket_bound_to_a_device_follows_its_rules_fail() {
    let hosts = Hosts::new();
    let listener = hosts.listen(Distance::There, Family::V4);
    let to = listener.local_addr().unwrap();
    let agent = hosts.agent(&enrich(&[to.port()]));
    hosts.client(|| {
        let socket = socket(Family::V4);
        socket.bind_device(Some(b"veth")).unwrap();
        socket.connect(&to.into()).unwrap();
    });
    accept(&listener);
    assert_eq!(cause(&agent, "bound_to_device"), 1.0);
    assert_eq!(outcome(&agent, "r", "failed_open"), 1.0);
}

#[test]
fn a_full_agent_leaves_flows_to_their_rules_fail_until_there_is_room() {
    let host = Host::new();
    let agent = host.agent("max_flows = 2", &host.policy("enrich", ""));
    let first: Vec<TcpStream> = (0..2).map(|_| host.dial().unwrap()).collect();
    let databases: Vec<_> = (0..2).map(|_| accept(&host.listener)).collect();
    let _third = host.dial().unwrap();
    accept(&host.listener);
    assert_eq!(cause(&agent, "agent_full"), 1.0);
    assert_eq!(outcome(&agent, "r", "intercepted"), 2.0);
    drop((first, databases));
    eventually("there is room", || {
        agent.metric("underpass_flows").unwrap() == 0.0
    });
    let _fourth = host.dial().unwrap();
    accept(&host.listener);
    assert_eq!(outcome(&agent, "r", "intercepted"), 3.0);
}

#[test]
fn an_agent_without_descriptors_leaves_flows_to_their_rules_fail_for_a_while() {
    let host = Host::new();
    let agent = host.agent("", &host.policy("enrich", ""));
    let intercepted = || outcome(&agent, "r", "intercepted");
    let mut first = Some((host.dial().unwrap(), accept(&host.listener)));
    for _ in 0..2 {
        let full = cause(&agent, "agent_full");
        without_descriptors(&agent, || {
            let patience = Duration::from_millis(300);
            let dial = || TcpStream::connect_timeout(&host.to, patience);
            let mut outcomes = (0..2).map(|_| host.sandbox.client(dial).unwrap());
            // Who finds out waits in vain; whoever comes behind does not come to the agent.
            let direct = match outcomes.next().unwrap() {
                Ok(direct) => direct,
                Err(e) if e.kind() == ErrorKind::TimedOut => outcomes.next().unwrap().unwrap(),
                Err(e) => panic!("{e}"),
            };
            let (_, source) = accept(&host.listener);
            assert_eq!(source, direct.local_addr().unwrap());
        });
        assert_eq!(cause(&agent, "agent_full"), full + 1.0);
        // A flow that ends makes room, and so does time where none does.
        drop(first.take());
        let before = intercepted();
        eventually("flows come to the agent again", || {
            let _flow = (host.dial().unwrap(), accept(&host.listener));
            intercepted() > before
        });
        eventually("that one has ended", || {
            agent.metric("underpass_flows").unwrap() == 0.0
        });
    }
}

/// Everything that it needs for its whole life, it has opened before it says that it is ready.
#[test]
fn an_agent_that_has_no_descriptors_from_its_first_moment_goes_on() {
    const FIRST: Duration = Duration::from_secs(2);
    let host = Host::new();
    let agent = host.agent("splice = \"sender\"", &host.policy("enrich", ""));
    without_descriptors(&agent, || thread::sleep(FIRST));
    let _flow = (host.dial().unwrap(), accept(&host.listener));
    assert_eq!(outcome(&agent, "r", "intercepted"), 1.0);
}

/// The client's kernel sends the SYN again after one second, and after three.
#[test]
fn a_connection_for_which_there_was_no_descriptor_is_served_when_there_is_one() {
    let host = Host::new();
    let agent = host.agent("", &host.policy("enrich", "fail = \"closed\""));
    let dials = || TcpStream::connect_timeout(&host.to, PATIENCE);
    thread::scope(|scope| {
        let client = without_descriptors(&agent, || {
            let client = scope.spawn(|| host.sandbox.client(dials).unwrap());
            agent.wait_for_log("out of descriptors or memory").unwrap();
            client
        });
        let mut client = client.join().unwrap().unwrap();
        let (mut server, _) = accept(&host.listener);
        server.write_all(b"it works").unwrap();
        let mut seen = [0; 8];
        client.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"it works");
    });
    assert_eq!(outcome(&agent, "r", "intercepted"), 1.0);
}

#[test]
fn a_stranger_at_the_listener_is_closed_and_counted() {
    let host = Host::new();
    let agent = host.agent("", &host.policy("enrich", ""));
    let agents = listens_at(&agent);
    host.sandbox
        .server(|| {
            let mut stranger = TcpStream::connect(agents).unwrap();
            stranger.set_read_timeout(Some(PATIENCE)).unwrap();
            assert_eq!(
                stranger.read(&mut [0; 1]).unwrap_err().kind(),
                ErrorKind::ConnectionReset
            );
        })
        .unwrap();
    assert_eq!(agent.metric("underpass_strangers_total").unwrap(), 1.0);
    assert_eq!(cause(&agent, "stranger"), 1.0);
}

#[test]
fn rules_match_by_process_uid_and_cgroup() {
    let host = Host::new();
    let inner = host.sandbox.cgroup.child("inner").unwrap();
    let port = to(&[host.to.port()]);
    let policy = format!(
        "[[rule]]\nname = \"process\"\n{port}\nprocess = [\"under-te*\"]\naction = \"bypass\"\n\
         [[rule]]\nname = \"uid\"\n{port}\nuid = [4242]\naction = \"deny\"\n\
         [[rule]]\nname = \"cgroup\"\n{port}\ncgroup = [{:?}]\naction = \"deny\"\n",
        inner.rule_path(),
    );
    let agent = host.agent("", &policy);
    // The name of the process decides, whatever its thread is called.
    let script = format!(
        "import ctypes, socket, threading\n\
         ctypes.CDLL(None).prctl(15, b'under-test', 0, 0, 0)\n\
         def dial():\n    \
         ctypes.CDLL(None).prctl(15, b'a-thread', 0, 0, 0)\n    \
         socket.create_connection(('127.0.0.1', {}))\n\
         t = threading.Thread(target=dial); t.start(); t.join()\n",
        host.to.port()
    );
    let python = || {
        Command::new("python3")
            .arg("-c")
            .arg(&script)
            .status()
            .unwrap()
    };
    assert!(host.sandbox.client(python).unwrap().success());
    accept(&host.listener);
    assert_eq!(outcome(&agent, "process", "untouched"), 1.0);
    // Everything is imported before the user changes: another user may not read the library.
    let by_uid = format!(
        "import os, socket\ns = socket.socket()\nos.setuid(4242)\n\
         try: s.connect(('127.0.0.1', {}))\nexcept OSError as e: os._exit(e.errno)",
        host.to.port()
    );
    let python = || {
        Command::new("python3")
            .arg("-c")
            .arg(&by_uid)
            .status()
            .unwrap()
    };
    let errno = host.sandbox.client(python).unwrap().code();
    assert_eq!(errno, Some(nix::libc::EPERM));
    assert_eq!(outcome(&agent, "uid", "denied"), 1.0);
    let dial = || TcpStream::connect(host.to);
    let denied = run_in(Some(&host.sandbox.netns), Some(&inner), dial).unwrap();
    assert_eq!(denied.unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(outcome(&agent, "cgroup", "denied"), 1.0);
    host.dial().unwrap();
    assert_eq!(outcome(&agent, "default", "untouched"), 1.0);
}

#[test]
fn a_cgroup_that_is_made_anew_is_found_again() {
    let host = Host::new();
    let path = host.sandbox.cgroup.rule_path().join("service");
    let rest = format!("cgroup = [{path:?}]");
    let agent = host.agent("", &host.policy("deny", &rest));
    host.dial()
        .expect("a rule whose cgroup does not exist holds for nobody");
    for _ in 0..2 {
        let service = host.sandbox.cgroup.child("service").unwrap();
        let dial = || TcpStream::connect(host.to);
        eventually("the rule holds", || {
            // Accepted by the kernel and never by us: the backlog has room for 128.
            thread::sleep(Duration::from_millis(50));
            run_in(Some(&host.sandbox.netns), Some(&service), dial)
                .unwrap()
                .is_err()
        });
    }
    assert!(outcome(&agent, "r", "denied") >= 2.0);
}

#[test]
fn a_thousand_rules_are_in_force() {
    let host = Host::new();
    let mut policy: String = (0..1_000)
        .map(|n| {
            format!(
                "[[rule]]\nname = \"n{n}\"\nto = [\"10.{}.{}.0/24:{}\"]\naction = \"enrich\"\n",
                n / 250,
                n % 250,
                host.to.port()
            )
        })
        .collect();
    policy.push_str(&format!(
        "[[rule]]\nname = \"last\"\nto = [\"127.0.0.0/8:{}\"]\naction = \"deny\"\n",
        host.to.port()
    ));
    let agent = host.agent("", &policy);
    assert_eq!(host.dial().unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(outcome(&agent, "last", "denied"), 1.0);
}

#[test]
fn flows_lists_who_dialled_where_and_by_which_rule() {
    let host = Host::new();
    let agent = host.agent("", &host.policy("enrich", ""));
    let mut client = host.dial().unwrap();
    let (mut database, _) = accept(&host.listener);
    client.write_all(&options(7)).unwrap();
    database.read_exact(&mut [0; 9]).unwrap();
    database.write_all(&supported(7)).unwrap();
    client.read_exact(&mut [0; 11]).unwrap();
    // Bytes are counted once they are on their way, so the client may have them first.
    eventually("all bytes are counted", || {
        agent.json("/flows").unwrap()[0]["bytes_to_client"] == 11
    });
    let flows = agent.json("/flows").unwrap();
    let flow = &flows.as_array().unwrap()[0];
    assert_eq!(flow["client"], client.local_addr().unwrap().to_string());
    assert_eq!(flow["orig_dst"], host.to.to_string());
    assert_eq!(flow["pid"], std::process::id());
    assert_eq!(
        (&flow["action"], &flow["path"]),
        (&"enrich".into(), &"enrich".into())
    );
    assert_eq!(flow["rule"], "r");
    assert_eq!(
        (&flow["bytes_to_database"], &flow["bytes_to_client"]),
        (&9.into(), &11.into())
    );
    // And by the command, for people and for programs.
    for (json, expected) in [(false, "CLIENT"), (true, "\"orig_dst\"")] {
        let output = run_in(Some(&host.sandbox.netns), None, || {
            let mut command = Command::new(BINARY);
            command.args(["flows", "--admin", &agent.admin().to_string()]);
            if json {
                command.arg("--json");
            }
            command.output().unwrap()
        });
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        assert!(text.contains(expected), "{text}");
        assert!(text.contains(&host.to.to_string()), "{text}");
    }
    drop((client, database));
    agent.wait_for_log("flow closed").unwrap();
}

#[test]
fn health_and_readiness_are_answered() {
    let host = Host::new();
    let agent = host.agent("", &host.policy("enrich", ""));
    assert_eq!(agent.get("/healthz").unwrap(), "ok\n");
    assert_eq!(agent.get("/readyz").unwrap(), "ready\n");
    assert!(
        agent
            .get("/metrics")
            .unwrap()
            .contains("# HELP underpass_connections_total")
    );
}
