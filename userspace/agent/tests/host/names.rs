//! Rules that name databases, whose addresses a name server tells.

use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process::Command,
};

use cql_node::{Node, NodeOptions};
use nix::sys::{signal::Signal, stat::Mode};
use sandbox::{
    Agent, Sandbox,
    dns::{NameServer, Told},
};

use crate::{
    common::{BINARY, eventually, rule},
    doors::audited,
    kubernetes::{clusters, played::Played, tenants},
};

const PORT: u16 = 9042;

/// The names of users, which rules may say.
const USERS: &str = "/etc/passwd";

struct Host {
    sandbox: Sandbox,
    server: NameServer,
    databases: Vec<TcpListener>,
    folder: tempfile::TempDir,
}

fn ip(last: u8) -> IpAddr {
    [10, 9, 0, last].into()
}

impl Host {
    fn new() -> Self {
        let sandbox = Sandbox::new().unwrap();
        for last in [53, 1, 2, 3] {
            let address = format!("{}/32", ip(last));
            sandbox
                .netns
                .ip(&["addr", "add", &address, "dev", "lo"])
                .unwrap();
        }
        let server = sandbox.server(|| NameServer::start((ip(53), 53).into()));
        let listen = |last| {
            sandbox
                .server(|| TcpListener::bind((ip(last), PORT)))
                .unwrap()
                .unwrap()
        };
        let databases = [1, 2, 3].map(listen).into();
        let folder = tempfile::tempdir().unwrap();
        let resolv_conf = format!("nameserver {}\noptions timeout:1 attempts:1\n", ip(53));
        fs::write(folder.path().join("resolv.conf"), resolv_conf).unwrap();
        Self {
            server: server.unwrap().unwrap(),
            databases,
            sandbox,
            folder,
        }
    }

    fn agent(&self, policy: &str) -> Agent<'_> {
        self.agent_by(BINARY, policy)
    }

    /// `command`: starts the agent, which is given the arguments behind it.
    fn agent_by(&self, command: &str, policy: &str) -> Agent<'_> {
        let binary = self.folder.path().join("agent");
        let resolv_conf = self.folder.path().join("resolv.conf");
        let hooks = format!(
            "UNDERPASS_TEST_HOOKS=strict_calls=true,resolv_conf={}",
            resolv_conf.display()
        );
        sandbox::program::switched(&binary, command, &hooks).unwrap();
        let (netns, cgroup) = (Some(&self.sandbox.netns), &self.sandbox.cgroup);
        Agent::start(&binary, netns, cgroup, "", policy).unwrap()
    }

    /// Both ends of a connection to a database; none, if it is denied.
    fn dial(&self, last: u8) -> Option<(TcpStream, TcpStream)> {
        let dialled = self.sandbox.client(|| TcpStream::connect((ip(last), PORT)));
        match dialled.unwrap() {
            Ok(stream) => {
                // Those that nobody accepts would be in the way of further ones.
                let (accepted, _) = self.databases[usize::from(last) - 1].accept().unwrap();
                Some((stream, accepted))
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
                None
            }
        }
    }

    fn is_denied(&self, last: u8) -> bool {
        self.dial(last).is_none()
    }
}

fn state(agent: &Agent<'_>, state: &str) -> f64 {
    agent
        .metric(&format!("underpass_names{{state=\"{state}\"}}"))
        .unwrap()
}

#[test]
fn a_rule_follows_the_addresses_of_its_name() {
    let host = Host::new();
    host.server.tell("db.shop", Told::Addresses(vec![ip(1)]), 0);
    let agent = host.agent(&rule("deny", "to = [\"db.shop:9042\"]"));
    // From the first moment on.
    assert!(host.is_denied(1));
    let (mut running, mut accepted) = host.dial(2).unwrap();
    host.server.tell("db.shop", Told::Addresses(vec![ip(2)]), 0);
    eventually("the next address is known", || host.is_denied(2));
    // The old one lingers, and a connection that was there is left alone.
    assert!(host.is_denied(1) && !host.is_denied(3));
    running.write_all(b"x").unwrap();
    std::io::Read::read_exact(&mut accepted, &mut [0]).unwrap();
    assert_eq!(state(&agent, "known"), 1.0);
    assert_eq!(
        agent.metric("underpass_name_addresses_lingering").unwrap(),
        1.0
    );
    // A server that fails takes nothing away, and is seen.
    host.server.tell("db.shop", Told::Fails, 0);
    eventually("it is stale", || state(&agent, "stale") == 1.0);
    assert!(host.is_denied(2));
    let listed = Command::new(BINARY)
        .args(["names", "--admin"])
        .arg(agent.admin_socket())
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    for word in ["db.shop", "host", "stale", "10.9.0.1,10.9.0.2", "SERVFAIL"] {
        assert!(listed.contains(word), "{word}: {listed}");
    }
    agent
        .wait_for_log("cannot be looked up, its rules hold for the last addresses")
        .unwrap();
}

