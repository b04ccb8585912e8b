//! A v4 client of raw bytes, and the search for peers.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    time::Duration,
};

use cql_node::{Node, NodeOptions};
use peers::{Found, Overrides, Peer, Setup};

pub const ERROR: u8 = 0x00;
pub const READY: u8 = 0x02;
pub const SUPPORTED: u8 = 0x06;
pub const RESULT: u8 = 0x08;

const STARTUP: u8 = 0x01;
const OPTIONS: u8 = 0x05;
const QUERY: u8 = 0x07;
/// The time limit for one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A connection that speaks v4 and waits for each answer.
pub struct Client(TcpStream);

impl Client {
    pub fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(ANSWER_LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    /// Sends OPTIONS and STARTUP.
    pub fn started(to: SocketAddr) -> Self {
        let mut client = Self::connect(to);
        assert_eq!(client.request(OPTIONS, &[]), SUPPORTED);
        let startup = [&[0, 1][..], &text("CQL_VERSION"), &text("3.0.0")].concat();
        assert_eq!(client.request(STARTUP, &startup), READY);
        client
    }

    /// The opcode of the answer.
    pub fn query(&mut self, cql: &str) -> u8 {
        let length = u32::try_from(cql.len()).unwrap().to_be_bytes();
        // Consistency ONE, no flags.
        let body = [&length[..], cql.as_bytes(), &[0, 1, 0]].concat();
        self.request(QUERY, &body)
    }

    fn request(&mut self, opcode: u8, body: &[u8]) -> u8 {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let frame = [&[4, 0, 0, 1, opcode][..], &length, body].concat();
        self.0.write_all(&frame).unwrap();
        let mut header = [0; 9];
        self.0.read_exact(&mut header).unwrap();
        assert_eq!(header[..4], [0x84, 0, 0, 1]);
        let length = u32::from_be_bytes(header[5..].try_into().unwrap());
        let mut body = vec![0; length as usize];
        self.0.read_exact(&mut body).unwrap();
        header[4]
    }
}

fn text(of: &str) -> Vec<u8> {
    let length = u16::try_from(of.len()).unwrap().to_be_bytes();
    [&length[..], of.as_bytes()].concat()
}

/// The peer, if this host has it. haproxy and nginx come from Debian, so their absence is a
/// skip that counts; the others are a bonus.
pub fn found(test: &str, name: &str) -> Option<(&'static Peer, Found)> {
    let peer = peers::named(name).unwrap();
    match peer.find(&Overrides::default()) {
        Ok(found) => {
            eprintln!("{test}: {name} {found:?}");
            Some((peer, found))
        }
        Err(absent) if matches!(name, "haproxy" | "nginx") => {
            sandbox::skip::skip(test, &absent.why);
            None
        }
        Err(absent) => {
            eprintln!("{test}: {name} is not tried: {absent}");
            None
        }
    }
}

pub fn node() -> Node {
    Node::start(NodeOptions::default()).unwrap()
}

pub fn setup(folder: &Path, nodes: &[Node]) -> Setup {
    Setup {
        host: std::net::Ipv4Addr::LOCALHOST,
        backends: nodes.iter().map(Node::addr).collect(),
        folder: folder.to_owned(),
    }
}
