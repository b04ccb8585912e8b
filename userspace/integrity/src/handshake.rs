//! How a CQL v4 connection begins (native_protocol_v4.spec), on both sides.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    os::fd::AsFd,
};

use anyhow::{Context, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{
    dice::Dice,
    hello::{HELLO, Hello, MAGIC},
    plan::Cql,
};

const REQUEST: u8 = 0x04;
const RESPONSE: u8 = 0x84;
const ERROR: u8 = 0x00;
const STARTUP: u8 = 0x01;
const READY: u8 = 0x02;
const AUTHENTICATE: u8 = 0x03;
const OPTIONS: u8 = 0x05;
const SUPPORTED: u8 = 0x06;
const QUERY: u8 = 0x07;
const RESULT: u8 = 0x08;
const REGISTER: u8 = 0x0B;
const AUTH_RESPONSE: u8 = 0x0F;
const AUTH_SUCCESS: u8 = 0x10;
const BAD_CREDENTIALS: i32 = 0x0100;
const SET_KEYSPACE: i32 = 0x0003;
const ANY_ONE: [u8; 3] = [0, 1, 0];
/// No frame of a handshake is longer.
const LONGEST: usize = 1 << 20;
/// The hello is a blob in this statement.
const HELLO_STATEMENT: &str = "SELECT run FROM integrity.runs WHERE hello = 0x";

/// A socket that waits for its peer, whether it blocks or not: drivers' do not from the first
/// byte on, and what decides on a connection's path may look at that.
#[derive(Clone, Copy)]
struct Patient<'a>(&'a TcpStream);

impl Patient<'_> {
    fn wait(self, events: PollFlags) -> io::Result<()> {
        let patience = self.0.read_timeout()?;
        let patience = patience.and_then(|p| PollTimeout::try_from(p).ok());
        let mut fds = [PollFd::new(self.0.as_fd(), events)];
        match poll(&mut fds, patience.unwrap_or(PollTimeout::NONE))? {
            0 => Err(ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match (&mut &*self.0).read(buffer) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::POLLIN)?,
                read => return read,
            }
        }
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match (&mut &*self.0).write(bytes) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::POLLOUT)?,
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Begins a connection: as a driver does, if that is asked for, and with the hello.
pub(super) fn greet(
    socket: &TcpStream,
    hello: &Hello,
    cql: Option<&Cql>,
    driver: &str,
) -> anyhow::Result<()> {
    let mut socket = Patient(socket);
    let Some(cql) = cql else {
        return Ok(socket.write_all(&hello.encode())?);
    };
    let mut dice = Dice::new(&[hello.seed, hello.connection, 5]);
    if dice.one_in(2) {
        ask(socket, OPTIONS, &[], SUPPORTED)?;
    }
    startup(socket, cql, driver)?;
    if dice.one_in(4) {
        let mut events = 1u16.to_be_bytes().to_vec();
        events.extend(string("STATUS_CHANGE"));
        ask(socket, REGISTER, &events, READY)?;
    }
    if let Some(keyspace) = &cql.keyspace {
        ask(
            socket,
            QUERY,
            &query(&format!("USE \"{keyspace}\"")),
            RESULT,
        )?;
    }
    let text: String = hello.encode().iter().map(|b| format!("{b:02x}")).collect();
    let statement = query(&(HELLO_STATEMENT.to_owned() + &text));
    Ok(socket.write_all(&frame(REQUEST, 0, QUERY, &statement))?)
}

