//! The test whether the node is ready, in CQL: OPTIONS must be answered, and a log-in must succeed,
//! because the port opens before the default role exists.
//!
//! Frames are those of native_protocol_v4.spec: version, flags, stream (2 bytes), opcode,
//! body length (4 bytes), body; all big-endian.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use super::{
    PASSWORD, USER, address, home,
    node::{self, Node},
};
use crate::signals;

/// A first start takes 7 s here and 35 s at its worst; a loaded machine gets five times that.
const START_TIME_LIMIT: Duration = Duration::from_secs(180);
const PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// The time limit for one answer. bcrypt on a busy core takes a second at most.
const ANSWER_TIME_LIMIT: Duration = Duration::from_secs(5);
/// SUPPORTED and ERROR bodies are a few hundred bytes; more is not Cassandra.
const MAX_BODY_BYTES: usize = 64 * 1024;

const REQUEST_V4: u8 = 0x04;
const RESPONSE_V4: u8 = 0x84;
const ERROR: u8 = 0x00;
const STARTUP: u8 = 0x01;
const AUTHENTICATE: u8 = 0x03;
const OPTIONS: u8 = 0x05;
const SUPPORTED: u8 = 0x06;
const AUTH_RESPONSE: u8 = 0x0f;
const AUTH_SUCCESS: u8 = 0x10;

/// Returns once the node is ready; an error at once when its process dies or a signal tells
/// us to end, else after the time limit.
pub fn wait(node: &Node) -> Result<()> {
    let since = Instant::now();
    loop {
        // Checked before the probe, so that another process's answer on the port is not taken for
        // the node's.
        ensure!(
            node::is_alive(node),
            "Cassandra's process {} ended while it started; its log: {}; if its data is damaged, \
             remove {}",
            node.pid,
            home::log().display(),
            home::data().display()
        );
        signals::check()?;
        let Err(error) = probe(node.port) else {
            return Ok(());
        };
        ensure!(
            since.elapsed() < START_TIME_LIMIT,
            "Cassandra is not ready after {} s ({error:#}); its log: {}",
            START_TIME_LIMIT.as_secs(),
            home::log().display()
        );
        sleep(PROBE_INTERVAL);
    }
}

/// Makes one attempt: OPTIONS, STARTUP, log in as the default role.
pub fn probe(port: u16) -> Result<()> {
    let address = SocketAddr::V4(address(port));
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_TIME_LIMIT)
        .with_context(|| format!("cannot connect to {address}"))?;
    stream.set_read_timeout(Some(ANSWER_TIME_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_TIME_LIMIT))?;
    ask(&mut stream, OPTIONS, &[], SUPPORTED)?;
    ask(&mut stream, STARTUP, &startup_body(), AUTHENTICATE)?;
    ask(&mut stream, AUTH_RESPONSE, &plain_body(), AUTH_SUCCESS)
}

/// Sends a request and reads its response, which must have the opcode `wanted`.
fn ask(stream: &mut (impl Read + Write), opcode: u8, body: &[u8], wanted: u8) -> Result<()> {
    let body_bytes = u32::try_from(body.len()).context("a body beyond u32")?;
    let mut request = vec![REQUEST_V4, 0, 0, 0, opcode];
    request.extend(body_bytes.to_be_bytes());
    request.extend(body);
    stream.write_all(&request).context("cannot send")?;

    let mut header = [0; 9];
    stream.read_exact(&mut header).context("no response")?;
    let [version, _flags, _, _, answer, b0, b1, b2, b3] = header;
    ensure!(
        version == RESPONSE_V4,
        "not a CQL v4 response (first byte {version:#04x})"
    );
    let body_bytes = usize::try_from(u32::from_be_bytes([b0, b1, b2, b3]))?;
    ensure!(
        body_bytes <= MAX_BODY_BYTES,
        "a response of {body_bytes} bytes"
    );
    let mut body = vec![0; body_bytes];
    stream
        .read_exact(&mut body)
        .context("a response cut short")?;
    match answer {
        _ if answer == wanted => Ok(()),
        // Code (4 bytes), then the message with its length (2 bytes) first.
        ERROR => bail!(
            "{}",
            String::from_utf8_lossy(body.get(6..).unwrap_or_default())
        ),
        _ => bail!("a response with opcode {answer:#04x}, not {wanted:#04x}"),
    }
}

/// A string map with one entry.
fn startup_body() -> Vec<u8> {
    let mut body = vec![0, 1];
    for text in ["CQL_VERSION", "3.0.0"] {
        body.extend([0, u8::try_from(text.len()).unwrap_or(u8::MAX)]);
        body.extend(text.as_bytes());
    }
    body
}

/// SASL PLAIN (RFC 4616), as `bytes`: a length of 4 bytes first.
fn plain_body() -> Vec<u8> {
    let token = format!("\0{USER}\0{PASSWORD}");
    let mut body = vec![0, 0, 0, u8::try_from(token.len()).unwrap_or(u8::MAX)];
    body.extend(token.as_bytes());
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// Takes any request, answers with what it was given.
    struct Peer(io::Cursor<Vec<u8>>);

    impl Read for Peer {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Peer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn answer(bytes: &[u8]) -> Result<()> {
        ask(
            &mut Peer(io::Cursor::new(bytes.to_vec())),
            OPTIONS,
            &[],
            SUPPORTED,
        )
    }

    #[test]
    fn only_the_wanted_answer_counts() {
        assert!(answer(&[0x84, 0, 0, 0, SUPPORTED, 0, 0, 0, 2, 0, 0]).is_ok());
        assert!(answer(&[0x84, 0, 0, 0, AUTHENTICATE, 0, 0, 0, 0]).is_err());
        assert!(answer(b"HTTP/1.1 400 Bad Request\r\n\r\n").is_err());
        assert!(answer(&[0x84, 0, 0, 0, SUPPORTED, 0xff, 0xff, 0xff, 0xff]).is_err());
        assert!(answer(&[0x84, 0, 0, 0, SUPPORTED, 0, 0, 0, 2, 0]).is_err());
    }

    #[test]
    fn an_error_is_told_in_the_nodes_words() {
        let body = [0, 0, 1, 0, 0, 3, b'b', b'a', b'd'];
        let mut frame = vec![0x84, 0, 0, 0, ERROR, 0, 0, 0, 9];
        frame.extend(body);
        assert_eq!(answer(&frame).unwrap_err().to_string(), "bad");
        assert!(answer(&[0x84, 0, 0, 0, ERROR, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn bodies_are_as_the_protocol_says() {
        assert_eq!(startup_body(), b"\0\x01\0\x0bCQL_VERSION\0\x053.0.0");
        assert_eq!(plain_body(), b"\0\0\0\x14\0cassandra\0cassandra");
    }
}
