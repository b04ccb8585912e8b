//! Helpers that the test programs share: families, hosts, a small TCP client and server.
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

pub mod asking;
pub mod cassandra;
pub mod certs;
pub mod frames;
pub mod front;
pub mod gateway;
pub mod host;
pub mod ip_options;
pub mod operating;
pub mod operator;
pub mod traffic;
pub mod ways;
pub mod wire;
pub mod world;

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    time::Duration,
};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use sandbox::{Agent, Netns, Sandbox, Wire};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

/// The agent under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_underpass");

/// Longer than anything here takes; a hang is a failure, not a wait.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How an application dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
    /// An IPv6 socket that dials an IPv4 address.
    Mapped,
}

pub const FAMILIES: [Family; 3] = [Family::V4, Family::V6, Family::Mapped];

/// Place of the database, seen from the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// On this host's loopback.
    Here,
    /// On another host, over veth.
    There,
}

impl Family {
    /// The address that an application of this family dials for `ip`.
    pub fn dialled(self, ip: IpAddr, port: u16) -> SocketAddr {
        match (self, ip) {
            (Family::Mapped, IpAddr::V4(v4)) => SocketAddr::new(v4.to_ipv6_mapped().into(), port),
            _ => SocketAddr::new(ip, port),
        }
    }

    pub fn loopback(self) -> IpAddr {
        match self {
            Family::V6 => "::1".parse().unwrap(),
            _ => "127.0.0.1".parse().unwrap(),
        }
    }

    /// The application's own address on the veth.
    pub fn app(self) -> IpAddr {
        match self {
            Family::V6 => "2001:db8::1".parse().unwrap(),
            _ => "192.0.2.1".parse().unwrap(),
        }
    }

    /// The database's.
    pub fn database(self) -> IpAddr {
        match self {
            Family::V6 => "2001:db8::2".parse().unwrap(),
            _ => "192.0.2.2".parse().unwrap(),
        }
    }

    pub fn domain(self) -> Domain {
        if self == Family::V4 {
            Domain::IPV4
        } else {
            Domain::IPV6
        }
    }
}

/// Addresses of both ends of the veth, as [`Family::app`] and [`Family::database`] have them.
const OWN: [&str; 2] = ["192.0.2.1/24", "2001:db8::1/64"];
const OTHERS: [&str; 2] = ["192.0.2.2/24", "2001:db8::2/64"];

/// An application host, and a database host next to it.
pub struct Hosts {
    pub app: Sandbox,
    pub database: Netns,
    /// Outlives the agents.
    folder: tempfile::TempDir,
}

impl Hosts {
    pub fn new() -> Self {
        let app = Sandbox::new().unwrap();
        let database = Netns::new().unwrap();
        app.netns.join(&database, &OWN, &OTHERS).unwrap();
        Self::of(app, database)
    }

    /// With a wire between them that is not always good.
    pub fn with_wire(seed: u64) -> (Self, Wire) {
        let app = Sandbox::new().unwrap();
        let database = Netns::new().unwrap();
        let wire = Wire::new((&app.netns, &OWN), (&database, &OTHERS), seed).unwrap();
        (Self::of(app, database), wire)
    }

    /// Two that are joined already.
    pub fn of(app: Sandbox, database: Netns) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            app,
            database,
            folder,
        }
    }

    pub fn agent(&self, policy: &str) -> Agent<'_> {
        self.agent_with("", policy)
    }

    /// An agent with a switch for tests set, `NAME=value`.
    pub fn switched(&self, switch: &str, settings: &str, policy: &str) -> Agent<'_> {
        let binary = self.folder.path().join(switch);
        sandbox::program::switched(&binary, BINARY, switch).unwrap();
        let (netns, cgroup) = (Some(&self.app.netns), &self.app.cgroup);
        Agent::start(&binary, netns, cgroup, settings, policy).unwrap()
    }

    pub fn agent_with(&self, settings: &str, policy: &str) -> Agent<'_> {
        let (netns, cgroup) = (Some(&self.app.netns), &self.app.cgroup);
        Agent::start(Path::new(BINARY), netns, cgroup, settings, policy).unwrap()
    }

    /// A database that accepts, at a port of the kernel's choice.
    pub fn listen(&self, distance: Distance, family: Family) -> TcpListener {
        let ip = self.database_ip(distance, family);
        match distance {
            Distance::Here => self
                .app
                .server(|| TcpListener::bind((ip, 0)))
                .unwrap()
                .unwrap(),
            Distance::There => {
                let bind = || TcpListener::bind((ip, 0));
                sandbox::run_in(Some(&self.database), None, bind)
                    .unwrap()
                    .unwrap()
            }
        }
    }

    pub fn database_ip(&self, distance: Distance, family: Family) -> IpAddr {
        match distance {
            Distance::Here => family.loopback(),
            Distance::There => family.database(),
        }
    }

    /// Runs `client` as an application.
    pub fn client<T: Send>(&self, client: impl FnOnce() -> T + Send) -> T {
        self.app.client(client).unwrap()
    }

    /// Runs `client` where no hook sees it: how things are without us.
    pub fn direct<T: Send>(&self, client: impl FnOnce() -> T + Send) -> T {
        self.app.server(client).unwrap()
    }
}