#[test]
fn a_name_that_was_never_resolved_stands_for_no_address() {
    let host = Host::new();
    let deny = |names: &str| rule("deny", &format!("to = [{names}]"));
    let agent = host.agent(&deny("\"db.shop:9042\""));
    assert!(!host.is_denied(1));
    agent
        .wait_for_log("a name in a rule stands for nothing")
        .unwrap();
    assert_eq!(state(&agent, "absent"), 1.0);
    // A service's records say the port; the next policy names it.
    let services = vec![
        ("n1.shop".to_owned(), PORT),
        ("n3.shop".to_owned(), PORT + 1),
    ];
    host.server
        .tell("_cql._tcp.shop", Told::Services(services), 30);
    host.server
        .tell("n1.shop", Told::Addresses(vec![ip(1)]), 30);
    host.server
        .tell("n3.shop", Told::Addresses(vec![ip(3)]), 30);
    agent.write_policy(&deny("\"_cql._tcp.shop\"")).unwrap();
    eventually("the service is known", || host.is_denied(1));
    assert!(!host.is_denied(2) && !host.is_denied(3));
    let names = agent.json("/names").unwrap();
    assert_eq!(names.as_array().map(Vec::len), Some(1), "{names}");
    assert_eq!(names[0]["addresses"][1], "10.9.0.3:9043");
}

#[test]
fn a_rule_stays_until_the_names_of_the_next_one_are_looked_up() {
    let host = Host::new();
    let deny = |to: &str| rule("deny", &format!("to = [\"{to}:9042\"]"));
    for name in ["db.shop", "silent.shop"] {
        host.server.tell(name, Told::Silence, 0);
    }
    let agent = host.agent(&deny("10.9.0.1"));
    agent.write_policy(&deny("db.shop")).unwrap();
    eventually("it is looked up", || host.server.asked("db.shop") > 0);
    assert!(host.is_denied(1) && !host.is_denied(2));
    host.server.tell("db.shop", Told::Addresses(vec![ip(2)]), 0);
    eventually("the next rule is in force", || host.is_denied(2));
    assert!(!host.is_denied(1));
    // For three seconds, which is said.
    agent.write_policy(&deny("silent.shop")).unwrap();
    eventually("it is looked up", || host.server.asked("silent.shop") > 0);
    assert!(host.is_denied(2));
    agent
        .wait_for_log("new names in rules are not looked up yet")
        .unwrap();
    eventually("it is in force", || !host.is_denied(2));
    assert_eq!(state(&agent, "unknown"), 1.0);
}

