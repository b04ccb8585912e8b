//! The byte stream of a connection of the agent's own, encrypted or not.

use std::io;

use tls::Outward;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

/// A connection's byte stream.
pub(super) type Stream = Box<dyn Bytes>;

/// A stream that can be read and written.
pub(super) trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// Begins a connection. `tls`: None for a plain one. The caller sets the deadline.
pub(super) async fn begin(stream: TcpStream, tls: Option<&Outward>) -> io::Result<Stream> {
    Ok(match tls {
        None => Box::new(stream),
        Some(tls) => Box::new(tls.begin(stream).await?),
    })
}
