//! A client that sends what it is told, and tells what it gets, as bytes.

use std::{
    fmt,
    io::{self, Read, Write},
    net::TcpStream,
    time::Duration,
};

use cql::Compression;
use cql_edit::{error_of, in_segments_of};
use grammar::Value;

use super::{Cassandra, Incoming, Statement};

pub const STARTUP: u8 = 0x01;
pub const AUTHENTICATE: u8 = 0x03;
pub const QUERY: u8 = 0x07;
const PREPARE: u8 = 0x09;
const EXECUTE: u8 = 0x0A;
pub const AUTH_RESPONSE: u8 = 0x0F;
const AUTH_SUCCESS: u8 = 0x10;
pub const ERROR: u8 = 0x00;
pub const RESULT: u8 = 0x08;

/// The kind of a RESULT that tells of a prepared statement.
const PREPARED: [u8; 4] = 4_i32.to_be_bytes();

/// The beginning of the RESULT of a SELECT JSON that is whole: one column, whose table is named once.
const JSON_ROWS: [u8; 12] = [0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1];

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

/// The bytes of a body that are shown.
const SHOWN: usize = 1_000;

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.body[..self.body.len().min(SHOWN)];
        write!(
            f,
            "{:#04x} {} [{}] {} ({} bytes)",
            self.opcode,
            self.flags,
            self.warnings.escape_ascii(),
            shown.escape_ascii(),
            self.body.len()
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

    /// How many rows a SELECT JSON has brought. `None`: these are not all, or it is another answer.
    pub fn json_rows(&self) -> Option<u32> {
        let mut rest = self.body.strip_prefix(&JSON_ROWS)?;
        for _keyspace_table_column in 0..3 {
            rest = short(rest)?.1;
        }
        let (_type, rest) = rest.split_first_chunk::<2>()?;
        Some(u32::from_be_bytes(*rest.first_chunk()?))
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

/// The body of a STARTUP, with these options, too.
pub fn startup(more: &[(&str, &str)]) -> Vec<u8> {
    let all = [&[("CQL_VERSION", "3.0.0")], more].concat();
    let mut body = (all.len() as u16).to_be_bytes().to_vec();
    for (name, value) in all {
        body.extend(short_bytes(name.as_bytes()));
        body.extend(short_bytes(value.as_bytes()));
    }
    body
}

/// The body of a log-in as the superuser.
pub fn token(cassandra: &Cassandra, password: &str) -> Vec<u8> {
    let token = format!("\0{}\0{password}", cassandra.user);
    long_bytes(Some(token.as_bytes()))
}

impl Peer {
    /// Dials.
    pub fn dial(cassandra: &Cassandra, version: u8) -> Self {
        let stream = TcpStream::connect(cassandra.addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let incoming = Incoming::new(version);
        Self {
            stream,
            version,
            incoming,
        }
    }

    /// Logs in.
    pub fn begin(cassandra: &Cassandra, version: u8) -> Self {
        let mut peer = Self::dial(cassandra, version);
        let startup = peer.frame(1, STARTUP, &startup(&[]));
        peer.stream.write_all(&startup).unwrap();
        assert_eq!(peer.read().opcode, AUTHENTICATE);
        peer.accepted();
        let answer = peer.ask(AUTH_RESPONSE, &token(cassandra, &cassandra.password));
        assert_eq!(answer.opcode, AUTH_SUCCESS);
        peer
    }

    /// A STARTUP was accepted.
    pub fn accepted(&mut self) {
        self.incoming.accept(Compression::None);
    }

    pub fn frame(&self, stream: i16, opcode: u8, body: &[u8]) -> Vec<u8> {
        let [high, low] = stream.to_be_bytes();
        let header = [self.version, 0, high, low, opcode];
        [&header[..], &(body.len() as u32).to_be_bytes(), body].concat()
    }

    /// Sends frames at once, in a segment if a STARTUP of v5 was accepted. What nobody takes any more is no fault.
    pub fn sends(&mut self, frames: &[u8], in_segment: bool) {
        let bytes = match in_segment && self.version == 5 {
            true => in_segments_of(Compression::None, frames),
            false => frames.to_vec(),
        };
        let _ = self.stream.write_all(&bytes);
    }

    /// The next answer: its stream, its opcode and, of an ERROR, its code. `None`: the connection has ended, or what
    /// comes is no answer. An error: there is none for this long.
    pub fn comes(&mut self, patience: Duration) -> io::Result<Option<(i16, u8, Option<i32>)>> {
        self.stream.set_read_timeout(Some(patience)).unwrap();
        let mut buffer = [0; 16 << 10];
        loop {
            match self.incoming.next(64 << 20) {
                Ok(Some(came)) => {
                    let code = came.frame.and_then(|f| error_of(Compression::None, f));
                    return Ok(Some((came.stream, came.opcode, code)));
                }
                Ok(None) => {}
                Err(_) => return Ok(None),
            }
            let n = match self.stream.read(&mut buffer) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(e),
                read => read.unwrap_or(0),
            };
            if n == 0 || self.incoming.comes(&buffer[..n]).is_err() {
                return Ok(None);
            }
        }
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
        let frame = self.frame(1, opcode, body);
        self.sends(&frame, true);
        self.read()
    }

    /// The body of a QUERY without parameters.
    pub fn query(&self, text: &str) -> Vec<u8> {
        let text = long_bytes(Some(text.as_bytes()));
        [&text[..], &[0, 1], &self.flags(0)].concat()
    }

    /// Asks what has to be done.
    pub fn done(&mut self, text: &str) -> Answer {
        let body = self.query(text);
        let answer = self.ask(QUERY, &body);
        assert_eq!(answer.opcode, RESULT, "{text}: {answer:?}");
        answer
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
