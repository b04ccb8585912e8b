//! Clients, a gateway with the agent on it, two databases: each on a host of its own.

use std::{
    net::{IpAddr, SocketAddr, TcpStream},
    path::Path,
    process::Command,
    sync::Mutex,
};

use cql_node::{Node, NodeOptions};
use sandbox::{Agent, Netns, Sandbox, run_in};
use socket2::{Domain, Socket, Type};

use crate::common::{BINARY, Family, PATIENCE};

/// Clients that have addresses of their own for it.
pub const ENRICHED: &str = "10.2.0.7";
pub const ENRICHED_TOO: &str = "10.2.0.8";
pub const CLIENT: &str = "10.2.0.1";
/// Checks so often that a test need not wait, and a full share at once.
pub const QUICK: &str = "[health]\ninterval = \"200ms\"\nslow_start = \"0s\"\n";

const PORT: u16 = 9042;
pub const XDP: &str = "[[xdp]]\ninterface = \"clients\"\nmode = \"generic\"\nforward = \"snat\"\n\
                   [[xdp]]\ninterface = \"databases\"\nmode = \"generic\"\nforward = \"snat\"\n";

pub struct Hosts {
    pub clients: Netns,
    pub gateway: Sandbox,
    databases: Netns,
    /// By backend, then by family.
    nodes: [Mutex<Option<[Node; 2]>>; 2],
}

/// Nobody has it.
pub fn virtual_address(family: Family) -> SocketAddr {
    let ip = match family {
        Family::V6 => "fd00:9::10",
        _ => "10.9.0.10",
    };
    SocketAddr::new(ip.parse().unwrap(), PORT)
}

pub fn backends(family: Family) -> [SocketAddr; 2] {
    let ips = match family {
        Family::V6 => ["fd00:1::2", "fd00:1::3"],
        _ => ["10.1.0.2", "10.1.0.3"],
    };
    ips.map(|ip| SocketAddr::new(ip.parse().unwrap(), PORT))
}

/// The gateway's own, towards the databases.
pub fn own(family: Family) -> IpAddr {
    let ip = match family {
        Family::V6 => "fd00:1::fe",
        _ => "10.1.0.254",
    };
    ip.parse().unwrap()
}

pub fn rule(name: &str, family: Family, action: &str, rest: &str) -> String {
    let [one, two] = backends(family);
    format!(
        "[[rule]]\nname = \"{name}\"\nto = [\"{}\"]\nbackends = [\"{one}\", \"{two}\"]\n\
         action = \"{action}\"\n{rest}\n",
        virtual_address(family)
    )
}

/// A rule for each family.
pub fn both(action: &str, rest: &str) -> String {
    rule("v4", Family::V4, action, rest) + &rule("v6", Family::V6, action, rest)
}

