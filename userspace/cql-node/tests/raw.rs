//! The node against bytes: handshakes of each version, and what no driver would send.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use cassandra_protocol::compression::Compression;
use cassandra_protocol::frame::frame_decoder::{
    FrameDecoder, LegacyFrameDecoder, UncompressedFrameDecoder,
};
use cassandra_protocol::frame::frame_encoder::{FrameEncoder, UncompressedFrameEncoder};
use cassandra_protocol::frame::{Envelope, Opcode};
use cql_node::{Node, NodeOptions};
use proptest::prelude::*;

const STARTUP: u8 = 0x01;
const OPTIONS: u8 = 0x05;
const QUERY: u8 = 0x07;
const EXECUTE: u8 = 0x0A;

/// A client that knows frames; a third party's codec makes and reads the segments of v5.
struct Client {
    stream: TcpStream,
    version: u8,
    decoder: Box<dyn FrameDecoder>,
    segments: bool,
    received: Vec<u8>,
    ready: std::collections::VecDeque<Envelope>,
}

impl Client {
    fn connect(node: &Node, version: u8) -> Self {
        let stream = TcpStream::connect(node.addr()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let decoder = Box::new(LegacyFrameDecoder::default());
        Self {
            stream,
            version,
            decoder,
            segments: false,
            received: Vec::new(),
            ready: Default::default(),
        }
    }

    /// Connected, and past STARTUP.
    fn started(node: &Node, version: u8) -> Self {
        let mut client = Self::connect(node, version);
        client.send(&[frame(
            version,
            1,
            STARTUP,
            b"\0\x01\0\x0bCQL_VERSION\0\x053.0.0",
        )]);
        assert_eq!(client.receive().opcode, Opcode::Ready);
        if version >= 5 {
            client.segments = true;
            client.decoder = Box::new(UncompressedFrameDecoder::default());
        }
        client
    }

    /// Sends frames; in v5 together in one segment if they fit.
    fn send(&mut self, frames: &[Vec<u8>]) {
        if !self.segments {
            return self.stream.write_all(&frames.concat()).unwrap();
        }
        let mut encoder = UncompressedFrameEncoder::default();
        let whole = frames.concat();
        if encoder.can_fit(whole.len()) {
            encoder.reset();
            frames.iter().for_each(|f| encoder.add_envelope(f.clone()));
            return self
                .stream
                .write_all(encoder.finalize_self_contained())
                .unwrap();
        }
        for frame in frames {
            let mut at = 0;
            while at < frame.len() {
                encoder.reset();
                let (n, segment) = encoder.finalize_non_self_contained(&frame[at..]);
                self.stream.write_all(segment).unwrap();
                at += n;
            }
        }
    }

    fn query(&mut self, stream: i16, text: &str) -> Envelope {
        self.send(&[query(self.version, stream, text)]);
        self.receive()
    }

    fn receive(&mut self) -> Envelope {
        self.try_receive().expect("the node closed the connection")
    }

    /// `None` when the node has closed the connection.
    fn try_receive(&mut self) -> Option<Envelope> {
        loop {
            if let Some(envelope) = self.ready.pop_front() {
                return Some(envelope);
            }
            let mut chunk = [0; 65536];
            let n = self.stream.read(&mut chunk).unwrap();
            if n == 0 {
                return None;
            }
            self.received.extend_from_slice(&chunk[..n]);
            self.ready.extend(
                self.decoder
                    .consume(&mut self.received, Compression::None)
                    .unwrap(),
            );
        }
    }
}

fn frame(version: u8, stream: i16, opcode: u8, body: &[u8]) -> Vec<u8> {
    let [s0, s1] = stream.to_be_bytes();
    let mut frame = vec![version, 0, s0, s1, opcode];
    frame.extend_from_slice(&(body.len() as u32).to_be_bytes());
    frame.extend_from_slice(body);
    frame
}

fn query(version: u8, stream: i16, text: &str) -> Vec<u8> {
    let mut body = (text.len() as u32).to_be_bytes().to_vec();
    body.extend_from_slice(text.as_bytes());
    body.extend_from_slice(if version >= 5 {
        &[0, 1, 0, 0, 0, 0]
    } else {
        &[0, 1, 0]
    });
    frame(version, stream, QUERY, &body)
}

fn start_node() -> Node {
    Node::start(NodeOptions::default()).unwrap()
}

fn assert_serves(node: &Node) {
    assert_eq!(
        Client::started(node, 4)
            .query(7, "SELECT key FROM system.local")
            .opcode,
        Opcode::Result
    );
}

#[test]
fn each_version_shakes_hands_and_answers() {
    let node = start_node();
    for version in [3, 4, 5] {
        let mut fresh = Client::connect(&node, version);
        fresh.send(&[frame(version, 9, OPTIONS, b"")]);
        let supported = fresh.receive();
        assert_eq!(
            (supported.opcode, supported.stream_id),
            (Opcode::Supported, 9)
        );
        assert!(String::from_utf8_lossy(&supported.body).contains("5/v5"));

        let mut client = Client::started(&node, version);
        let answer = client.query(-3, "SELECT key FROM system.local");
        assert_eq!((answer.opcode, answer.stream_id), (Opcode::Result, -3));
        assert!(answer.body.windows(5).any(|w| w == b"local"));
        let pipelined: Vec<Vec<u8>> = (0..500)
            .map(|i| query(version, i, "SELECT key FROM system.local"))
            .collect();
        client.send(&pipelined);
        for stream in 0..500 {
            assert_eq!(client.receive().stream_id, stream);
        }
    }
    assert_eq!(node.connections_total(), 6);
}

#[test]
fn v5_frames_may_span_segments_both_ways() {
    let node = start_node();
    let mut client = Client::started(&node, 5);
    for text in [
        "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy'}",
        "CREATE TABLE ks.t (k int PRIMARY KEY, v text)",
    ] {
        assert_eq!(client.query(1, text).opcode, Opcode::Result);
    }
    let value = "v".repeat(1_000_000);
    assert_eq!(
        client
            .query(2, &format!("INSERT INTO ks.t (k, v) VALUES (1, '{value}')"))
            .opcode,
        Opcode::Result
    );
    let answer = client.query(3, "SELECT v FROM ks.t");
    assert!(answer.body.ends_with(value.as_bytes()));
}

#[test]
fn an_unknown_version_is_told_the_highest_known() {
    let node = start_node();
    for (version, frame) in [
        (6, frame(6, 5, STARTUP, b"\0\0")),
        (66, frame(66, 5, OPTIONS, b"")),
    ] {
        let mut client = Client::connect(&node, version);
        client.send(&[frame]);
        let mut answer = Vec::new();
        client.stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer[..9][..5], [0x85, 0, 0, 5, 0], "version {version}");
        assert_eq!(answer[9..13], 0x0Au32.to_be_bytes());
        let message = String::from_utf8_lossy(&answer[15..]).into_owned();
        assert!(
            message.contains(&format!("unsupported protocol version ({version})")),
            "{message}"
        );
    }
}

