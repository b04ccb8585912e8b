//! A client, a gateway and two backends, joined by veth; TCP through the gateway's edge.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use dataplane::{
    Edge,
    edge::{Forward, Interface, Mode, WantedMode},
};
use policy::{Action, Policy};
use sandbox::{Netns, run_in};

use super::{TestPins, interface, policy, rule};

pub const VIP4: &str = "10.9.0.10";
pub const VIP6: &str = "fd00:9::10";
pub const PORT: u16 = 9042;
/// Nothing that works takes so long.
pub const PATIENCE: Duration = Duration::from_secs(10);

pub struct Gateway {
    pub client: Netns,
    pub gateway: Netns,
    pub backends: [Netns; 2],
    pub pins: TestPins,
    /// A veth whose peer sends by XDP needs a program of its own, or GRO.
    _receivers: Vec<(TestPins, Edge)>,
    servers: Vec<Server>,
}

impl Gateway {
    pub fn new() -> Self {
        let [client, gateway, one, two] = std::array::from_fn(|_| Netns::new().unwrap());
        let link = |host: &Netns, n: u32| {
            let own = [format!("10.0.{n}.1/24"), format!("fd00:{n}::1/64")];
            let gates = [format!("10.0.{n}.254/24"), format!("fd00:{n}::254/64")];
            let gate = (&gateway, ["", "client", "one", "two"][n as usize]);
            let own: Vec<&str> = own.iter().map(String::as_str).collect();
            let gates: Vec<&str> = gates.iter().map(String::as_str).collect();
            host.join_as(&own, gate, &gates).unwrap();
            let via4 = format!("10.0.{n}.254");
            let via6 = format!("fd00:{n}::254");
            host.ip(&["route", "add", "default", "via", &via4]).unwrap();
            host.ip(&["-6", "route", "add", "default", "via", &via6])
                .unwrap();
        };
        link(&client, 1);
        link(&one, 2);
        link(&two, 3);
        gateway.sysctl("net.ipv4.ip_forward", "1").unwrap();
        gateway.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
        let receivers = [&client, &one, &two].map(|host| {
            run_in(Some(host), None, || {
                let pins = TestPins::new();
                let mut edge = pins.open();
                edge.guard(&[interface("veth", Forward::Off)]).unwrap();
                (pins, edge)
            })
            .unwrap()
        });
        let mut servers = Vec::new();
        for (host, name) in [(&one, b'1'), (&two, b'2')] {
            for any in ["0.0.0.0", "[::]"] {
                servers.push(Server::start(host, any, name));
            }
        }
        Self {
            client,
            gateway,
            backends: [one, two],
            pins: TestPins::new(),
            _receivers: receivers.into(),
            servers,
        }
    }

    /// Gives the backends the virtual addresses, as direct replies need.
    pub fn share_virtual_addresses(&self) {
        for host in &self.backends {
            host.ip(&["addr", "add", &format!("{VIP4}/32"), "dev", "lo"])
                .unwrap();
            host.ip(&[
                "-6",
                "addr",
                "add",
                &format!("{VIP6}/128"),
                "dev",
                "lo",
                "nodad",
            ])
            .unwrap();
        }
    }

    pub fn policy() -> Policy {
        let mut v4 = rule("v4", &[], &[&format!("{VIP4}:{PORT}")], Action::Bypass);
        v4.backends = ["10.0.2.1:9042", "10.0.3.1:9042"]
            .map(|b| b.parse().unwrap())
            .into();
        let mut v6 = rule("v6", &[], &[&format!("[{VIP6}]:{PORT}")], Action::Bypass);
        v6.backends = ["[fd00:2::1]:9042", "[fd00:3::1]:9042"]
            .map(|b| b.parse().unwrap())
            .into();
        policy(vec![v4, v6])
    }

