//! The leg to the database: marked, and from the client's own address and port.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::net::{TcpSocket, TcpStream};

use crate::{address::LocalAddr, holds::Held, listeners::MARK, sys};

/// The client's keep-alive probes are answered here, by the agent's kernel; these find a
/// database that died in silence, in its stead.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 6;

/// A connection to the database, on behalf of a client.
#[derive(Debug)]
pub struct Dialled {
    /// The connection.
    pub stream: TcpStream,
    /// The address that the client's socket would have: the route's source, or the one
    /// that the client chose.
    pub local: LocalAddr,
    /// False when the client's port was taken and the database sees another one.
    pub kept_port: bool,
}

/// Dials the original destination of `held`.
///
/// # Errors
/// Those of connect(2), as the client would have got them.
pub async fn dial(held: &Held) -> io::Result<Dialled> {
    let to = held.orig_dst.socket_addr();
    let client = held.client.socket_addr();
    let source = match (held.bound, to) {
        (true, _) => client.ip(),
        (false, SocketAddr::V4(_)) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        (false, SocketAddr::V6(_)) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let (stream, kept_port) = match dial_from(SocketAddr::new(source, client.port()), to).await {
        Ok(stream) => (stream, true),
        Err(e) if port_is_taken(&e) => (dial_from(SocketAddr::new(source, 0), to).await?, false),
        Err(e) => return Err(e),
    };
    let local = SocketAddr::new(stream.local_addr()?.ip(), client.port());
    Ok(Dialled {
        local: LocalAddr::new(local),
        stream,
        kept_port,
    })
}

/// The four-tuple is in use: another socket of the host, or one in TIME_WAIT.
fn port_is_taken(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
    )
}

async fn dial_from(from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_mark(MARK)?;
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    if from.port() != 0 {
        bind_to_taken_port(&socket, from)?;
    } else if !from.ip().is_unspecified() {
        socket.bind(&from.into())?;
    }
    TcpSocket::from_std_stream(socket.into()).connect(to).await
}

/// The client's own socket holds this very port (towards the agent), so an ordinary bind
/// is refused although the four-tuple towards the database is free. Under TCP_REPAIR bind
/// does not ask, and connect still does.
fn bind_to_taken_port(socket: &Socket, from: SocketAddr) -> io::Result<()> {
    sys::set_tcp_repair(socket, true)?;
    let bound = socket.bind(&from.into());
    sys::set_tcp_repair(socket, false)?;
    bound
}
