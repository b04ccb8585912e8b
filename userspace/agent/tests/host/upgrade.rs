//! An agent takes over from one that runs: nothing is refused and nothing is cut, also where one of the two dies.

mod captured;
mod formats;
mod handed;
mod hangs;
mod kills;
mod not_now;
mod orders;
mod speaker;
mod stay;

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::{Command, Output},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
    time::Duration,
};

use cql_node::{Node, NodeOptions};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sandbox::{Agent, Former, Netns, Sandbox, run_in};

use crate::{common::*, service_manager::Manager};

/// Longer than an agent drains that has nothing to do.
const DRAINED: Duration = Duration::from_secs(8);

/// A host with a database that answers.
struct Host {
    sandbox: Sandbox,
    node: Node,
    /// More in its rule.
    steps: String,
}

impl Host {
    fn new() -> Self {
        let sandbox = Sandbox::new().unwrap();
        let node = sandbox.server(|| Node::start(NodeOptions::default()));
        let node = node.unwrap().unwrap();
        let steps = String::new();
        Self {
            sandbox,
            node,
            steps,
        }
    }

    fn policy(&self) -> String {
        enrich(&[self.node.addr().port()]) + "fail = \"closed\"\n" + &self.steps
    }

    fn agent(&self, settings: &str) -> Agent<'_> {
        self.agent_of(Path::new(BINARY), settings)
    }

    fn agent_of(&self, binary: &Path, settings: &str) -> Agent<'_> {
        let (netns, cgroup) = (Some(&self.sandbox.netns), &self.sandbox.cgroup);
        Agent::start(binary, netns, cgroup, settings, &self.policy()).unwrap()
    }

    fn dial(&self) -> TcpStream {
        let dialled = self.sandbox.client(|| TcpStream::connect(self.node.addr()));
        let client = dialled.unwrap().unwrap();
        client.set_nodelay(true).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    }

    /// A connection that is there and is answered.
    fn serves(&self) {
        assert!(works(&mut self.dial()));
    }

    /// Runs `body` while clients connect, ask and go, and another one asks on one connection. Returns how often they did.
    fn under_load(&self, body: impl FnOnce()) -> usize {
        let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        let mut lasting = self.dial();
        thread::scope(|scope| {
            let come_and_go = || {
                while !stop.load(Relaxed) {
                    self.serves();
                    done.fetch_add(1, Relaxed);
                }
            };
            let stays = || {
                while !stop.load(Relaxed) {
                    assert!(works(&mut lasting), "a connection was cut");
                    done.fetch_add(1, Relaxed);
                    thread::sleep(Duration::from_millis(1));
                }
            };
            let threads = [scope.spawn(come_and_go), scope.spawn(stays)];
            thread::sleep(Duration::from_millis(20));
            body();
            thread::sleep(Duration::from_millis(20));
            stop.store(true, Relaxed);
            for thread in threads {
                thread.join().unwrap();
            }
        });
        done.into_inner()
    }
}

/// Logs a client in, by version 4 of the protocol.
fn log_in(client: &mut TcpStream) {
    let mut startup = vec![0x04, 0, 0, 1, 0x01, 0, 0, 0, 22, 0, 1, 0, 11];
    startup.extend(b"CQL_VERSION");
    startup.extend([0, 5]);
    startup.extend(b"3.0.0");
    client.write_all(&startup).unwrap();
    let mut ready = [0; 9];
    client.read_exact(&mut ready).unwrap();
    assert_eq!(ready, [0x84, 0, 0, 1, 0x02, 0, 0, 0, 0]);
}