#[test]
fn an_unknown_statement_is_unprepared() {
    let node = start_node();
    let mut client = Client::started(&node, 4);
    client.send(&[frame(4, 1, EXECUTE, b"\0\x02ab\0\x01\0")]);
    let answer = client.receive();
    assert_eq!(answer.opcode, Opcode::Error);
    assert_eq!(answer.body[..4], 0x2500u32.to_be_bytes());
    assert!(answer.body.ends_with(b"\0\x02ab"));
}

#[test]
fn malformed_bytes_cost_one_connection() {
    let node = start_node();
    let mut bystander = Client::started(&node, 4);
    let huge = [4, 0, 0, 1, QUERY, 0x7f, 0xff, 0xff, 0xff].to_vec();
    let negative = [4, 0, 0, 1, QUERY, 0xff, 0xff, 0xff, 0xff].to_vec();
    let responses = frame(0x84, 1, QUERY, b"");
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        huge,
        negative,
        responses,
        frame(4, 1, STARTUP, b"\xff\xff"),
        frame(4, 1, 0x7e, b""),
        frame(4, 1, QUERY, b"\0\0\0\x08SELECT 1\0\x01\0"),
    ] {
        let mut client = Client::connect(&node, 4);
        client.send(std::slice::from_ref(&bytes));
        let mut answer = Vec::new();
        client.stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.get(4), Some(&0), "an ERROR for {bytes:?}");
        assert_eq!(
            bystander.query(1, "SELECT key FROM system.local").opcode,
            Opcode::Result
        );
    }
    let mut client = Client::started(&node, 5);
    client
        .stream
        .write_all(&[0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 0, 0, 0])
        .unwrap();
    assert_eq!(client.receive().opcode, Opcode::Error);
    assert!(client.try_receive().is_none());
    assert_serves(&node);
}

#[test]
fn a_client_that_does_not_read_holds_up_only_itself() {
    let node = start_node();
    let mut greedy = Client::started(&node, 4);
    greedy
        .stream
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let requests: Vec<u8> = (0..100)
        .flat_map(|i| query(4, i, "SELECT * FROM system_schema.columns"))
        .collect();
    let mut sent = 0;
    // A write that times out says that the node has stopped reading. 64 MiB of requests would
    // be answered with gigabytes.
    while sent < 64 << 20
        && let Ok(n) = greedy.stream.write(&requests)
    {
        sent += n;
    }
    assert!(sent < 64 << 20, "the node read everything");
    assert_serves(&node);
}

#[test]
fn dropping_the_node_frees_its_port() {
    let first = start_node();
    let mut client = Client::started(&first, 4);
    let options = NodeOptions {
        listen: first.addr(),
        ..NodeOptions::default()
    };
    assert!(Node::start(options.clone()).is_err());
    drop(first);
    assert!(client.try_receive().is_none());
    assert_serves(&Node::start(options).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every request body, whatever is in it, is answered or refused; the node lives on.
    #[test]
    fn any_body_is_survived(
        version in 3u8..=5,
        opcode in 0u8..=0x10,
        flags in any::<u8>(),
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        static NODE: std::sync::OnceLock<Node> = std::sync::OnceLock::new();
        let node = NODE.get_or_init(start_node);
        let mut client = Client::started(node, version);
        let mut bytes = frame(version, 1, opcode, &body);
        bytes[1] = flags;
        client.send(&[bytes]);
        prop_assert_eq!(client.receive().stream_id, 1);
    }

    /// Any text is a statement or an error.
    #[test]
    fn any_text_is_survived(text in "(SELECT|INSERT|UPDATE|CREATE|DESCRIBE|BEGIN BATCH|\\PC{0,3})( [a-z*?:'\"(){}\\[\\]=<>,;0-9.$-]{0,6}| FROM system.local| WHERE key =){0,8}") {
        static NODE: std::sync::OnceLock<Node> = std::sync::OnceLock::new();
        let node = NODE.get_or_init(start_node);
        let mut client = Client::started(node, 4);
        prop_assert_eq!(client.query(2, &text).stream_id, 2);
    }
}