fn startup(socket: Patient<'_>, cql: &Cql, driver: &str) -> anyhow::Result<()> {
    let mut options = vec![
        ("CQL_VERSION", "3.0.0"),
        ("DRIVER_NAME", driver),
        ("DRIVER_VERSION", &cql.driver_version),
    ];
    options.extend(
        cql.application
            .as_deref()
            .map(|name| ("APPLICATION_NAME", name)),
    );
    let mut body = (options.len() as u16).to_be_bytes().to_vec();
    for (name, value) in options {
        body.extend(string(name));
        body.extend(string(value));
    }
    send(socket, REQUEST, 1, STARTUP, &body)?;
    let (_, answer, _) = read_frame(socket)?;
    if answer == READY {
        return Ok(());
    }
    ensure!(
        answer == AUTHENTICATE,
        "STARTUP was answered with opcode {answer:#x}"
    );
    let (user, password) = cql
        .credentials
        .as_ref()
        .context("the server asks who this is")?;
    let token = format!("\0{user}\0{password}");
    ask(
        socket,
        AUTH_RESPONSE,
        &bytes(token.as_bytes()),
        AUTH_SUCCESS,
    )
}

fn ask(socket: Patient<'_>, opcode: u8, body: &[u8], wanted: u8) -> anyhow::Result<()> {
    send(socket, REQUEST, 1, opcode, body)?;
    let (stream, answer, body) = read_frame(socket)?;
    ensure!(
        answer == wanted && stream == 1,
        "opcode {opcode:#x} was answered with {answer:#x} on stream {stream}: {}",
        String::from_utf8_lossy(&body)
    );
    Ok(())
}

/// Answers a client up to its hello, whichever way it begins.
pub(super) fn welcome(
    socket: &TcpStream,
    credentials: Option<&(String, String)>,
) -> anyhow::Result<Hello> {
    let mut socket = Patient(socket);
    let mut first = [0; MAGIC.len()];
    socket.read_exact(&mut first)?;
    if first == MAGIC {
        let mut message = [0; HELLO];
        let (magic, rest) = message.split_at_mut(MAGIC.len());
        magic.copy_from_slice(&MAGIC);
        socket.read_exact(rest)?;
        return Hello::decode(&message).context("a damaged hello");
    }
    let mut before = first.to_vec();
    loop {
        let (stream, opcode, body) = read_after(socket, &before)?;
        before.clear();
        let (answer, body) = match opcode {
            OPTIONS => (SUPPORTED, supported()),
            STARTUP if credentials.is_none() => (READY, Vec::new()),
            STARTUP => (
                AUTHENTICATE,
                string("org.apache.cassandra.auth.PasswordAuthenticator"),
            ),
            AUTH_RESPONSE => authenticate(&body, credentials),
            REGISTER => (READY, Vec::new()),
            QUERY => match asked(&body)? {
                Asked::Hello(hello) => return Ok(hello),
                Asked::Use(keyspace) => {
                    let mut body = SET_KEYSPACE.to_be_bytes().to_vec();
                    body.extend(string(&keyspace));
                    (RESULT, body)
                }
            },
            other => bail!("opcode {other:#x} before a hello"),
        };
        send(socket, RESPONSE, stream, answer, &body)?;
    }
}

fn authenticate(body: &[u8], credentials: Option<&(String, String)>) -> (u8, Vec<u8>) {
    let right = credentials
        .is_some_and(|(user, password)| body == bytes(format!("\0{user}\0{password}").as_bytes()));
    if right {
        return (AUTH_SUCCESS, (-1i32).to_be_bytes().to_vec());
    }
    let mut body = BAD_CREDENTIALS.to_be_bytes().to_vec();
    body.extend(string("Provided username or password is incorrect"));
    (ERROR, body)
}

enum Asked {
    Hello(Hello),
    Use(String),
}

fn asked(body: &[u8]) -> anyhow::Result<Asked> {
    let text = body
        .get(4..body.len().saturating_sub(ANY_ONE.len()))
        .unwrap_or_default();
    let text = std::str::from_utf8(text)?;
    if let Some(keyspace) = text.strip_prefix("USE ") {
        return Ok(Asked::Use(keyspace.trim_matches('"').into()));
    }
    let digits = text.strip_prefix(HELLO_STATEMENT);
    let digits = digits.with_context(|| format!("a query before a hello: {text}"))?;
    let (pairs, _) = digits.as_bytes().as_chunks::<2>();
    let message: Result<Vec<u8>, _> = pairs
        .iter()
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap_or_default(), 16))
        .collect();
    let hello = Hello::decode(&message?).context("a damaged hello")?;
    Ok(Asked::Hello(hello))
}