#[test]
fn flows_that_are_read_are_handed_over_and_nothing_is_cut() {
    let host = Host::new();
    let mut agent = host.agent("");
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut clients: Vec<TcpStream> = (0..8).map(|_| host.dial()).collect();
    clients.iter_mut().for_each(log_in);
    thread::scope(|scope| {
        for client in &mut clients {
            let (stop, done) = (&stop, &done);
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    assert!(works(client), "a connection was cut");
                    done.fetch_add(1, Relaxed);
                }
            });
        }
        for _ in 0..4 {
            let mut former = agent.take_over("").unwrap();
            let log = former.ends_within(DRAINED).unwrap();
            assert!(log.contains("why=Drained"), "{log}");
            let before = done.load(Relaxed);
            eventually("they are answered", || done.load(Relaxed) > before + 100);
            assert_eq!(
                agent.metric("underpass_taken_over_flows_total").unwrap(),
                8.0
            );
        }
        stop.store(true, Relaxed);
    });
    for client in &clients {
        assert_eq!(
            client.peer_addr().unwrap(),
            host.node.addr(),
            "the address that it dialled"
        );
    }
    let flows = agent.json("/flows").unwrap();
    let flows = flows.as_array().unwrap();
    assert!(
        flows.len() == 8 && flows.iter().all(|flow| flow["path"] == "enrich"),
        "{flows:?}"
    );
    drop(clients);
    eventually("they have ended", || {
        agent.metric("underpass_flows").unwrap() == 0.0
    });
}

/// Flows of the agent before, as the one that runs has them.
fn draining(agent: &Agent<'_>) -> f64 {
    agent.metric("underpass_draining_flows").unwrap()
}

fn failed(agent: &Agent<'_>) -> f64 {
    agent.metric("underpass_upgrades_failed_total").unwrap()
}

/// The reason that another agent gives that cannot take over.
fn refusal(agent: &mut Agent<'_>, hooks: &str) -> String {
    let refused = agent.take_over(hooks).map(|former: Former| former.pid());
    format!("{:#}", refused.unwrap_err())
}

#[test]
fn another_agent_takes_over_and_nothing_is_refused_or_cut() {
    let host = Host::new();
    let mut agent = host.agent("");
    let mut early = host.dial();
    assert!(works(&mut early));
    let admin = agent.admin();
    let mut former = None;
    let done = host.under_load(|| former = Some(agent.take_over("").unwrap()));
    let mut former = former.unwrap();
    assert!(done > 10, "{done}");
    assert_eq!(agent.admin(), admin, "the admin interface is where it was");
    eventually("one flow is left", || draining(&agent) == 1.0);
    let before = &agent.json("/agent").unwrap()["before"];
    assert_eq!(
        (&before["pid"], &before["flows"]),
        (&former.pid().into(), &1.into())
    );
    let listed = underpass(&host, &["flows", "--admin", &admin.to_string()]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        listed.contains("and 1 flows that the agent before still carries"),
        "{listed}"
    );
    assert!(works(&mut early), "it is the old agent's");
    host.serves();
    eventually("no other flow is", || {
        agent.metric("underpass_flows").unwrap() == 0.0
    });

    // No third one, while that one is there.
    let said = refusal(&mut agent, "");
    let pid = former.pid();
    assert!(
        said.contains(&format!("process {pid}, still carries 1 flows")),
        "{said}"
    );
    assert_eq!(failed(&agent), 1.0);
    host.serves();

    drop(early);
    let log = former.ends_within(DRAINED).unwrap();
    assert!(
        log.contains("another one has taken over why=Drained"),
        "{log}"
    );
    eventually("it has ended", || {
        agent.json("/agent").unwrap()["before"].is_null()
    });
    assert_eq!(draining(&agent), 0.0);
    assert_eq!(
        std::fs::read_dir(agent.pins()).unwrap().count(),
        1,
        "one generation of pins"
    );
    host.under_load(|| former = agent.take_over("").unwrap());
    former.ends_within(DRAINED).unwrap();
    assert!(agent.stop().unwrap().success());
    assert!(!agent.pins().exists());
}