impl Hosts {
    pub fn new() -> Self {
        let (clients, databases) = (Netns::new().unwrap(), Netns::new().unwrap());
        let gateway = Sandbox::new().unwrap();
        let own = ["10.2.0.1/24", "10.2.0.7/24", "10.2.0.8/24", "fd00:2::1/64"];
        let gates = ["10.2.0.254/24", "fd00:2::fe/64"];
        clients
            .join_as(&own, (&gateway.netns, "clients"), &gates)
            .unwrap();
        let own = ["10.1.0.2/24", "10.1.0.3/24", "fd00:1::2/64", "fd00:1::3/64"];
        let gates = ["10.1.0.254/24", "fd00:1::fe/64"];
        databases
            .join_as(&own, (&gateway.netns, "databases"), &gates)
            .unwrap();
        for (host, v4, v6) in [
            (&clients, "10.2.0.254", "fd00:2::fe"),
            (&databases, "10.1.0.254", "fd00:1::fe"),
        ] {
            host.ip(&["route", "add", "default", "via", v4]).unwrap();
            host.ip(&["-6", "route", "add", "default", "via", v6])
                .unwrap();
        }
        let on = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];
        for name in on {
            gateway.netns.sysctl(name, "1").unwrap();
        }
        let nodes = [0, 1].map(|n| Mutex::new(Some(start(&databases, n))));
        Self {
            clients,
            gateway,
            databases,
            nodes,
        }
    }

    /// How many ports there are towards a backend; to be called before an agent starts.
    pub fn gateway_ports(&self, ports: u16) {
        let range = format!("{} 60999", 1024 + ports);
        let name = "net.ipv4.ip_local_port_range";
        self.gateway.netns.sysctl(name, &range).unwrap();
    }

    pub fn agent(&self, policy: &str) -> Agent<'_> {
        self.agent_with(policy, QUICK)
    }

    pub fn agent_with(&self, policy: &str, health: &str) -> Agent<'_> {
        self.agent_of("", policy, health)
    }

    pub fn agent_of(&self, settings: &str, policy: &str, health: &str) -> Agent<'_> {
        let (netns, cgroup) = (Some(&self.gateway.netns), &self.gateway.cgroup);
        let policy = format!("{XDP}{policy}{health}");
        Agent::start(Path::new(BINARY), netns, cgroup, settings, &policy).unwrap()
    }

    /// Backends that answer clients themselves.
    pub fn agent_direct(&self, policy: &str, health: &str) -> Agent<'_> {
        let (netns, cgroup) = (Some(&self.gateway.netns), &self.gateway.cgroup);
        let policy = format!("{}{policy}{health}", XDP.replace("snat", "dsr"));
        Agent::start(Path::new(BINARY), netns, cgroup, "", &policy).unwrap()
    }

    /// The host of the backends has the virtual addresses, as direct replies need; a database there.
    pub fn share_virtual_addresses(&self) -> [Node; 2] {
        [Family::V4, Family::V6].map(|family| {
            let at = virtual_address(family);
            let bits = if at.is_ipv4() { 32 } else { 128 };
            let own = format!("{}/{bits}", at.ip());
            let add = ["addr", "add", &own, "dev", "lo", "nodad"];
            let add = if at.is_ipv4() { &add[..5] } else { &add };
            self.databases.ip(add).unwrap();
            let options = NodeOptions {
                listen: at,
                ..NodeOptions::default()
            };
            let start = || Node::start(options).unwrap();
            run_in(Some(&self.databases), None, start).unwrap()
        })
    }

    pub fn write(&self, agent: &Agent<'_>, policy: &str) {
        agent
            .write_policy(&format!("{XDP}{policy}{QUICK}"))
            .unwrap();
    }

    pub fn connect(&self, family: Family) -> std::io::Result<TcpStream> {
        let own = match family {
            Family::V6 => "fd00:2::1",
            _ => CLIENT,
        };
        self.connect_from(own, family)
    }

    pub fn connect_from(&self, own: &str, family: Family) -> std::io::Result<TcpStream> {
        let to = virtual_address(family);
        let dial = || {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
            socket.bind(&SocketAddr::new(own.parse().unwrap(), 0).into())?;
            socket.connect_timeout(&to.into(), PATIENCE)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            Ok(socket.into())
        };
        run_in(Some(&self.clients), None, dial).unwrap()
    }

    /// Clients that the databases have.
    pub fn peers(&self, family: Family) -> Vec<SocketAddr> {
        let of = usize::from(family == Family::V6);
        let mut peers = Vec::new();
        for nodes in &self.nodes {
            let nodes = nodes.lock().unwrap();
            let clients = nodes.iter().flat_map(|nodes| nodes[of].clients());
            peers.extend(clients.map(|client| client.peer));
        }
        peers
    }

    /// The host is there, and nobody listens any more.
    pub fn kill(&self, backend: usize) {
        *self.nodes[backend].lock().unwrap() = None;
    }

    /// Virtual addresses that are the gateway's by a route of the agent's.
    pub fn taken(&self) -> Vec<String> {
        let routes = self.local_routes();
        let ours = routes.iter().filter(|route| route.contains("proto 86"));
        ours.map(|route| route.split(' ').nth(1).unwrap().to_owned())
            .collect()
    }

    /// Routes that make an address the gateway's own.
    pub fn local_routes(&self) -> Vec<String> {
        let show = |family: &str| {
            let mut ip = Command::new("ip");
            ip.args([family, "route", "show", "table", "local"]);
            let shown = self.gateway.server(|| ip.output()).unwrap().unwrap();
            String::from_utf8(shown.stdout).unwrap()
        };
        let shown = show("-4") + &show("-6");
        let lines = shown.lines().filter(|line| line.starts_with("local "));
        let lines = lines.filter(|line| !line.contains(" proto kernel "));
        let mut routes: Vec<String> = lines.map(str::to_owned).collect();
        routes.sort();
        routes
    }

    /// `underpass detach` on the gateway.
    pub fn detach(&self, agent: &Agent<'_>) {
        let mut underpass = Command::new(BINARY);
        underpass.arg("detach").arg("--pins").arg(agent.pins());
        underpass.arg("--control").arg(agent.control());
        let detached = self.gateway.server(|| underpass.output());
        let detached = detached.unwrap().unwrap();
        assert!(detached.status.success(), "{detached:?}");
    }
}

fn start(databases: &Netns, backend: usize) -> [Node; 2] {
    [Family::V4, Family::V6].map(|family| {
        let options = NodeOptions {
            listen: backends(family)[backend],
            ..NodeOptions::default()
        };
        run_in(Some(databases), None, || Node::start(options).unwrap()).unwrap()
    })
}

/// `underpass backend BACKEND ORDER`.
pub fn order(agent: &Agent<'_>, backend: SocketAddr, order: &str) {
    let asked = Command::new(BINARY)
        .args(["backend", &backend.to_string(), order, "--control"])
        .arg(agent.control())
        .output()
        .unwrap();
    assert!(asked.status.success(), "{asked:?}");
}
