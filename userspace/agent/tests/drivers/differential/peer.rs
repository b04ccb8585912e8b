//! A client that sends what it is told, and tells what it gets, as bytes.

use std::{
    fmt,
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use cql::Compression;
use cql_edit::in_segments_of;
use grammar::Value;

use super::{Cassandra, Incoming, Statement};

const STARTUP: u8 = 0x01;
const AUTHENTICATE: u8 = 0x03;
const QUERY: u8 = 0x07;
const PREPARE: u8 = 0x09;
const EXECUTE: u8 = 0x0A;
const AUTH_RESPONSE: u8 = 0x0F;
const AUTH_SUCCESS: u8 = 0x10;
pub const ERROR: u8 = 0x00;
pub const RESULT: u8 = 0x08;

/// The kind of a RESULT that tells of a prepared statement.
const PREPARED: [u8; 4] = 4_i32.to_be_bytes();

/// The words of a warning before an id in hexadecimal digits.
const STATEMENT_ID: &[u8] = b"statement id: ";

/// A flag of a response: its body begins with warnings.
const WARNS: u8 = 0x08;

/// A long time for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time of the first statement, in µs since 1970.
const FIRST_US: i64 = 1_600_000_000_000_000;

pub struct Peer {
    stream: TcpStream,
    version: u8,
    incoming: Incoming,
}

/// A response, without its header.
pub struct Answer {
    pub opcode: u8,
    flags: u8,
    warnings: Vec<u8>,
    body: Vec<u8>,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:#04x} {} [{}] {}",
            self.opcode,
            self.flags,
            self.warnings.escape_ascii(),
            self.body.escape_ascii()
        )
    }
}

impl Answer {
    /// Everything but the keyspace's name, and ids that are made of it.
    pub fn meaning(&self, keyspace: &str) -> (u8, Vec<u8>, Vec<u8>) {
        let (mut warnings, mut body) = (self.warnings.clone(), self.body.clone());
        if self.opcode == RESULT && body.starts_with(&PREPARED) {
            blank_id(&mut body, 4);
        }
        let told = warnings
            .windows(STATEMENT_ID.len())
            .position(|w| w == STATEMENT_ID);
        if let Some(at) = told {
            let id = at + STATEMENT_ID.len();
            warnings[id..id + 32].fill(0);
        }
        for bytes in [&mut warnings, &mut body] {
            blank_name(bytes, keyspace.as_bytes());
        }
        (self.flags, warnings, body)
    }

    /// The id of a statement that was prepared, and that of its result's description.
    fn ids(&self, version: u8) -> Option<[Vec<u8>; 2]> {
        let rest = self.body.strip_prefix(&PREPARED)?;
        let (id, rest) = short(rest)?;
        let described = match version {
            5 => short(rest)?.0,
            _ => &[],
        };
        Some([id.to_vec(), described.to_vec()])
    }
}

fn blank_name(bytes: &mut [u8], name: &[u8]) {
    for at in 0..(bytes.len() + 1).saturating_sub(name.len()) {
        let found = &mut bytes[at..at + name.len()];
        if found.eq_ignore_ascii_case(name) {
            found.fill(b'k');
        }
    }
}

/// Blanks the ids there: one or, in v5, two of 16 bytes.
fn blank_id(body: &mut [u8], mut at: usize) {
    while body.get(at..at + 2) == Some(&[0, 16]) && body.len() >= at + 18 {
        body[at + 2..at + 18].fill(0);
        at += 18;
    }
}

fn short(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*count)))
}

/// The length of the warnings that a body begins with.
fn warnings(body: &[u8]) -> Option<usize> {
    let (count, mut rest) = body.split_first_chunk()?;
    for _ in 0..u16::from_be_bytes(*count) {
        rest = short(rest)?.1;
    }
    Some(body.len() - rest.len())
}

