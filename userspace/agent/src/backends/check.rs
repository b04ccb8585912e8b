//! A backend's health check: it has to accept a connection, and to answer OPTIONS as CQL does.

use std::{io, net::SocketAddr};

use dataplane::backends::Probe;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time,
};

use super::Settings;

/// A v4 OPTIONS on stream 0: what every server answers without a login, and one that does not speak v4
/// with an ERROR in a version that it speaks.
const OPTIONS: [u8; 9] = [0x04, 0, 0, 0, 0x05, 0, 0, 0, 0];

const HEADER_BYTES: usize = 9;
const IS_RESPONSE: u8 = 0x80;
const OPCODE_AT: usize = 4;
const OPCODE_ERROR: u8 = 0x00;
const OPCODE_SUPPORTED: u8 = 0x06;

/// A SUPPORTED is a few hundred bytes. What is longer is not read to its end, and then the connection
/// is reset.
const BODY_BYTES: u64 = 64 * 1024;

/// Checks once.
///
/// # Errors
/// Why it has failed, for people.
pub(super) async fn check(
    probe: Probe,
    backend: SocketAddr,
    settings: &Settings,
) -> Result<(), String> {
    let asked = async {
        let stream = probe.connect(backend).await?;
        match settings.cql {
            true => speaks_cql(stream).await,
            false => Ok(()),
        }
    };
    match time::timeout(settings.timeout, asked).await {
        Ok(asked) => asked.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer in {} ms", settings.timeout.as_millis())),
    }
}

async fn speaks_cql(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(&OPTIONS).await?;
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await?;
    let [version, .., a, b, c, d] = header;
    let opcode = header.get(OPCODE_AT).copied();
    let answers = [Some(OPCODE_SUPPORTED), Some(OPCODE_ERROR)].contains(&opcode);
    // Versions 1 to 6; a byte of some other protocol is rarely one.
    if !answers || !(1..=6).contains(&(version ^ IS_RESPONSE)) {
        return Err(io::Error::other("its answer is no CQL"));
    }
    let body = u64::from(u32::from_be_bytes([a, b, c, d]));
    let mut rest = stream.take(body.min(BODY_BYTES));
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
    Ok(())
}
