//! [`probe`]: whether a server speaks CQL, in whatever version.

use std::io;

use cassandra_protocol::frame::{Opcode, Version};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::Request;

const HEADER_BYTES: usize = 9;
const RESPONSE_BIT: u8 = 0x80;

/// The versions of the protocol that there are. A byte of some other protocol is rarely one of them.
const VERSIONS: std::ops::RangeInclusive<u8> = 1..=6;

/// The longest answer that is read to its end, in bytes: a SUPPORTED has a few hundred. The end of a longer one is not
/// awaited, and the connection is reset.
const MAX_BODY_BYTES: u64 = 64 << 10;

/// The answer to an OPTIONS is no CQL.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("its answer is no CQL")]
pub struct NotCql;

/// Asks OPTIONS of version 4: every server answers it without a log-in, and one that does not speak version 4
/// answers with an ERROR in a version that it speaks. The caller has a deadline.
///
/// # Errors
/// Those of the connection, and [`NotCql`] in one of them.
pub async fn probe(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let question = Request::Options.frame(Version::V4, 0);
    stream.write_all(&question).await?;
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await?;
    let body = body_bytes(&header).map_err(io::Error::other)?;
    let mut rest = stream.take(body.min(MAX_BODY_BYTES));
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
    Ok(())
}

/// The length of the body behind this header.
fn body_bytes(header: &[u8; HEADER_BYTES]) -> Result<u64, NotCql> {
    let [version, _, _, _, opcode, a, b, c, d] = *header;
    let answers = [Opcode::Supported, Opcode::Error].map(u8::from);
    if !answers.contains(&opcode) || !VERSIONS.contains(&(version ^ RESPONSE_BIT)) {
        return Err(NotCql);
    }
    Ok(u32::from_be_bytes([a, b, c, d]).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_and_errors_of_any_version_are_cql() {
        for (header, expected) in [
            ([0x84, 0, 0, 0, 6, 0, 0, 1, 0], Ok(256)),
            ([0x86, 0, 0, 0, 0, 0, 0, 0, 9], Ok(9)),
            (
                [0x81, 0, 0, 0, 6, 0xFF, 0xFF, 0xFF, 0xFF],
                Ok(u64::from(u32::MAX)),
            ),
            ([0x84, 0, 0, 0, 8, 0, 0, 0, 0], Err(NotCql)),
            ([0x04, 0, 0, 0, 6, 0, 0, 0, 0], Err(NotCql)),
            ([0x87, 0, 0, 0, 6, 0, 0, 0, 0], Err(NotCql)),
            (*b"HTTP/1.1 ", Err(NotCql)),
        ] {
            assert_eq!(body_bytes(&header), expected, "{header:?}");
        }
    }
}
