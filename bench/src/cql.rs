//! A CQL connection with one request in flight: native protocol v4 over a blocking socket.
//!
//! It costs less than any driver, so that what the paths cost shows. A request is one
//! `write`, a response usually one `read`.

use std::{
    io::{BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, bail, ensure};

use crate::order::Credentials;

/// `native_protocol_v4.spec` §2.1: a request's version byte; §2.4: opcodes.
const VERSION: u8 = 4;
const ERROR: u8 = 0x00;
const STARTUP: u8 = 0x01;
const READY: u8 = 0x02;
const AUTHENTICATE: u8 = 0x03;
const QUERY: u8 = 0x07;
const RESULT: u8 = 0x08;
const PREPARE: u8 = 0x09;
const EXECUTE: u8 = 0x0A;
const AUTH_RESPONSE: u8 = 0x0F;
const AUTH_SUCCESS: u8 = 0x10;

const HEADER_BYTES: usize = 9;
/// Consistency ONE.
const ONE: [u8; 2] = [0, 1];
/// Flags of QUERY and EXECUTE: values follow; the result needs no metadata.
const VALUES_SKIP_METADATA: u8 = 0x01 | 0x02;
/// Kinds of RESULT.
const ROWS: i32 = 2;
const PREPARED: i32 = 4;

/// Responses are of a row or two.
const READ_BYTES: usize = 16 << 10;
/// A response of more is none of ours.
const MAX_BODY_BYTES: usize = 1 << 20;
/// Longer than a database under load takes: its own limits are 20 s.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A connection that is past its STARTUP.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
    body: Vec<u8>,
}

/// A prepared statement's id.
#[derive(Clone, Debug)]
pub struct Prepared(Vec<u8>);

impl Connection {
    /// Connects, and logs in where the database asks.
    pub fn open(to: SocketAddr, credentials: Option<&Credentials>) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(to).with_context(|| format!("cannot connect to {to}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        let mut connection = Self {
            stream: BufReader::with_capacity(READ_BYTES, stream),
            request: Vec::new(),
            body: Vec::new(),
        };
        connection.begin(STARTUP);
        connection.put(b"\0\x01\0\x0bCQL_VERSION\0\x053.0.0");
        match connection.exchange()? {
            READY => {}
            AUTHENTICATE => connection.log_in(credentials.context("the database wants a user")?)?,
            other => bail!("STARTUP was answered with opcode {other:#04x}"),
        }
        Ok(connection)
    }

    /// SASL PLAIN (RFC 4616), which PasswordAuthenticator speaks.
    fn log_in(&mut self, credentials: &Credentials) -> anyhow::Result<()> {
        let token = format!("\0{}\0{}", credentials.user, credentials.password);
        self.begin(AUTH_RESPONSE);
        self.put_bytes(token.as_bytes())?;
        let answer = self.exchange()?;
        ensure!(answer == AUTH_SUCCESS, "logging in: opcode {answer:#04x}");
        Ok(())
    }

    /// A statement whose result does not matter.
    pub fn query(&mut self, text: &str) -> anyhow::Result<()> {
        self.begin(QUERY);
        self.put_bytes(text.as_bytes())?;
        self.put(&ONE);
        self.put(&[0]);
        self.expect_result().with_context(|| text.to_owned())
    }

    /// The one text that a statement selects.
    pub fn text(&mut self, query: &str) -> anyhow::Result<String> {
        self.query(query)?;
        first_text(&self.body).with_context(|| format!("{query}: not one text"))
    }

    /// Prepares.
    pub fn prepare(&mut self, text: &str) -> anyhow::Result<Prepared> {
        self.begin(PREPARE);
        self.put_bytes(text.as_bytes())?;
        self.expect_result().with_context(|| text.to_owned())?;
        let mut body = Body(&self.body);
        let id = (body.int() == Some(PREPARED)).then(|| body.short_bytes());
        let id = id.flatten().with_context(|| format!("{text}: no id"))?;
        Ok(Prepared(id.to_vec()))
    }

    /// Executes with these values, and reads the result to its end.
    pub fn execute(&mut self, statement: &Prepared, values: &[&[u8]]) -> anyhow::Result<()> {
        self.begin(EXECUTE);
        self.put(&u16::try_from(statement.0.len())?.to_be_bytes());
        self.put(&statement.0);
        self.put(&ONE);
        self.put(&[VALUES_SKIP_METADATA]);
        self.put(&u16::try_from(values.len())?.to_be_bytes());
        for value in values {
            self.put_bytes(value)?;
        }
        self.expect_result()
    }

    /// Whether the last result had a row.
    #[cfg(test)]
    fn has_row(&self) -> bool {
        // §4.2.5.2 with metadata skipped: kind, flags, columns, rows.
        let mut body = Body(&self.body);
        let numbers = [body.int(), body.int(), body.int(), body.int()];
        matches!(numbers, [Some(ROWS), _, _, Some(1..)])
    }

    fn expect_result(&mut self) -> anyhow::Result<()> {
        let answer = self.exchange()?;
        ensure!(answer == RESULT, "opcode {answer:#04x} instead of a result");
        Ok(())
    }