    /// The gateway's edge, attached to all three interfaces; the host knows its neighbours.
    pub fn open(&self, forward: Forward, mode: WantedMode) -> Edge {
        run_in(Some(&self.gateway), None, || {
            let mut edge = self.pins.open();
            edge.install(&Self::policy()).unwrap();
            let interfaces = ["client", "one", "two"].map(|name| Interface {
                mode,
                ..interface(name, forward)
            });
            let guarded = edge.guard(&interfaces).unwrap();
            let expected = match mode {
                WantedMode::Generic => Mode::Generic,
                _ => Mode::Native,
            };
            assert!(guarded.iter().all(|g| g.mode == expected), "{guarded:?}");
            for backend in Self::policy().rules.iter().flat_map(|rule| &rule.backends) {
                // A health check would have.
                TcpStream::connect_timeout(backend, PATIENCE).unwrap();
            }
            edge
        })
        .unwrap()
    }

    /// Connects from the client's host; the backend has said who it is.
    pub fn connect(&self, to: IpAddr) -> std::io::Result<Talk> {
        Talk::connect(&self.client, to)
    }

    /// Where the backends' servers have seen their clients.
    pub fn peers(&self) -> Vec<SocketAddr> {
        let each = self
            .servers
            .iter()
            .map(|server| server.peers.lock().unwrap().clone());
        each.flatten().collect()
    }
}

/// A connection, and the name of the backend at its end.
pub struct Talk {
    pub stream: TcpStream,
    pub backend: u8,
}

impl Talk {
    pub fn connect(client: &Netns, to: IpAddr) -> std::io::Result<Self> {
        let to = SocketAddr::new(to, PORT);
        let dial = || TcpStream::connect_timeout(&to, PATIENCE);
        let stream = run_in(Some(client), None, dial).unwrap()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut talk = Self { stream, backend: 0 };
        let mut name = [0];
        talk.stream.read_exact(&mut name)?;
        talk.backend = name[0];
        Ok(talk)
    }

    /// Sends so many bytes and has them back, whole.
    pub fn echo(&mut self, bytes: usize) {
        let sent: Vec<u8> = (0..bytes).map(|n| (n * 7 + n / 251) as u8).collect();
        let mut writer = self.stream.try_clone().unwrap();
        let copy = sent.clone();
        let writing = thread::spawn(move || writer.write_all(&copy).unwrap());
        let mut got = vec![0; bytes];
        self.stream.read_exact(&mut got).unwrap();
        writing.join().unwrap();
        assert!(got == sent, "not the bytes that were sent");
    }
}

/// Says its name, then echoes.
pub struct Server {
    stop: Arc<AtomicBool>,
    pub peers: Arc<Mutex<Vec<SocketAddr>>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(host: &Netns, any: &str, name: u8) -> Self {
        let listen = || {
            let at: SocketAddr = format!("{any}:{PORT}").parse().unwrap();
            let domain = socket2::Domain::for_address(at);
            let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).unwrap();
            if at.is_ipv6() {
                socket.set_only_v6(true).unwrap();
            }
            socket.bind(&at.into()).unwrap();
            socket.listen(1024).unwrap();
            socket.set_nonblocking(true).unwrap();
            TcpListener::from(socket)
        };
        let listener = run_in(Some(host), None, listen).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let peers = Arc::new(Mutex::new(Vec::new()));
        let (stopped, seen) = (stop.clone(), peers.clone());
        let thread = thread::spawn(move || {
            while !stopped.load(Relaxed) {
                match listener.accept() {
                    Ok((stream, peer)) => {
                        seen.lock().unwrap().push(peer);
                        thread::spawn(move || drop(echo(stream, name)));
                    }
                    Err(_) => thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        Self {
            stop,
            peers,
            thread: Some(thread),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn echo(mut stream: TcpStream, name: u8) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.write_all(&[name])?;
    let mut buffer = vec![0; 65_536];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            bytes => stream.write_all(&buffer[..bytes])?,
        }
    }
}