#[test]
fn flows_that_are_left_end_when_drain_is_over_or_the_other_agent_is_stopped() {
    let host = Host::new();
    let mut agent = host.agent("drain = \"4s\"");
    for is_stopped in [false, true] {
        let mut client = host.dial();
        assert!(works(&mut client));
        let mut former = agent.take_over("").unwrap();
        eventually("one flow is left", || draining(&agent) == 1.0);
        if is_stopped {
            agent.stop().unwrap();
        }
        let log = former.ends_within(DRAINED).unwrap();
        let why = if is_stopped { "why=Told" } else { "why=Over" };
        if !is_stopped {
            eventually("it has seen that", || {
                agent.json("/agent").unwrap()["before"].is_null()
            });
        }
        assert!(log.contains(why), "{log}");
        assert!(!client.read(&mut [0; 1]).is_ok_and(|n| n > 0));
    }
}

#[test]
fn whichever_of_the_two_dies_connections_are_served() {
    for step in ["attached", "taken"] {
        let host = Host::new();
        let mut agent = host.agent("");
        let said = refusal(&mut agent, &format!("dies_at={step}"));
        assert!(said.contains("killed, for a test"), "{said}");
        eventually("the old one has seen it", || failed(&agent) == 1.0);
        host.serves();
        assert_eq!(
            std::fs::read_dir(agent.pins()).unwrap().count(),
            1,
            "{step}"
        );
        // The next one is none the worse.
        let mut former = agent.take_over("").unwrap();
        host.serves();
        former.ends_within(DRAINED).unwrap();
    }
    for step in ["welcomed", "told", "gave"] {
        let host = Host::new();
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("underpass");
        let switch = format!("UNDERPASS_TEST_HOOKS=strict_calls=true,dies_at={step}");
        sandbox::program::switched(&binary, BINARY, &switch).unwrap();
        let mut agent = host.agent_of(&binary, "");
        let former = agent.take_over("").unwrap();
        host.serves();
        eventually("it is alone", || {
            agent.json("/agent").unwrap()["before"].is_null()
        });
        drop(former);
        host.serves();
        assert_eq!(
            std::fs::read_dir(agent.pins()).unwrap().count(),
            1,
            "{step}"
        );
    }
}

#[test]
fn an_agent_that_dies_when_it_has_taken_over_is_one_that_was_killed() {
    let host = Host::new();
    let mut agent = host.agent("");
    let mut early = host.dial();
    assert!(works(&mut early));
    refusal(&mut agent, "dies_at=handed");
    // The one before has given everything, and keeps its flow.
    assert!(works(&mut early));
    agent.restart().unwrap();
    host.serves();
}

#[test]
fn an_agent_that_fails_its_checks_leaves_the_other_one_as_it_was() {
    let host = Host::new();
    let mut agent = host.agent("");
    let text = std::fs::read_to_string(agent.file()).unwrap();
    let cgroup = host.sandbox.cgroup.path().parent().unwrap().to_owned();
    let elsewhere = text.replace(
        host.sandbox.cgroup.path().to_str().unwrap(),
        cgroup.to_str().unwrap(),
    );
    for (wrong, why) in [
        ("?".to_owned(), "policy.toml:1"),
        (elsewhere, "`cgroup` is"),
    ] {
        std::fs::write(agent.file(), wrong).unwrap();
        let said = refusal(&mut agent, "");
        assert!(said.contains(why), "{said}");
        host.serves();
    }
    eventually("it has noted what it was told of", || failed(&agent) == 1.0);
    std::fs::write(agent.file(), text).unwrap();
    let mut former = agent.take_over("").unwrap();
    host.serves();
    former.ends_within(DRAINED).unwrap();
}

