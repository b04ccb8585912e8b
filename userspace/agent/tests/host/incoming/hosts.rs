//! A host of clients, one of databases with the agent on it, and what is tried between them.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
};

use sandbox::{Agent, Netns, Sandbox, run_in};
use socket2::{Domain, Socket, Type};

use crate::common::{BINARY, Family, PATIENCE, eventually, options, supported};

pub const PORT: u16 = 9042;
pub const INCOMING: &str = "[[incoming]]\n";
pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// A host of clients, and one of databases with the agent on it. `app` and `database` of the families
/// are their addresses.
pub struct Hosts {
    pub clients: Netns,
    pub database: Sandbox,
}

impl Hosts {
    pub fn new() -> Self {
        let database = Sandbox::new().unwrap();
        let clients = Netns::new().unwrap();
        let (own, others) = (
            [
                "192.0.2.2/24",
                "192.0.2.3/24",
                "2001:db8::2/64",
                "2001:db8::3/64",
            ],
            ["192.0.2.1/24", "192.0.2.7/24", "2001:db8::1/64"],
        );
        database.netns.join(&clients, &own, &others).unwrap();
        Self { clients, database }
    }

    pub fn agent(&self, policy: &str) -> Agent<'_> {
        self.agent_with(INCOMING, policy)
    }

    pub fn agent_with(&self, incoming: &str, policy: &str) -> Agent<'_> {
        let (netns, cgroup) = (Some(&self.database.netns), &self.database.cgroup);
        let policy = format!("{incoming}{policy}");
        Agent::start(Path::new(BINARY), netns, cgroup, "", &policy).unwrap()
    }

    /// A database, which no hook of the agent sees begin to listen.
    pub fn listen(&self, family: Family) -> TcpListener {
        self.listen_at(SocketAddr::new(family.database(), PORT))
    }

    pub fn listen_at(&self, at: SocketAddr) -> TcpListener {
        let bind = || TcpListener::bind(at);
        self.database.server(bind).unwrap().unwrap()
    }

    pub fn connect(&self, family: Family) -> std::io::Result<TcpStream> {
        self.connect_to(SocketAddr::new(family.database(), PORT))
    }

    pub fn connect_to(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        dial(&self.clients, None, to)
    }

    pub fn connect_from(&self, own: &str, to: SocketAddr) -> std::io::Result<TcpStream> {
        dial(&self.clients, Some(own.parse().unwrap()), to)
    }

    /// The agent's routing, as `ip` shows it.
    pub fn routing(&self) -> String {
        let show = |args: &[&str]| {
            let show = || std::process::Command::new("ip").args(args).output();
            let shown = self.database.server(show).unwrap().unwrap();
            String::from_utf8(shown.stdout).unwrap()
        };
        let mut lines = Vec::new();
        for family in ["-4", "-6"] {
            let rules = show(&[family, "rule", "show"]);
            let ours = rules.lines().filter(|line| line.contains("8686"));
            lines.extend(ours.map(str::to_owned));
            let routes = show(&[family, "route", "show", "table", "8686"]);
            lines.extend(routes.lines().map(str::to_owned));
        }
        lines.join("\n")
    }
}

pub fn dial(netns: &Netns, own: Option<SocketAddr>, to: SocketAddr) -> std::io::Result<TcpStream> {
    let dial = || {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        if let Some(own) = own {
            socket.bind(&own.into())?;
        }
        socket.connect_timeout(&to.into(), PATIENCE)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket.into())
    };
    run_in(Some(netns), None, dial).unwrap()
}

/// The client asks, the database answers: both see it whole, and the agent has decoded it.
pub fn exchange(client: &mut TcpStream, database: &mut TcpStream) {
    client.write_all(&options(1)).unwrap();
    let mut request = [0; 9];
    database.read_exact(&mut request).unwrap();
    assert_eq!(request, options(1));
    database.write_all(&supported(1)).unwrap();
    let mut response = [0; 11];
    client.read_exact(&mut response).unwrap();
    assert_eq!(response, supported(1));
}

pub fn outcome(agent: &Agent<'_>, outcome: &str) -> f64 {
    let name = format!("underpass_connections_total{{outcome=\"{outcome}\",rule=\"r\"}}");
    agent.metric(&name).unwrap()
}

/// Reads to the end, and says how many bytes there were.
pub fn end(stream: &mut TcpStream) -> usize {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    all.len()
}

/// On a busy host the canary may run out of time.
pub const ATTEMPTS: usize = 5;

/// The engine by which flows of clients on other hosts are spliced.
pub const ENGINE: &str = "egress";

impl Hosts {
    /// An agent that splices by this engine, or not at all (`off`).
    pub fn splicing(&self, binary: &Path, engine: &str, policy: &str) -> Agent<'_> {
        let (netns, cgroup) = (Some(&self.database.netns), &self.database.cgroup);
        let settings = format!("splice = \"{engine}\"");
        for _ in 0..ATTEMPTS {
            let agent = Agent::start(binary, netns, cgroup, &settings, policy).unwrap();
            if engine == "off" || works(&agent, engine) {
                return agent;
            }
        }
        panic!("the engine {engine} does not work here")
    }
}

/// Whether it does, once it has been tried out.
pub fn works(agent: &Agent<'_>, engine: &str) -> bool {
    let name = format!("underpass_path_available{{path=\"splice_{engine}\"");
    let mut tried = None;
    eventually("the engine is tried out", || {
        let metrics = agent.metrics().unwrap();
        let mut samples = metrics.iter().filter(|(n, _)| n.starts_with(&name));
        tried = samples.next().map(|(_, works)| *works > 0.0);
        tried.is_some()
    });
    tried == Some(true)
}
