//! A host with an agent, a database, and perhaps a second one or what stands for it.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::Command,
    sync::mpsc,
    thread,
};

use cql_node::{Node, NodeOptions};
use nix::sys::signal::Signal;
use sandbox::{Agent, Sandbox};

use crate::common::{
    self, BINARY, PATIENCE, eventually,
    frames::{RESPONSE, RESULT, frame, query, ready, segment, startup},
};

pub const ERROR: u8 = 0x00;
pub const PREPARE: u8 = 0x09;
pub const EXECUTE: u8 = 0x0A;
pub const AUTH_RESPONSE: u8 = 0x0F;
pub const AUTH_SUCCESS: u8 = 0x10;

const SCHEMA: [&str; 2] = [
    "CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    "CREATE TABLE shop.orders (id int PRIMARY KEY, v text)",
];

/// See the module.
pub struct World<'s> {
    pub sandbox: &'s Sandbox,
    pub agent: Agent<'s>,
    pub database: Node,
}

pub fn world(body: impl FnOnce(&World<'_>)) {
    world_of(1, NodeOptions::default(), body);
}

/// With so many threads on which bytes move.
pub fn world_of(workers: usize, options: NodeOptions, body: impl FnOnce(&World<'_>)) {
    let sandbox = Sandbox::new().unwrap();
    let netns = Some(&sandbox.netns);
    let settings = &format!("max_flows = 100\nworkers = {workers}");
    let agent = Agent::start(Path::new(BINARY), netns, &sandbox.cgroup, settings, "").unwrap();
    let world = World {
        database: node(&sandbox, options),
        sandbox: &sandbox,
        agent,
    };
    body(&world);
    eventually("every flow ends", || {
        world.agent.metric("underpass_flows").unwrap() == 0.0
    });
    let log = world.agent.log();
    // One test takes a file away.
    let mut lines = log.lines().filter(|line| !line.contains("password_file"));
    let bad = lines.find(|line| line.contains("panicked") || line.contains(" ERROR "));
    assert_eq!(bad, None, "the agent complained");
}

pub fn node(sandbox: &Sandbox, options: NodeOptions) -> Node {
    let schema = SCHEMA.map(str::to_owned).to_vec();
    let options = NodeOptions { schema, ..options };
    sandbox.server(|| Node::start(options)).unwrap().unwrap()
}

impl World<'_> {
    pub fn mirror(&self) -> Node {
        node(self.sandbox, NodeOptions::default())
    }

    /// A rule `r` for the database, with this mirror. Flows come to the agent.
    pub fn rule(&self, to: SocketAddr, settings: &str) {
        self.rule_by("inline", to, settings);
    }

    /// A rule whose flows are read on this path.
    pub fn rule_by(&self, path: &str, to: SocketAddr, settings: &str) {
        let port = self.database.addr().port();
        let policy = format!(
            "[[rule]]\nname = \"r\"\nto = [\":{port}\"]\npath = \"{path}\"\naction = \"enrich\"\n\
             pipeline = [{{ transform = \"mirror\", to = \"{to}\"{settings} }}]\n"
        );
        let loaded = "underpass_reloads_total{result=\"ok\"}";
        let before = self.agent.metric(loaded).unwrap();
        self.agent.write_policy(&policy).unwrap();
        self.agent.signal(Signal::SIGHUP).unwrap();
        eventually("the policy is in force", || {
            self.agent.metric(loaded).unwrap() > before
        });
    }

    /// An application's connection to the database.
    pub fn client(&self, version: u8) -> Client {
        let to = self.database.addr();
        let stream = self.sandbox.client(|| TcpStream::connect(to));
        Client::begin(stream.unwrap().unwrap(), version)
    }

    /// Value that another client finds at a node.
    pub fn value_at(&self, node: SocketAddr, id: i32) -> Option<String> {
        let stream = self.sandbox.server(|| TcpStream::connect(node));
        let mut client = Client::begin(stream.unwrap().unwrap(), 4);
        let text = format!("SELECT v FROM shop.orders WHERE id = {id}");
        let (opcode, body) = client.ask(&query(4, 1, &text));
        assert_eq!(opcode, RESULT);
        let rows = cql_edit::Page::read(&body).unwrap().rows;
        let value = rows.first()?[0]?;
        Some(String::from_utf8(value.to_vec()).unwrap())
    }

    /// Takes a client's flow out of its rule.
    pub fn bypass(&self, client: &Client) {
        let own = client.stream.local_addr().unwrap().to_string();
        let flows = self.agent.json("/flows").unwrap();
        let mut flows = flows.as_array().unwrap().iter();
        let flow = flows.find(|flow| flow["client"] == own.as_str()).unwrap();
        let mut mark = Command::new(BINARY);
        mark.args(["mark", &flow["id"].to_string(), "bypass", "--control"]);
        let marked = mark.arg(self.agent.control()).output().unwrap();
        assert!(marked.status.success(), "{marked:?}");
    }

    /// The most memory that the agent has had, in bytes.
    pub fn most_resident(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.agent.pid())).unwrap();
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = most.and_then(|kib| kib.trim().strip_suffix(" kB")).unwrap();
        kib.parse::<usize>().unwrap() << 10
    }

    pub fn counted(&self, metric: &str, labels: &str) -> u64 {
        let sample = format!("underpass_mirror_{metric}_total{{{labels}}}");
        self.agent.metric(&sample).unwrap() as u64
    }

    pub fn fate(&self, outcome: &str) -> u64 {
        self.counted("requests", &format!("outcome=\"{outcome}\",rule=\"r\""))
    }

    pub fn compared(&self, result: &str) -> u64 {
        self.counted("compared", &format!("result=\"{result}\",rule=\"r\""))
    }

    pub fn waited(&self, outcome: &str) -> u64 {
        let sample = format!(
            "underpass_pipeline_waited_total{{outcome=\"{outcome}\",rule=\"r\",transform=\"mirror\"}}"
        );
        self.agent.metric(&sample).unwrap() as u64
    }
}