    /// Header, with the length still to come: version, flags, stream, opcode, length.
    fn begin(&mut self, opcode: u8) {
        self.request.clear();
        self.put(&[VERSION, 0, 0, 0, opcode, 0, 0, 0, 0]);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.request.extend_from_slice(bytes);
    }

    /// `[bytes]`; a `[long string]` looks the same.
    fn put_bytes(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.put(&i32::try_from(bytes.len())?.to_be_bytes());
        self.put(bytes);
        Ok(())
    }

    /// Sends the request and reads the response. Its opcode; an ERROR is an error.
    fn exchange(&mut self) -> anyhow::Result<u8> {
        let length = u32::try_from(self.request.len().saturating_sub(HEADER_BYTES))?;
        if let Some(place) = self.request.get_mut(HEADER_BYTES - 4..HEADER_BYTES) {
            place.copy_from_slice(&length.to_be_bytes());
        }
        let sent = self.stream.get_mut().write_all(&self.request);
        sent.context("the request could not be sent")?;
        let mut header = [0; HEADER_BYTES];
        let read = self.stream.read_exact(&mut header);
        read.context("no response")?;
        let [_version, _flags, _, _, opcode, length @ ..] = header;
        let length = usize::try_from(u32::from_be_bytes(length))?;
        ensure!(
            length <= MAX_BODY_BYTES,
            "a response of {length} bytes; framing is lost"
        );
        self.body.resize(length, 0);
        let read = self.stream.read_exact(&mut self.body);
        read.context("half a response")?;
        ensure!(opcode != ERROR, "{}", describe_error(&self.body));
        Ok(opcode)
    }
}

/// §9: a code and a message.
fn describe_error(body: &[u8]) -> String {
    let mut body = Body(body);
    let code = body.int().unwrap_or_default();
    let message = body.short_bytes().unwrap_or_default();
    format!("error {code:#06x}: {}", String::from_utf8_lossy(message))
}

/// §4.2.5.2: the first value of the first row, of a result with one column of a native type.
fn first_text(body: &[u8]) -> Option<String> {
    const GLOBAL_TABLE: i32 = 0x01;
    let mut body = Body(body);
    let kind = body.int()?;
    let flags = body.int()?;
    let columns = body.int()?;
    if (kind, columns) != (ROWS, 1) {
        return None;
    }
    // Keyspace and table, once for all columns or with each; then the column's name and type.
    debug_assert!(flags & !GLOBAL_TABLE == 0, "one page");
    for _ in 0..3 {
        body.short_bytes()?;
    }
    body.take(2)?;
    let _rows = body.int()?;
    let length = usize::try_from(body.int()?).ok()?;
    String::from_utf8(body.take(length)?.to_vec()).ok()
}

/// Reads from the front.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn int(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn short_bytes(&mut self) -> Option<&'a [u8]> {
        let length = u16::from_be_bytes(self.take(2)?.try_into().ok()?);
        self.take(length.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::node::{self, Node, NodeOptions};

    #[test]
    fn it_writes_and_reads() {
        let node = Node::start(NodeOptions::default()).unwrap();
        let mut c = Connection::open(node.addr(), None).unwrap();
        c.query("CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}").unwrap();
        c.query("CREATE TABLE ks.t (k blob PRIMARY KEY, v blob)")
            .unwrap();
        let write = c.prepare("INSERT INTO ks.t (k, v) VALUES (?, ?)").unwrap();
        let read = c.prepare("SELECT v FROM ks.t WHERE k = ?").unwrap();
        c.execute(&write, &[b"key", b"value"]).unwrap();
        c.execute(&read, &[b"key"]).unwrap();
        assert!(c.has_row());
        assert!(c.body.ends_with(b"\0\0\0\x05value"));
        c.execute(&read, &[b"none"]).unwrap();
        assert!(!c.has_row());
        assert_eq!(node.clients().len(), 1);
        let version = c.text("SELECT release_version FROM system.local").unwrap();
        assert!(version.starts_with("5.0"), "{version}");
    }

    #[test]
    fn errors_say_what_is_wrong_and_the_connection_goes_on() {
        let node = Node::start(NodeOptions::default()).unwrap();
        let mut c = Connection::open(node.addr(), None).unwrap();
        let error = format!("{:#}", c.query("SELECT * FROM ks.none").unwrap_err());
        assert!(error.contains("SELECT * FROM ks.none"), "{error}");
        assert!(error.contains("0x2"), "{error}");
        c.query("SELECT key FROM system.local").unwrap();
    }

    #[test]
    fn it_logs_in() {
        let options = NodeOptions {
            credentials: Some(node::Credentials {
                user: "ann".into(),
                password: "secret".into(),
            }),
            ..NodeOptions::default()
        };
        let node = Node::start(options).unwrap();
        let ann = |password: &str| Credentials {
            user: "ann".into(),
            password: password.into(),
        };
        Connection::open(node.addr(), Some(&ann("secret"))).unwrap();
        let error = Connection::open(node.addr(), Some(&ann("wrong"))).unwrap_err();
        assert!(format!("{error:#}").contains("0x0100"), "{error:#}");
        let error = Connection::open(node.addr(), None).unwrap_err();
        assert!(format!("{error:#}").contains("wants a user"), "{error:#}");
    }
}
