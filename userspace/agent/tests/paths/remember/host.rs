//! A host with an agent, a database that lets everybody in, and programs that dial it.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
};

use nix::sys::signal::Signal;
use sandbox::{Agent, Sandbox, run_in};

use crate::common::{BINARY, eventually};

const PROGRAM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/paths/remember/program.py"
);

/// See the module.
pub struct Host<'s> {
    pub agent: Agent<'s>,
    pub sandbox: &'s Sandbox,
    pub database: SocketAddr,
}

/// Runs `body` with an agent whose policy is this; `PORT` in it is the database's.
pub fn host(policy: &str, body: impl FnOnce(&mut Host<'_>)) {
    host_by(Path::new(BINARY), policy, body);
}

/// Runs `body` on a host whose agent has a switch set (`NAME=VALUE`).
pub fn switched_host(switch: &str, policy: &str, body: impl FnOnce(&mut Host<'_>)) {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("agent");
    sandbox::program::switched(&script, BINARY, switch).unwrap();
    host_by(&script, policy, body);
}

fn host_by(binary: &Path, policy: &str, body: impl FnOnce(&mut Host<'_>)) {
    let sandbox = Sandbox::new().unwrap();
    let database = serve_all(sandbox.server(listen).unwrap());
    let policy = policy.replace("PORT", &database.port().to_string());
    let netns = Some(&sandbox.netns);
    let agent = Agent::start(binary, netns, &sandbox.cgroup, "", &policy).unwrap();
    let mut host = Host {
        agent,
        sandbox: &sandbox,
        database,
    };
    body(&mut host);
    let log = host.agent.log();
    let complaints = log
        .lines()
        .filter(|l| l.contains(" ERROR ") || l.contains("panicked"));
    assert_eq!(complaints.collect::<Vec<_>>(), [""; 0]);
}

/// At a port of the kernel's choice.
pub fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// A database there.
pub fn serve_all(listener: TcpListener) -> SocketAddr {
    let addr = listener.local_addr().unwrap();
    // It ends with the test's process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve(stream.unwrap()));
        }
    });
    addr
}

const STARTUP: &[u8; 31] = b"\x04\0\0\0\x01\0\0\0\x16\0\x01\0\x0bCQL_VERSION\0\x053.0.0";
const READY: &[u8] = b"\x84\0\0\0\x02\0\0\0\0";
/// A RESULT of kind SetKeyspace, on stream 1.
const SHOP: &[u8] = b"\x84\0\0\x01\x08\0\0\0\x0a\0\0\0\x03\0\x04shop";

/// READY to a STARTUP, [`SHOP`] to any request; all else comes back.
fn serve(mut stream: TcpStream) {
    let mut asked = [0; STARTUP.len()];
    if stream.read_exact(&mut asked).is_err() {
        return;
    }
    assert_eq!(&asked, STARTUP);
    let _ = stream.write_all(READY);
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = stream.read(&mut bytes) {
        let answer = match &bytes[..n] {
            [4, ..] => SHOP,
            same => same,
        };
        if stream.write_all(answer).is_err() {
            return;
        }
    }
}

impl Host<'_> {
    /// An application.
    pub fn program(&self) -> Program {
        let mut command = Command::new("python3");
        command
            .args(["-S", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let (netns, cgroup) = (Some(&self.sandbox.netns), Some(&self.sandbox.cgroup));
        let spawned = run_in(netns, cgroup, || command.spawn()).unwrap();
        let mut child = spawned.unwrap();
        let mut program = Program {
            orders: child.stdin.take(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        let pid = program.hear();
        assert_eq!(pid, program.pid().to_string());
        program
    }

    /// Makes the program dial the database. Gives the connection's rule and its outcome.
    pub fn dial(&self, program: &mut Program) -> String {
        self.dials(program, &format!("dial {}", self.database.port()))
    }

    /// Gives the program any order that ends in one connection to the database. Gives that
    /// connection's rule and its outcome.
    pub fn dials(&self, program: &mut Program, order: &str) -> String {
        let before = self.connections();
        let said = program.obey(order);
        if !said.starts_with("refused") {
            let (own, peer) = said.split_once(' ').unwrap();
            assert!(own.starts_with("127.0.0.1:"), "{said}");
            assert_eq!(peer.split(':').next(), Some("127.0.0.1"), "{said}");
            assert_eq!(program.obey("talk hello"), "hello");
        }
        let after = self.connections();
        let changed: Vec<String> = after
            .into_iter()
            .filter(|(what, count)| before.get(what) != Some(count))
            .map(
                |(what, count)| match count - before.get(&what).unwrap_or(&0.0) {
                    1.0 => what,
                    more => format!("{more} {what}"),
                },
            )
            .collect();
        changed.join(", ")
    }

    /// `RULE OUTCOME`, and how many.
    fn connections(&self) -> BTreeMap<String, f64> {
        let metrics = self.agent.metrics().unwrap().into_iter();
        let ours = metrics.filter_map(|(name, count)| {
            let labels = name.strip_prefix("underpass_connections_total{")?;
            let label = |name: &str| {
                let (_, rest) = labels.split_once(&format!("{name}=\""))?;
                Some(rest.split('"').next()?.to_owned())
            };
            Some((format!("{} {}", label("rule")?, label("outcome")?), count))
        });
        ours.filter(|(_, count)| *count > 0.0).collect()
    }

    /// How many are remembered.
    pub fn remembered(&self) -> u64 {
        self.agent.metric("underpass_remembered").unwrap() as u64
    }

    /// Runs `underpass` with these arguments against the agent.
    pub fn operator(&self, args: &[&str]) {
        let port = self.database.port().to_string();
        let args = args.iter().map(|arg| arg.replace("PORT", &port));
        let done = Command::new(BINARY)
            .args(args)
            .arg("--control")
            .arg(self.agent.control())
            .output();
        let done = done.unwrap();
        assert!(done.status.success(), "{done:?}");
    }

    /// Puts this policy into force.
    pub fn reload(&self, policy: &str) {
        let loaded = "underpass_reloads_total{result=\"ok\"}";
        let before = self.agent.metric(loaded).unwrap();
        let port = self.database.port().to_string();
        self.agent
            .write_policy(&policy.replace("PORT", &port))
            .unwrap();
        self.agent.signal(Signal::SIGHUP).unwrap();
        eventually("the policy is in force", || {
            self.agent.metric(loaded).unwrap() > before
        });
    }
}

/// An application: `program.py`. Dropped, it ends, and nobody has its number any more.
pub struct Program {
    child: Child,
    /// None: it is to end.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Program {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn obey(&mut self, order: &str) -> String {
        let orders = self.orders.as_mut().unwrap();
        orders.write_all(order.as_bytes()).unwrap();
        self.hear()
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "the program ended");
        line.trim_end().to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.child.wait();
    }
}
