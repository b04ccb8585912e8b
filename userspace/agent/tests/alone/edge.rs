//! The edge as an operator has it: the file, signals, metrics, doctor.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use sandbox::{Agent, Cgroup, Netns, Sandbox, run_in};

use crate::common::{BINARY, eventually};

/// A SYN that was dropped is sent again a second later.
const DROPPED: Duration = Duration::from_millis(300);
const PORT: u16 = 9042;

/// A host, and a client on another one.
struct Hosts {
    host: Sandbox,
    client: Netns,
    database: TcpListener,
}

impl Hosts {
    fn new() -> Self {
        let (host, client) = (Sandbox::new().unwrap(), Netns::new().unwrap());
        let own = ["10.0.1.254/24"];
        client
            .join_as(&["10.0.1.1/24"], (&host.netns, "edge0"), &own)
            .unwrap();
        let listen = || TcpListener::bind(("0.0.0.0", PORT)).unwrap();
        let database: TcpListener = host.server(listen).unwrap();
        database.set_nonblocking(true).unwrap();
        Self {
            host,
            client,
            database,
        }
    }

    fn agent(&self, policy: &str) -> Agent<'_> {
        let (netns, cgroup) = (Some(&self.host.netns), &self.host.cgroup);
        Agent::start(Path::new(BINARY), netns, cgroup, "", policy).unwrap()
    }

    fn connects(&self) -> bool {
        let to = SocketAddr::from(([10, 0, 1, 254], PORT));
        let dial = || TcpStream::connect_timeout(&to, DROPPED).is_ok();
        let connects = run_in(Some(&self.client), None, dial).unwrap();
        // There is room for so many that wait.
        while self.database.accept().is_ok() {}
        connects
    }

    /// `underpass doctor` of the agent's file, in its namespace: what it says of the interface.
    fn doctor(&self, agent: &Agent<'_>) -> String {
        let doctor = || {
            Command::new(BINARY)
                .arg("doctor")
                .arg("--config")
                .arg(agent.file())
                .output()
        };
        let said = run_in(Some(&self.host.netns), None, doctor)
            .unwrap()
            .unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let line = said.lines().find(|line| line.starts_with("edge edge0"));
        line.unwrap_or_else(|| panic!("nothing of the edge: {said}"))
            .to_owned()
    }
}

fn denies(port: u16) -> String {
    format!(
        "[[xdp]]\ninterface = \"edge0\"\n[[rule]]\nname = \"no\"\nfrom = [\"10.0.1.0/24\"]\n\
         to = [\":{port}\"]\naction = \"deny\"\n"
    )
}

#[test]
fn rules_follow_the_file_and_outlive_the_agent() {
    let _turn = crate::turn();
    let hosts = Hosts::new();
    eventually("the wire is there", || hosts.connects());
    let mut agent = hosts.agent(&denies(PORT));
    assert!(!hosts.connects());
    let name = "underpass_edge_connections_total{outcome=\"denied\",rule=\"no\"}";
    assert!(agent.metric(name).unwrap() >= 1.0);
    assert!(
        agent
            .metric("underpass_edge_packets_total{verdict=\"denied\"}")
            .unwrap()
            >= 1.0
    );
    let said = hosts.doctor(&agent);
    assert!(said.contains("ok") && said.contains("native"), "{said}");

    agent.write_policy(&denies(PORT + 1)).unwrap();
    eventually("the file is read again", || hosts.connects());
    agent.write_policy(&denies(PORT)).unwrap();
    eventually("and again", || !hosts.connects());

    assert!(agent.stop().unwrap().success());
    assert!(!hosts.connects(), "a stopped agent leaves its edge");
    agent.restart().unwrap();
    agent.wait_for_log("edge taken over").unwrap();
    assert!(!hosts.connects());
    agent.kill().unwrap();
    assert!(!hosts.connects(), "so does a killed one");
    agent.restart().unwrap();

    agent.write_policy("").unwrap();
    agent.wait_for_log("the edge is open").unwrap();
    eventually("no rule is applied any more", || hosts.connects());
    // As it was at the start.
    agent.write_policy(&denies(PORT)).unwrap();
    eventually("an interface can be named again", || !hosts.connects());
    agent.stop().unwrap();
    let detach = || {
        let mut underpass = Command::new(BINARY);
        underpass.arg("detach").arg("--pins").arg(agent.pins());
        underpass.arg("--control").arg(agent.control()).output()
    };
    let detached = run_in(Some(&hosts.host.netns), None, detach)
        .unwrap()
        .unwrap();
    assert!(detached.status.success(), "{detached:?}");
    eventually("nothing is left", || hosts.connects());
}

#[test]
fn a_file_whose_interface_cannot_be_guarded_changes_nothing() {
    let _turn = crate::turn();
    let hosts = Hosts::new();
    eventually("the wire is there", || hosts.connects());
    let agent = hosts.agent(&denies(PORT));
    assert!(!hosts.connects());
    let bad = denies(PORT + 1).replace("edge0", "edge1");
    agent.write_policy(&bad).unwrap();
    agent.wait_for_log("there is no interface edge1").unwrap();
    assert!(!hosts.connects());
    // Another agent, with a cgroup and pins of its own, does not take the interface away.
    let cgroup = Cgroup::new().unwrap();
    let other = Agent::start(
        Path::new(BINARY),
        Some(&hosts.host.netns),
        &cgroup,
        "",
        &denies(PORT),
    );
    let refused = format!("{:#}", other.unwrap_err());
    assert!(
        refused.contains("has an XDP program that is not underpass's"),
        "{refused}"
    );
    assert!(!hosts.connects());
    eventually("nothing is left of its edge", || edges_in_vain() == 0);
}

/// Edges of this test's agents that guard nothing.
fn edges_in_vain() -> usize {
    let own = format!("underpass-test-{}-", std::process::id());
    let in_folder = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<PathBuf>>()
    };
    let begins = |path: &Path, text: &str| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(text))
    };
    let pins = in_folder(Path::new("/sys/fs/bpf"));
    let pins = pins.iter().filter(|path| begins(path, &own));
    let edges = pins.flat_map(|path| in_folder(path));
    edges
        .filter(|path| begins(path, "edge-"))
        .filter(|path| !in_folder(path).iter().any(|pin| begins(pin, "link-")))
        .count()
}