/// A policy of one rule.
pub fn rule(action: &str, rest: &str) -> String {
    // A rule that denies has to say it.
    let fail = match action == "deny" && !rest.contains("fail = ") {
        true => "fail = \"open\"\n",
        false => "",
    };
    format!("[[rule]]\nname = \"r\"\naction = \"{action}\"\n{fail}{rest}\n")
}

/// A rule that sends what goes to these ports to the agent.
pub fn enrich(ports: &[u16]) -> String {
    rule("enrich", &to(ports))
}

pub fn to(ports: &[u16]) -> String {
    let ports: Vec<String> = ports.iter().map(|p| format!("\":{p}\"")).collect();
    format!("to = [{}]", ports.join(", "))
}

/// A socket of this family that has not dialled yet.
pub fn socket(family: Family) -> Socket {
    let socket = Socket::new(family.domain(), Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

pub fn connect(family: Family, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket(family);
    socket.connect(&SockAddr::from(to))?;
    Ok(socket.into())
}

/// Accepts within [`PATIENCE`].
pub fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    listener.set_nonblocking(true).unwrap();
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return (stream, peer);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                assert!(
                    std::time::Instant::now() < deadline,
                    "nobody dialled the database"
                );
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) => panic!("accept: {e}"),
        }
    }
}

/// Address to which clients are sent, in the agent's own namespace.
pub fn listens_at(agent: &Agent<'_>) -> SocketAddr {
    let listening = std::fs::read_to_string(format!("/proc/{}/net/tcp", agent.pid())).unwrap();
    // `sl local_address rem_address st`: 127.86.0.1 in state LISTEN.
    let port = listening.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, _, state) = (fields.next()?, fields.next()?, fields.next()?);
        let port = local.strip_prefix("0100567F:").filter(|_| state == "0A")?;
        u16::from_str_radix(port, 16).ok()
    });
    ([127, 86, 0, 1], port.unwrap()).into()
}

/// How often a flow took a safer path than its rule asked for.
pub fn cause(agent: &Agent<'_>, cause: &str) -> f64 {
    let name = format!("underpass_safer_path_total{{cause=\"{cause}\"}}");
    agent.metric(&name).unwrap()
}

/// Stops listening. To close the socket would not do: a process that another test is starting has a copy of it until it runs its program.
pub fn stop_listening(listener: TcpListener) {
    SockRef::from(&listener).shutdown(Shutdown::Both).unwrap();
}

/// Waits until `holds` does.
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    eventually_within(what, PATIENCE, holds);
}

pub fn eventually_within(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + within;
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A v4 OPTIONS request on this stream, and the SUPPORTED that answers it (an empty map).
pub fn options(stream: u8) -> [u8; 9] {
    [0x04, 0, 0, stream, 0x05, 0, 0, 0, 0]
}

pub fn supported(stream: u8) -> [u8; 11] {
    [0x84, 0, 0, stream, 0x06, 0, 0, 0, 2, 0, 0]
}

/// A client that asks and is answered, to the end of the answer.
pub fn works(client: &mut TcpStream) -> bool {
    let mut header = [0; 9];
    let asked = client.write_all(&options(7));
    if asked.and_then(|()| client.read_exact(&mut header)).is_err() {
        return false;
    }
    let [version, _, _, stream, opcode, a, b, c, d] = header;
    let mut body = vec![0; u32::from_be_bytes([a, b, c, d]) as usize];
    (version, stream, opcode) == (0x84, 7, 6) && client.read_exact(&mut body).is_ok()
}

/// Bytes that the kernel holds for the sockets of a namespace, by `ss -m`: receive and send queues
/// with their overhead, and backlogs. Bytes past TCP are charged to the client's receive queue;
/// those that wait for the worker are at most 32 packets of 64 KiB more, and in nobody's account.
pub fn kernel_bytes(sandbox: &Sandbox) -> u64 {
    let shown = sandbox.server(|| {
        let output = std::process::Command::new("ss").arg("-tmnH").output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    });
    let shown = shown.unwrap();
    let memory = shown.split("skmem:(").skip(1);
    let sums = memory.map(|m| {
        let fields = m.split(')').next().unwrap().split(',');
        fields
            .filter_map(|f| {
                f.strip_prefix('r')
                    .or(f.strip_prefix('w'))
                    .or(f.strip_prefix("bl"))
            })
            .filter_map(|n| n.parse::<u64>().ok())
            .sum::<u64>()
    });
    sums.sum()
}

/// Runs `body` while an agent gets no descriptor beyond those that it has. To poll(2) every number of descriptors is too large then.
pub fn without_descriptors<R>(agent: &Agent<'_>, body: impl FnOnce() -> R) -> R {
    let pid = Pid::from_raw(agent.pid().cast_signed());
    let none = Rlimit {
        current: Some(0),
        // Raised again, this one would take a capability.
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    let before = prlimit(pid, Resource::Nofile, none).unwrap();
    let result = body();
    prlimit(pid, Resource::Nofile, before).unwrap();
    result
}