pub struct Client {
    pub stream: TcpStream,
    pub version: u8,
}

impl Client {
    pub fn begin(mut stream: TcpStream, version: u8) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let hello = startup(version, &[("CQL_VERSION", "3.0.0")]);
        stream.write_all(&hello).unwrap();
        let expected = ready(version);
        let mut got = vec![0; expected.len()];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got, expected);
        Self { stream, version }
    }

    pub fn send(&mut self, frame: &[u8]) {
        let bytes = match self.version {
            5 => segment(frame),
            _ => frame.to_vec(),
        };
        self.stream.write_all(&bytes).unwrap();
    }

    /// Stream, opcode and body of the next response, which is alone in its segment.
    pub fn next(&mut self) -> (i16, u8, Vec<u8>) {
        if self.version == 5 {
            self.stream.read_exact(&mut [0; 6]).unwrap();
        }
        let mut header = [0; 9];
        self.stream.read_exact(&mut header).unwrap();
        assert_eq!(header[0], RESPONSE | self.version);
        let length = u32::from_be_bytes(header[5..].try_into().unwrap());
        let mut body = vec![0; length as usize];
        self.stream.read_exact(&mut body).unwrap();
        if self.version == 5 {
            self.stream.read_exact(&mut [0; 4]).unwrap();
        }
        (i16::from_be_bytes([header[2], header[3]]), header[4], body)
    }

    pub fn ask(&mut self, frame: &[u8]) -> (u8, Vec<u8>) {
        self.send(frame);
        let (_, opcode, body) = self.next();
        (opcode, body)
    }

    pub fn does(&mut self, text: &str) {
        let (opcode, body) = self.ask(&query(self.version, 1, text));
        assert_eq!(opcode, RESULT, "{text}: {}", String::from_utf8_lossy(&body));
    }

    pub fn inserts(&mut self, id: i32, value: &str) {
        self.does(&insert(id, value));
    }

    pub fn prepares(&mut self, text: &str) -> Vec<u8> {
        let mut body = [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
        if self.version == 5 {
            body.extend([0; 4]);
        }
        let (opcode, body) = self.ask(&frame(self.version, 2, PREPARE, &body));
        assert_eq!(opcode, RESULT, "{}", String::from_utf8_lossy(&body));
        let length = usize::from(u16::from_be_bytes([body[4], body[5]]));
        body[6..6 + length].to_vec()
    }

    pub fn execute(&self, id: &[u8], values: &[&[u8]]) -> Vec<u8> {
        let mut body = short(id);
        if self.version == 5 {
            body.extend(short(id));
        }
        body.extend([0, 1]);
        body.extend(match self.version {
            5 => &[0, 0, 0, 1][..],
            _ => &[1],
        });
        body.extend(bound(values));
        frame(self.version, 3, EXECUTE, &body)
    }
}

pub fn insert(id: i32, value: &str) -> String {
    format!("INSERT INTO shop.orders (id, v) VALUES ({id}, '{value}')")
}

