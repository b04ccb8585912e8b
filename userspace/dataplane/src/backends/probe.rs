//! How the agent reaches a backend for itself.

use std::{io, net::SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream};

use crate::listeners::Mark;

/// Opens connections that no hook of this agent changes.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    mark: Mark,
}

impl Probe {
    pub(crate) fn new(mark: Mark) -> Self {
        Self { mark }
    }

    /// Connects. Must run within a runtime.
    ///
    /// # Errors
    /// Those of connect(2).
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_mark(self.mark.0)?;
        socket.set_tcp_nodelay(true)?;
        TcpSocket::from_std_stream(socket.into()).connect(to).await
    }
}
