//! Two peers, and what stands between them.

use crate::support::kind::{Kind, kind};
use crate::support::{AUTHENTICATE, QUERY, frame, query, segment, startup};
use cassandra_protocol::compression::Compression;
use cql::{Handshake, Session, Step};

/// The stream of a STARTUP.
pub const NO_STREAM: i16 = 0;

/// Offers a handshake what two peers send, cut into pieces, as a proxy does.
pub struct Peers {
    pub handshake: Handshake,
    pub version: u8,
    pub piece: usize,
    pub in_segments: bool,
    /// The compression of frames behind a STARTUP that was accepted.
    pub compression: Compression,
    pub requests: Lane,
    pub responses: Lane,
}

#[derive(Default)]
pub struct Lane {
    pub held: Vec<u8>,
    pub sent: Vec<u8>,
    pub passed: Vec<u8>,
    pub told: usize,
}

impl Peers {
    pub fn new(version: u8, piece: usize) -> Self {
        Self {
            handshake: Handshake::new(Default::default()),
            version,
            piece,
            in_segments: false,
            compression: Compression::None,
            requests: Lane::default(),
            responses: Lane::default(),
        }
    }

    pub fn client(&mut self, stream: i16, opcode: u8, body: &[u8]) {
        let frame = self.wrap(frame(self.version, 0, stream, opcode, body));
        self.client_bytes(&frame);
    }

    pub fn server(&mut self, stream: i16, opcode: u8, body: &[u8]) {
        let frame = self.wrap(frame(self.version | 0x80, 0, stream, opcode, body));
        self.server_bytes(&frame);
    }

    pub fn query(&mut self, stream: i16, text: &str) {
        self.client(stream, QUERY, &query(self.version, text, None));
    }

    fn wrap(&self, frame: Vec<u8>) -> Vec<u8> {
        if self.compression != Compression::None {
            return kind(self.version, self.compression).wrap(&[frame]);
        }
        if self.in_segments {
            segment(true, &frame)
        } else {
            frame
        }
    }

    pub fn client_bytes(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(self.piece) {
            self.requests.sent.extend(piece);
            self.requests.held.extend(piece);
            self.look();
        }
    }

    pub fn server_bytes(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(self.piece) {
            self.responses.sent.extend(piece);
            self.responses.held.extend(piece);
            self.look();
        }
    }

    fn look(&mut self) {
        let Self {
            handshake,
            requests,
            responses,
            ..
        } = self;
        // What a response tells may let requests pass.
        look(responses, |held| handshake.responses(held));
        look(requests, |held| handshake.requests(held));
    }

    /// STARTUP and its answer, in order.
    pub fn started(version: u8, piece: usize, options: &[(&str, &str)], answer: u8) -> Self {
        let mut peers = Self::new(version, piece);
        peers.client_bytes(&startup(version, options));
        let body: &[u8] = if answer == AUTHENTICATE {
            b"\0\x01x"
        } else {
            b""
        };
        peers.server(NO_STREAM, answer, body);
        peers.in_segments = version >= 5;
        peers
    }

    /// Peers past a STARTUP with these options, on a flow of this kind.
    pub fn started_as(kind: Kind, piece: usize, options: &[(&str, &str)], answer: u8) -> Self {
        let compression = match kind.compression {
            Compression::None => None,
            Compression::Lz4 => Some(("COMPRESSION", "lz4")),
            Compression::Snappy => Some(("COMPRESSION", "snappy")),
        };
        let options = [options, compression.as_slice()].concat();
        let mut peers = Self::started(kind.version, piece, &options, answer);
        peers.compression = kind.compression;
        peers
    }

    pub fn session(&self) -> &Session {
        self.handshake.session()
    }

    pub fn all_passed(&self) -> bool {
        self.requests.passed == self.requests.sent && self.responses.passed == self.responses.sent
    }

    /// How often something was told, by requests and by responses.
    pub fn told(&self) -> (usize, usize) {
        (self.requests.told, self.responses.told)
    }
}

fn look(lane: &mut Lane, mut step: impl FnMut(&[u8]) -> Step) {
    loop {
        let pass = match step(&lane.held) {
            Step::More | Step::Wait => return,
            Step::Pass(pass) => pass,
            Step::Told(pass) => {
                lane.told += 1;
                pass
            }
        };
        assert!((1..=lane.held.len()).contains(&pass), "{pass}");
        lane.passed.extend(lane.held.drain(..pass));
    }
}
