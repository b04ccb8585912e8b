//! Three databases on another host, behind one virtual address.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
    time::Duration,
};

use serde_json::Value;

use cql_node::{Node, NodeOptions};
use sandbox::{Agent, run_in};

use super::peers;
use crate::common::*;

pub struct Fleet {
    pub hosts: Hosts,
    pub family: Family,
    pub backends: Vec<SocketAddr>,
    nodes: Vec<Mutex<Option<Node>>>,
    next_port: AtomicU16,
}

/// Below those that the kernel gives out (`ip_local_port_range`).
const CLIENTS_PORTS: u16 = 10_000;

impl Fleet {
    pub fn new(family: Family) -> Self {
        let mut fleet = Self {
            hosts: Hosts::new(),
            family,
            backends: Vec::new(),
            nodes: Vec::new(),
            next_port: AtomicU16::new(CLIENTS_PORTS),
        };
        for _ in 0..3 {
            let node = fleet.start(SocketAddr::new(family.database(), 0));
            fleet.backends.push(node.addr());
            fleet.nodes.push(Mutex::new(Some(node)));
        }
        fleet
    }

    /// Address that clients dial. There is no route to it.
    pub fn virtual_address(&self) -> SocketAddr {
        let ip = match self.family {
            Family::V6 => "fd00:9::10",
            _ => "10.9.0.10",
        };
        SocketAddr::new(ip.parse().unwrap(), 9042)
    }

    /// Virtual address as an application of the fleet's family writes it.
    pub fn dialled(&self) -> SocketAddr {
        let at = self.virtual_address();
        self.family.dialled(at.ip(), at.port())
    }

    /// A policy of one rule, `r`.
    pub fn rule(&self, action: &str, rest: &str) -> String {
        rule(action, &self.balanced(&self.backends, rest))
    }

    /// The keys of a rule that balances.
    pub fn balanced(&self, backends: &[SocketAddr], rest: &str) -> String {
        let backends: Vec<String> = backends.iter().map(|at| format!("\"{at}\"")).collect();
        let to = self.virtual_address();
        format!(
            "to = [\"{to}\"]\nbackends = [{}]\n{rest}",
            backends.join(", ")
        )
    }

    pub fn connect(&self) -> std::io::Result<TcpStream> {
        self.hosts.client(|| self.dial())
    }

    pub fn connect_many(&self, n: usize) -> Vec<TcpStream> {
        self.hosts
            .client(|| (0..n).map(|_| self.dial().unwrap()).collect())
    }

    /// From a port that the kernel gives to nobody. One that it has given to the agent's check of a backend
    /// a moment ago is taken for a flow to that backend, which would go from another.
    fn dial(&self) -> std::io::Result<TcpStream> {
        let socket = socket(self.family);
        let any: IpAddr = match self.dialled() {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let port = self.next_port.fetch_add(1, Relaxed);
        socket.bind(&SocketAddr::new(any, port).into())?;
        socket.connect(&self.dialled().into())?;
        Ok(socket.into())
    }

    /// Backend of each connection.
    pub fn backends_of(&self, clients: &[&TcpStream]) -> Vec<usize> {
        let peers = self.hosts.client(|| peers::of(clients));
        let found = clients.iter().zip(peers).map(|(client, to)| {
            let own = client.local_addr().unwrap();
            let own = SocketAddr::new(own.ip().to_canonical(), own.port());
            let straight = self.backends.iter().position(|at| *at == to);
            let mut found = None;
            eventually("a backend has the connection", || {
                found = match straight {
                    Some(backend) => self.has(backend, own).then_some(backend),
                    None => (0..self.nodes.len()).find(|backend| self.has(*backend, own)),
                };
                found.is_some()
            });
            found.unwrap()
        });
        found.collect()
    }

    /// Connections that this backend has, and the others.
    pub fn split(&self, clients: Vec<TcpStream>, at: usize) -> (Vec<TcpStream>, Vec<TcpStream>) {
        let backends = self.backends_of(&clients.iter().collect::<Vec<_>>());
        let (its, others): (Vec<_>, Vec<_>) = clients
            .into_iter()
            .zip(backends)
            .partition(|(_, backend)| *backend == at);
        let sockets = |of: Vec<(TcpStream, usize)>| of.into_iter().map(|(client, _)| client);
        (sockets(its).collect(), sockets(others).collect())
    }

    fn has(&self, backend: usize, client: SocketAddr) -> bool {
        let node = self.nodes[backend].lock().unwrap();
        let clients = node.as_ref().map(Node::clients).unwrap_or_default();
        clients.iter().any(|has| has.peer == client)
    }

    pub fn count(&self, clients: &[TcpStream]) -> [usize; 3] {
        let mut counts = [0; 3];
        for backend in self.backends_of(&clients.iter().collect::<Vec<_>>()) {
            counts[backend] += 1;
        }
        counts
    }

    /// The host is there and nobody listens any more; its connections are closed.
    pub fn kill(&self, backend: usize) {
        *self.nodes[backend].lock().unwrap() = None;
    }

    /// Lets a backend listen again, as before.
    pub fn revive(&self, backend: usize) {
        *self.nodes[backend].lock().unwrap() = Some(self.start(self.backends[backend]));
    }

    fn start(&self, listen: SocketAddr) -> Node {
        let options = NodeOptions {
            listen,
            ..NodeOptions::default()
        };
        let start = || Node::start(options).unwrap();
        run_in(Some(&self.hosts.database), None, start).unwrap()
    }
}

/// Checks so often that a test need not wait, and a full share at once.
pub const QUICK: &str = "[health]\ninterval = \"200ms\"\nslow_start = \"0s\"\n";
pub const INTERVAL: Duration = Duration::from_millis(200);

/// A backend, as `/backends` has it.
pub fn view(agent: &Agent<'_>, backend: SocketAddr) -> Value {
    let views = agent.json("/backends").unwrap();
    let is_it = |view: &&Value| view["backend"] == backend.to_string();
    views
        .as_array()
        .unwrap()
        .iter()
        .find(is_it)
        .unwrap()
        .clone()
}

pub fn state(agent: &Agent<'_>, backend: SocketAddr) -> String {
    view(agent, backend)["state"].as_str().unwrap().to_owned()
}

/// `underpass backend BACKEND ORDER`: what it says.
pub fn order(agent: &Agent<'_>, backend: SocketAddr, order: &str) -> String {
    let backend = backend.to_string();
    let asked = Command::new(BINARY)
        .args(["backend", &backend, order, "--control"])
        .arg(agent.control())
        .output()
        .unwrap();
    assert!(asked.status.success(), "{asked:?}");
    String::from_utf8(asked.stdout).unwrap()
}