fn short_bytes(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

fn long_bytes(bytes: Option<&[u8]>) -> Vec<u8> {
    match bytes {
        None => (-1_i32).to_be_bytes().to_vec(),
        Some(bytes) => [&(bytes.len() as i32).to_be_bytes()[..], bytes].concat(),
    }
}

impl Peer {
    /// Logs in.
    pub fn begin(cassandra: &Cassandra, version: u8) -> Self {
        let stream = TcpStream::connect(cassandra.addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let incoming = Incoming::new(version);
        let mut peer = Self {
            stream,
            version,
            incoming,
        };
        let options = [
            &1_u16.to_be_bytes()[..],
            &short_bytes(b"CQL_VERSION"),
            &short_bytes(b"3.0.0"),
        ];
        peer.write(&peer.frame(STARTUP, &options.concat()));
        assert_eq!(peer.read().opcode, AUTHENTICATE);
        peer.incoming.accept(Compression::None);
        let token = format!("\0{}\0{}", cassandra.user, cassandra.password);
        let answer = peer.ask(AUTH_RESPONSE, &long_bytes(Some(token.as_bytes())));
        assert_eq!(answer.opcode, AUTH_SUCCESS);
        peer
    }

    fn frame(&self, opcode: u8, body: &[u8]) -> Vec<u8> {
        let header = [self.version, 0, 0, 1, opcode];
        [&header[..], &(body.len() as u32).to_be_bytes(), body].concat()
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn read(&mut self) -> Answer {
        let mut buffer = [0; 16 << 10];
        loop {
            if let Some(came) = self.incoming.next(64 << 20).unwrap() {
                let body = &came.frame.unwrap()[9..];
                let begins = match came.flags & WARNS {
                    0 => 0,
                    _ => warnings(body).unwrap(),
                };
                return Answer {
                    opcode: came.opcode,
                    flags: came.flags,
                    warnings: body[..begins].to_vec(),
                    body: body[begins..].to_vec(),
                };
            }
            let n = self.stream.read(&mut buffer).unwrap();
            assert!(n > 0, "the connection has ended");
            self.incoming.comes(&buffer[..n]).unwrap();
        }
    }

    fn ask(&mut self, opcode: u8, body: &[u8]) -> Answer {
        let mut bytes = self.frame(opcode, body);
        if self.version == 5 {
            bytes = in_segments_of(Compression::None, &bytes);
        }
        self.write(&bytes);
        self.read()
    }

    /// Asks what has to be done.
    pub fn done(&mut self, text: &str) {
        let body = [
            &long_bytes(Some(text.as_bytes()))[..],
            &[0, 1],
            &self.flags(0),
        ]
        .concat();
        let answer = self.ask(QUERY, &body);
        assert_eq!(answer.opcode, RESULT, "{text}: {answer:?}");
    }

    fn flags(&self, flags: u8) -> Vec<u8> {
        match self.version {
            5 => vec![0, 0, 0, flags],
            _ => vec![flags],
        }
    }

    /// Consistency, values, a page size or none, and the time of a write.
    fn parameters(&self, values: &[Value], n: u64, named: bool) -> Vec<u8> {
        const VALUES: u8 = 0x01;
        const PAGE_SIZE: u8 = 0x04;
        const TIME: u8 = 0x20;
        const NAMES: u8 = 0x40;
        let is_named = named && values.iter().any(|value| value.name.is_some());
        let mut flags = TIME;
        let mut body = Vec::new();
        if !values.is_empty() {
            flags |= VALUES | if is_named { NAMES } else { 0 };
            body.extend((values.len() as u16).to_be_bytes());
            for value in values {
                if let Some(name) = value.name.as_ref().filter(|_| is_named) {
                    body.extend(short_bytes(name.as_bytes()));
                }
                body.extend(long_bytes(value.bytes.as_deref()));
            }
        }
        let size = [0_i32, 2, 100, 5000][n as usize % 4];
        if size > 0 {
            flags |= PAGE_SIZE;
            body.extend(size.to_be_bytes());
        }
        body.extend((FIRST_US + n as i64).to_be_bytes());
        [&[0, 1][..], &self.flags(flags), &body].concat()
    }

    /// Asks a statement, and tells all that was answered.
    pub fn asks(&mut self, made: &Statement, n: u64, prepares: bool) -> Vec<Answer> {
        let text = long_bytes(Some(made.text.as_bytes()));
        if !prepares {
            let parameters = self.parameters(&made.values, n, true);
            return vec![self.ask(QUERY, &[text, parameters].concat())];
        }
        let mut body = text;
        if self.version == 5 {
            body.extend(self.flags(0));
        }
        let prepared = self.ask(PREPARE, &body);
        let Some([id, described]) = prepared.ids(self.version) else {
            return vec![prepared];
        };
        let mut body = short_bytes(&id);
        if self.version == 5 {
            body.extend(short_bytes(&described));
        }
        body.extend(self.parameters(&made.values, n, n.is_multiple_of(2)));
        vec![prepared, self.ask(EXECUTE, &body)]
    }
}
