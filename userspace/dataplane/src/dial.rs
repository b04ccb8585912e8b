//! The leg to the database: in the client's namespace, from its own address and port.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::net::{TcpSocket, TcpStream};

use crate::{address::LocalAddr, holds::Held, listeners::Mark, sys};

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

/// Dials for `held`: its original destination, or a backend of the same family behind it.
///
/// # Errors
/// Those of connect(2), as the client would have got them.
pub async fn dial(held: &Held, backend: Option<SocketAddr>) -> io::Result<Dialled> {
    let to = backend.unwrap_or(held.orig_dst.socket_addr());
    let client = held.client.socket_addr();
    let source = match (held.bound, to) {
        (true, _) => client.ip(),
        (false, SocketAddr::V4(_)) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        (false, SocketAddr::V6(_)) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let from = SocketAddr::new(source, client.port());
    let own = Port::OfTheClient {
        chosen: held.bound_port,
    };
    let stream = match dial_from(from, own, to, held).await {
        Err(e) if is_taken(&e) => dial_from(from, Port::Any, to, held).await?,
        dialled => dialled?,
    };
    let local = stream.local_addr()?;
    Ok(Dialled {
        stream,
        local: LocalAddr::new(SocketAddr::new(local.ip(), client.port())),
        kept_port: local.port() == client.port(),
    })
}

/// The four-tuple is in use: another socket of the host, or one in TIME_WAIT.
pub(crate) fn is_taken(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
    )
}

/// The port of the dialled leg.
#[derive(Clone, Copy, Debug)]
enum Port {
    /// The client's, which its application had `chosen` or the kernel had.
    OfTheClient { chosen: bool },
    /// A port of the kernel's choice.
    Any,
}

async fn dial_from(
    from: SocketAddr,
    port: Port,
    to: SocketAddr,
    held: &Held,
) -> io::Result<TcpStream> {
    let socket = match &held.netns_agent {
        None => new_socket(to, Some(held.mark))?,
        Some(netns_agent) => netns_agent.within(|| new_socket(to, None))?,
    };
    match port {
        Port::OfTheClient { chosen: true } => bind_to_taken_port(&socket, from)?,
        Port::OfTheClient { chosen: false } => {
            // Before Linux 6.3 there is no range per socket.
            if sys::set_port_range(&socket, from.port()).is_ok() {
                bind_address(&socket, from.ip())?;
            } else {
                bind_to_taken_port(&socket, from)?;
            }
        }
        Port::Any => bind_address(&socket, from.ip())?,
    }
    TcpSocket::from_std_stream(socket.into()).connect(to).await
}

/// A new socket for a dial to `to`, in the calling thread's namespace; not connected yet.
pub(crate) fn new_socket(to: SocketAddr, mark: Option<Mark>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    mark.map_or(Ok(()), |mark| socket.set_mark(mark.0))?;
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    Ok(socket)
}

/// An address without a port: connect() chooses the port.
pub(crate) fn bind_address(socket: &Socket, address: IpAddr) -> io::Result<()> {
    if address.is_unspecified() {
        return Ok(());
    }
    sys::set_bind_without_port(socket)?;
    socket.bind(&SocketAddr::new(address, 0).into())
}

/// The client's own socket holds this very port (towards the agent), so an ordinary bind
/// is refused although the four-tuple towards the database is free. Under TCP_REPAIR bind
/// does not ask, and connect still does. It takes the port away from connects elsewhere on
/// this host, as the application's own bind has done already.
pub(crate) fn bind_to_taken_port(socket: &Socket, from: SocketAddr) -> io::Result<()> {
    sys::set_tcp_repair(socket, true)?;
    let bound = socket.bind(&from.into());
    sys::set_tcp_repair(socket, false)?;
    bound
}
