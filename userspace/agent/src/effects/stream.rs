//! The bytes of a connection of the agent's own, encrypted or not.

use std::io;

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use crate::tls::Outward;

/// See the module.
pub(super) type Stream = Box<dyn Bytes>;

/// What is read and written.
pub(super) trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// `tls`: None is without. Who waits has a deadline.
pub(super) async fn begin(stream: TcpStream, tls: Option<&Outward>) -> io::Result<Stream> {
    Ok(match tls {
        None => Box::new(stream),
        Some(tls) => Box::new(tls.begin(stream).await?),
    })
}