#[test]
fn marks_and_namespaces_are_the_other_agents_too() {
    let host = Host::new();
    let mut agent = host.agent("");
    let container = Netns::new().unwrap();
    let cgroup = Some(&host.sandbox.cgroup);
    // The same address and port, but the container's own; a process there keeps the namespace.
    let there = run_in(Some(&container), cgroup, || {
        let bound = std::net::TcpListener::bind(host.node.addr()).unwrap();
        (bound, Command::new("sleep").arg("60").spawn().unwrap())
    });
    let (_listener, mut resident) = there.unwrap();
    let dial = || {
        run_in(Some(&container), cgroup, || {
            TcpStream::connect(host.node.addr())
        })
        .unwrap()
    };
    eventually("its namespace is served", || dial().is_ok());
    let control = agent.control();
    let mark = [
        "mark",
        "process=nobody",
        "deny",
        "--control",
        control.to_str().unwrap(),
    ];
    assert!(underpass(&host, &mark).status.success());
    let _former = agent.take_over("").unwrap();
    dial().expect("its namespace is served from the beginning");
    let marks = agent.json("/marks").unwrap();
    assert_eq!(marks[0]["selector"], "process=nobody");
    assert_eq!(marks.as_array().unwrap().len(), 1);
    resident.kill().unwrap();
    resident.wait().unwrap();
}

fn underpass(host: &Host, arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(arguments);
    host.sandbox.client(|| command.output()).unwrap().unwrap()
}

#[test]
fn the_command_starts_another_agent_as_the_one_that_runs_was_started() {
    let host = Host::new();
    let folder = tempfile::tempdir().unwrap();
    let (binary, socket) = (
        folder.path().join("underpass"),
        folder.path().join("notify"),
    );
    std::fs::copy(BINARY, &binary).unwrap();
    let manager = Manager::at(&socket);
    let script = folder.path().join("script");
    let switch = format!("NOTIFY_SOCKET={}", socket.display());
    sandbox::program::switched(&script, binary.to_str().unwrap(), &switch).unwrap();
    let mut agent = host.agent_of(&script, "");
    let (control, pid) = (agent.control(), agent.pid());
    let control = control.to_str().unwrap().to_owned();
    let run = |rest: &[&str]| {
        let arguments = [&["upgrade", "--control", &control][..], rest].concat();
        let output = underpass(&host, &arguments);
        let said = [output.stdout, output.stderr].concat();
        (String::from_utf8(said).unwrap(), output.status.success())
    };
    let mut client = host.dial();
    assert!(works(&mut client));
    let (said, is_done) = run(&["--dry-run"]);
    assert!(
        is_done && said.contains("1 enrich: are handed over"),
        "{said}"
    );
    // The same file: its policy is read again.
    let (said, is_done) = run(&["--or-reload"]);
    assert!(is_done && said.contains("reads its policy again"), "{said}");
    manager.waits_for("RELOADING=1");
    // A file of that name that is no agent.
    std::fs::remove_file(&binary).unwrap();
    sandbox::program::script(&binary, "echo 'no agent' >&2; exit 1").unwrap();
    let (said, is_done) = run(&[]);
    assert!(
        !is_done
            && said.contains("refuses the policy file, and the one that runs goes on: no agent"),
        "{said}"
    );
    std::fs::remove_file(&binary).unwrap();
    std::fs::copy(BINARY, &binary).unwrap();
    let (said, is_done) = run(&["--or-reload"]);
    assert!(
        is_done && said.contains(&format!("has taken over from process {pid}")),
        "{said}"
    );
    let other = agent.json("/agent").unwrap()["pid"].as_i64().unwrap();
    assert_ne!(other, i64::from(pid));
    manager.waits_for(&format!("MAINPID={other}"));
    assert!(works(&mut client));
    host.serves();
    let mark = ["marks", "--control", &control];
    assert!(underpass(&host, &mark).status.success());
    // Stopped, it takes the one before with it.
    kill(Pid::from_raw(other as i32), Signal::SIGTERM).unwrap();
    eventually("both have ended", || {
        !Path::new(&control).exists() && !is_anybody_of(&agent.file())
    });
    assert!(agent.stop().unwrap().success());
    assert!(!agent.pins().exists());
}

/// The agents with this policy file that are no zombies.
fn agents_of(file: &Path) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let file = file.to_str().unwrap().as_bytes();
    let processes = processes.filter(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        line.windows(file.len()).any(|part| part == file)
    });
    let pids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    pids.map(Pid::from_raw).collect()
}

fn is_anybody_of(file: &Path) -> bool {
    !agents_of(file).is_empty()
}