/// An AUTH_RESPONSE's body of SASL PLAIN.
pub fn plain(as_whom: &str, user: &str, password: &str) -> Vec<u8> {
    let token = format!("{as_whom}\0{user}\0{password}");
    [&(token.len() as u32).to_be_bytes()[..], token.as_bytes()].concat()
}

pub fn short(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

pub fn bound(values: &[&[u8]]) -> Vec<u8> {
    let mut body = (values.len() as u16).to_be_bytes().to_vec();
    for value in values {
        body.extend((value.len() as u32).to_be_bytes());
        body.extend(*value);
    }
    body
}

/// An address at which nobody listens.
pub fn nobody(world: &World<'_>) -> SocketAddr {
    let listener = world.sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    listener.unwrap().unwrap().local_addr().unwrap()
}

/// A mirror that lets one connection begin, and then reads and says nothing until it is dropped.
pub struct Hangs {
    pub addr: SocketAddr,
    ends: mpsc::Sender<()>,
    thread: Option<thread::JoinHandle<()>>,
}

pub fn hangs(world: &World<'_>) -> Hangs {
    let listener = world.sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap().unwrap();
    let addr = listener.local_addr().unwrap();
    let (ends, ended) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        let (mut stream, _) = common::accept(&listener);
        let mut got = [0; 9];
        stream.read_exact(&mut got).unwrap();
        let mut body = vec![0; got[8].into()];
        stream.read_exact(&mut body).unwrap();
        stream.write_all(&ready(4)).unwrap();
        let _ = ended.recv();
    });
    Hangs {
        addr,
        ends,
        thread: Some(thread),
    }
}

impl Hangs {
    /// Kills the database, with what it had been asked.
    pub fn dies(mut self) {
        drop(std::mem::replace(&mut self.ends, mpsc::channel().0));
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A mirror that lets one connection begin, and from then on answers each request as `says` does.
pub fn scripted(
    world: &World<'_>,
    requests: usize,
    says: impl Fn(usize, &[u8]) -> Vec<u8> + Send + 'static,
) -> (SocketAddr, thread::JoinHandle<()>) {
    let listener = world.sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap().unwrap();
    let addr = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let (mut stream, _) = common::accept(&listener);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        for nth in 0..=requests {
            let mut asked = vec![0; 9];
            stream.read_exact(&mut asked).unwrap();
            let length = u32::from_be_bytes(asked[5..].try_into().unwrap());
            asked.resize(9 + length as usize, 0);
            stream.read_exact(&mut asked[9..]).unwrap();
            assert_eq!(asked[0], 4, "version 4");
            let answer = match nth {
                0 => ready(4),
                _ => says(nth - 1, &asked),
            };
            stream.write_all(&answer).unwrap();
        }
        // Until the other side has had enough.
        let _ = stream.read(&mut [0; 1]);
    });
    (addr, thread)
}

/// Bodies of one stream's responses that say they expand to far more than they are, or do so: RESULTs of version 4,
/// compressed.
pub fn bombs(stream: i16) -> Vec<(&'static str, Vec<u8>)> {
    // LZ4: one byte, and it again: 19 times, 255 times for each further one of these, and five more.
    const FURTHER: usize = 900 << 10;
    const ZEROS: u32 = 1 + 19 + 255 * FURTHER as u32 + 5;
    let mut zeros = vec![0x1F, 0, 1, 0];
    zeros.extend(vec![0xFF; FURTHER]);
    zeros.extend([0, 0x50, 0, 0, 0, 0, 0]);
    let lz4 = |length: u32, block: &[u8]| [&length.to_be_bytes()[..], block].concat();
    // Snappy: 19,200,001 bytes, one and copies of 64 from right before.
    let mut copies = vec![0x81, 0xF0, 0x93, 0x09, 0, 0];
    copies.extend([0xFE, 1, 0].repeat(300_000));
    let bodies = [
        ("lz4", lz4(0x7FFF_FFFF, &[0x1F, 0, 1, 0])),
        ("lz4", lz4(ZEROS, &zeros)),
        ("lz4", lz4(10, &zeros)),
        ("snappy", [0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0].into()),
        ("snappy", copies),
    ];
    let framed = bodies.map(|(algorithm, body)| {
        let mut bomb = frame(RESPONSE | 4, stream, RESULT, &body);
        bomb[1] = 1;
        (algorithm, bomb)
    });
    framed.into()
}