/// An object of another namespace that is refused is no reason not to wait.
#[test]
fn an_object_stays_until_the_names_of_its_next_text_are_looked_up() {
    let host = Host::new();
    host.server.tell("db.shop", Told::Silence, 0);
    let rule = |action: &str, to: &str| {
        format!(r#"{{"name": "r", "action": "{action}", "fail": "open", "to": ["{to}:9042"]}}"#)
    };
    let deny = |to: &str| [clusters("all", &rule("deny", to))];
    let wrong = [tenants("bank/web", &rule("forgotten", "10.9.0.3"))];
    let server = Played::start(
        &host.sandbox,
        host.folder.path(),
        [&deny("10.9.0.1"), &wrong],
    );
    let agent = host.agent(&server.settings);
    eventually("it is in force", || host.is_denied(1));
    let refused = || agent.metric("underpass_policy_source_refused").unwrap();
    eventually("the other is refused", || refused() == 1.0);
    server.replace([&deny("db.shop"), &wrong]);
    eventually("it is looked up", || host.server.asked("db.shop") > 0);
    assert!(host.is_denied(1) && !host.is_denied(2));
    host.server.tell("db.shop", Told::Addresses(vec![ip(2)]), 0);
    eventually("the next text is in force", || host.is_denied(2));
    assert!(!host.is_denied(1));
    // For three seconds, which is said.
    host.server.tell("silent.shop", Told::Silence, 0);
    server.replace([&deny("silent.shop"), &wrong]);
    agent
        .wait_for_log("new names in rules are not looked up yet")
        .unwrap();
    eventually("it is in force", || !host.is_denied(2));
    eventually("it is told", || state(&agent, "unknown") == 1.0);
}

/// The agent has a file of users of its own. While that is a pipe, a choice among objects waits for whoever writes into it.
#[test]
fn an_object_that_is_asked_for_again_is_looked_at_though_others_wait_for_their_names() {
    let host = Host::new();
    host.server.tell("db.shop", Told::Silence, 0);
    let path = |name: &str| host.folder.path().join(name);
    let (users, pipe, journal) = (path("passwd"), path("pipe"), path("own.log"));
    fs::copy(USERS, &users).unwrap();
    nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let denies = |name: &str, to: &str, user: &str| {
        let rule = format!(
            r#"{{"name": "r", "action": "deny", "fail": "open", "to": ["{to}:9042"], "uid": [{user}]}}"#
        );
        clusters(name, &rule)
    };
    let late = denies("late", "10.9.0.3", "\"newcomer\"");
    let before = [denies("all", "10.9.0.1", "0"), late.clone()];
    let server = Played::start(&host.sandbox, host.folder.path(), [&before, &[]]);
    let command = format!(
        "unshare --mount sh -c 'mount --bind {} {USERS} && exec \"$0\" \"$@\"' {BINARY}",
        users.display()
    );
    let policy = server.settings.clone() + &audited(&journal);
    let agent = host.agent_by(&command, &policy);
    let refused = || agent.metric("underpass_policy_source_refused").unwrap();
    eventually("one is in force, and the other refused", || {
        host.is_denied(1) && refused() == 1.0
    });

    let inside = |words: &[&str]| {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", agent.pid()));
        let status = command.arg("--mount").args(words).status();
        assert!(status.unwrap().success(), "{words:?}");
    };
    inside(&["mount", "--bind", pipe.to_str().unwrap(), USERS]);
    let after = [denies("all", "db.shop", "\"root\""), late];
    server.replace([&after, &[]]);
    let mut writer = None;
    eventually("the choice has begun", || {
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(nix::libc::O_NONBLOCK);
        // Before somebody reads, this fails.
        writer = options.open(&pipe).ok();
        writer.is_some()
    });
    let mut known = OpenOptions::new().append(true).open(&users).unwrap();
    known
        .write_all(b"newcomer:x:4242:4242::/:/bin/false\n")
        .unwrap();
    fs::remove_file(&journal).unwrap();
    agent.signal(Signal::SIGHUP).unwrap();
    eventually("it is asked for again", || journal.exists());
    inside(&["umount", "--lazy", USERS]);
    let mut writer = writer.unwrap();
    writer.write_all(b"root:x:0:0::/:/bin/sh\n").unwrap();
    drop(writer);

    eventually("those that were chosen wait", || {
        host.server.asked("db.shop") > 0
    });
    host.server.tell("db.shop", Told::Addresses(vec![ip(2)]), 0);
    eventually("the next text is in force", || host.is_denied(2));
    eventually("the other is, too", || {
        agent.get("/config").unwrap().contains("\"late.r\"")
    });
    eventually("none is refused", || refused() == 0.0);
}

/// Nodes of a cluster at the same port of other addresses, as a database has them that tells of no ports.
fn follows_the_nodes(has_peers_v2: bool) {
    let sandbox = Sandbox::new().unwrap();
    let start = |last| {
        let listen = ([127, 0, 0, last], PORT).into();
        let options = NodeOptions {
            listen,
            has_peers_v2,
            ..NodeOptions::default()
        };
        sandbox.server(|| Node::start(options)).unwrap().unwrap()
    };
    let [node, other, third] = [1, 2, 3].map(start);
    let cluster = format!(
        "[[cluster]]\nname = \"shop\"\ncontact_points = [\"{}\"]\n",
        node.addr()
    );
    let policy = cluster + &rule("deny", "to = [\"cluster:shop\"]");
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let agent = Agent::start(Path::new(BINARY), netns, cgroup, "", &policy).unwrap();
    let is_denied = |at: SocketAddr| {
        let dialled = sandbox.client(|| TcpStream::connect(at)).unwrap();
        dialled.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    };
    let others = [other.addr(), third.addr()];
    assert!(is_denied(node.addr()) && !others.into_iter().any(is_denied));
    // The agent's own connection is not denied, so it is told of the change.
    eventually("the next nodes are known", || {
        node.set_ring([&[node.addr()], &others[..]].concat());
        others.into_iter().all(is_denied)
    });
    assert_eq!(state(&agent, "known"), 1.0);
}

#[test]
fn a_rule_follows_the_nodes_of_its_cluster() {
    follows_the_nodes(true);
}

#[test]
fn a_rule_follows_the_nodes_of_a_database_that_has_the_older_table_alone() {
    follows_the_nodes(false);
}