/// Sends findings: in a RESULT, or preceded by their length.
pub(super) fn send_findings(socket: &TcpStream, cql: bool, text: &[u8]) -> anyhow::Result<()> {
    let mut socket = Patient(socket);
    if cql {
        return send(socket, RESPONSE, 0, RESULT, text);
    }
    socket.write_all(&(text.len() as u32).to_be_bytes())?;
    Ok(socket.write_all(text)?)
}

/// Receives what [`send_findings`] sends.
pub(super) fn read_findings(socket: &TcpStream, cql: bool) -> anyhow::Result<Vec<u8>> {
    let mut socket = Patient(socket);
    if cql {
        let (_, opcode, body) = read_frame(socket)?;
        ensure!(opcode == RESULT, "findings with opcode {opcode:#x}");
        return Ok(body);
    }
    let mut len = [0; 4];
    socket.read_exact(&mut len)?;
    let mut text = Vec::new();
    let len = u32::from_be_bytes(len).into();
    socket.take(len).read_to_end(&mut text)?;
    Ok(text)
}

fn send(
    mut socket: Patient<'_>,
    version: u8,
    stream: i16,
    opcode: u8,
    body: &[u8],
) -> anyhow::Result<()> {
    Ok(socket.write_all(&frame(version, stream, opcode, body))?)
}

fn frame(version: u8, stream: i16, opcode: u8, body: &[u8]) -> Vec<u8> {
    let [s0, s1] = stream.to_be_bytes();
    let mut frame = vec![version, 0, s0, s1, opcode];
    frame.extend((body.len() as u32).to_be_bytes());
    frame.extend(body);
    frame
}

fn read_frame(socket: Patient<'_>) -> anyhow::Result<(i16, u8, Vec<u8>)> {
    read_after(socket, &[])
}

/// Reads a frame of which `before` was read already. Its stream, opcode and body.
fn read_after(mut socket: Patient<'_>, before: &[u8]) -> anyhow::Result<(i16, u8, Vec<u8>)> {
    let mut header = [0; 9];
    let (known, unknown) = header.split_at_mut(before.len().min(9));
    known.copy_from_slice(before);
    socket
        .read_exact(unknown)
        .context("a frame of the handshake")?;
    let [version, _, s0, s1, opcode, l0, l1, l2, l3] = header;
    ensure!(
        version & 0x7f == REQUEST,
        "version {version:#x} in the handshake"
    );
    let len = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
    ensure!(len <= LONGEST, "a frame of {len} bytes in the handshake");
    let mut body = vec![0; len];
    socket.read_exact(&mut body)?;
    Ok((i16::from_be_bytes([s0, s1]), opcode, body))
}

fn supported() -> Vec<u8> {
    let mut body = 2u16.to_be_bytes().to_vec();
    body.extend(string("CQL_VERSION"));
    body.extend(1u16.to_be_bytes());
    body.extend(string("3.0.0"));
    body.extend(string("COMPRESSION"));
    body.extend(0u16.to_be_bytes());
    body
}

fn query(text: &str) -> Vec<u8> {
    let mut body = bytes(text.as_bytes());
    body.extend(ANY_ONE);
    body
}

fn string(text: &str) -> Vec<u8> {
    let mut encoded = (text.len() as u16).to_be_bytes().to_vec();
    encoded.extend(text.as_bytes());
    encoded
}

fn bytes(bytes: &[u8]) -> Vec<u8> {
    let mut encoded = (bytes.len() as i32).to_be_bytes().to_vec();
    encoded.extend(bytes);
    encoded
}
