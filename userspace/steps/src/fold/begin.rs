//! The opening of a shared connection: it begins as the first of its flows has begun, encrypted or
//! not, with that flow's STARTUP, its token, and a USE.

use std::{io, time::Duration};

use cql_edit::{Came, Incoming, Opening, in_segments_of};
use dataplane::backends::Probe;
use tls::{Failure, Handshakes, Side, Towards};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, error::Elapsed, timeout_at},
};
use zeroize::Zeroizing;

use super::identity::Identity;
use crate::stream::Stream;

pub(super) const ERROR: u8 = 0x00;
const STARTUP: u8 = 0x01;
const READY: u8 = 0x02;
const AUTHENTICATE: u8 = 0x03;
pub(super) const OPTIONS: u8 = 0x05;
const QUERY: u8 = 0x07;
pub(super) const RESULT: u8 = 0x08;
const AUTH_RESPONSE: u8 = 0x0F;
const AUTH_SUCCESS: u8 = 0x10;

/// The time limit for connecting, TLS, logging in and USE.
const OPENING: Duration = Duration::from_secs(5);

/// The longest frame before the connection is in use; those frames are short.
const MAX_WORD_BYTES: usize = 64 << 10;

/// Makes a request on the connection's own stream.
pub(super) fn frame(version: u8, opcode: u8, body: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut frame = Zeroizing::new(Vec::with_capacity(9 + body.len()));
    frame.extend([version, 0]);
    frame.extend(super::leg::OWN_STREAM.to_be_bytes());
    frame.push(opcode);
    frame.extend((body.len() as u32).to_be_bytes());
    frame.extend_from_slice(body);
    frame
}

/// Opens a connection that can be asked.
///
/// # Errors
/// Errors of connecting and of TLS, a database that does not let the connection in, or the time
/// limit.
pub(super) async fn open(
    dials: Option<&Probe>,
    of: &Identity,
    handshakes: &Handshakes,
) -> io::Result<(Stream, Incoming)> {
    let until = Instant::now() + OPENING;
    let dials = dials.ok_or(io::ErrorKind::NotConnected)?;
    let connected = timeout_at(until, dials.connect(of.database)).await;
    let stream = connected.unwrap_or_else(late)?;
    let stream = shakes_hands(stream, &of.towards, until, handshakes).await?;
    let let_in = timeout_at(until, is_let_in(stream, of)).await;
    let_in.unwrap_or_else(late)
}

fn late<T>(_: Elapsed) -> io::Result<T> {
    Err(io::ErrorKind::TimedOut.into())
}

/// Does the TLS handshake, if the flows' own connections speak TLS.
async fn shakes_hands(
    stream: TcpStream,
    towards: &Towards,
    until: Instant,
    handshakes: &Handshakes,
) -> io::Result<Stream> {
    let Towards::Tls(named) = towards else {
        return Ok(Box::new(stream));
    };
    let side = Side::Database;
    let begun = timeout_at(until, named.begin(stream)).await;
    let begun = begun.unwrap_or_else(|_| {
        let late = Failure::Deadline;
        let error = io::Error::new(io::ErrorKind::TimedOut, late.advice(side));
        Err((late, error))
    });
    match begun {
        Ok(stream) => {
            handshakes.succeeded(side);
            Ok(Box::new(stream))
        }
        Err((failure, error)) => {
            handshakes.failed(side, failure);
            Err(error)
        }
    }
}

async fn is_let_in(stream: Stream, of: &Identity) -> io::Result<(Stream, Incoming)> {
    let opening = &*of.opening;
    let mut begins = Begins {
        stream,
        incoming: Incoming::new(opening.version),
        opening,
        is_let_in: false,
    };
    let mut opcode = begins.ask(STARTUP, &opening.startup).await?;
    begins.incoming.is_let_in(opening.compression);
    begins.is_let_in = true;
    if opcode == AUTHENTICATE {
        let token = opening.token.as_ref();
        let token = token.ok_or_else(|| told("it wants a log-in, and flows have had none"))?;
        opcode = match begins.ask(AUTH_RESPONSE, token).await? {
            AUTH_SUCCESS => READY,
            other => other,
        };
    }
    expect(opcode, READY)?;
    if let Some(keyspace) = &of.keyspace {
        let text = format!("USE \"{}\"", keyspace.replace('"', "\"\""));
        // The body says consistency ONE, without flags.
        let flags: &[u8] = if opening.version >= 5 { &[0; 4] } else { &[0] };
        let length = (text.len() as u32).to_be_bytes();
        let body = [&length[..], text.as_bytes(), &[0, 1], flags].concat();
        expect(begins.ask(QUERY, &body).await?, RESULT)?;
    }
    Ok((begins.stream, begins.incoming))
}

struct Begins<'o> {
    stream: Stream,
    incoming: Incoming,
    opening: &'o Opening,
    is_let_in: bool,
}

impl Begins<'_> {
    /// Sends a request. Returns the opcode of the answer.
    async fn ask(&mut self, opcode: u8, body: &[u8]) -> io::Result<u8> {
        let mut asked = frame(self.opening.version, opcode, body);
        if self.is_let_in && self.opening.version >= 5 {
            asked = Zeroizing::new(in_segments_of(self.opening.compression, &asked));
        }
        self.stream.write_all(&asked).await?;
        self.stream.flush().await?;
        let mut read = [0; 4 << 10];
        loop {
            let next = self.incoming.next(MAX_WORD_BYTES);
            match next.map_err(|_| told("what it says is no response"))? {
                Some(Came {
                    stream: super::leg::OWN_STREAM,
                    opcode,
                    frame: Some(_),
                    ..
                }) => return Ok(opcode),
                Some(_) => return Err(told("it says something else than it was asked")),
                None => {}
            }
            let n = self.stream.read(&mut read).await?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let came = read.get(..n).unwrap_or_default();
            let comes = self.incoming.comes(came);
            comes.map_err(|_| told("what it says is no segment"))?;
            if self.incoming.held_bytes() > MAX_WORD_BYTES {
                return Err(told("it says too much"));
            }
        }
    }
}

fn expect(opcode: u8, expected: u8) -> io::Result<()> {
    match opcode {
        _ if opcode == expected => Ok(()),
        // The error's message may say more than a log should.
        ERROR => Err(told("it refuses with an error what it has let a flow do")),
        other => Err(told(&format!("unexpected opcode {other:#04x}"))),
    }
}

fn told(message: &str) -> io::Error {
    io::Error::other(message.to_owned())
}
