//! The agent's listeners on the loopback, whose SYNs are held.

use std::{
    fs::File,
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use aya::programs::SocketFilter;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};

use crate::address::ClientAddr;

/// What makes a socket the agent's own: `connect4|6` leave it alone, and know the agent's
/// listener from a stranger's by it. New with each start and told to nobody, because
/// whoever may set marks (CAP_NET_RAW) could pass every rule by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(pub(crate) u32);

impl Mark {
    /// Never zero, which is the mark of sockets without one.
    pub(crate) fn random() -> io::Result<Self> {
        let mut bytes = [0; 4];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(u32::from_ne_bytes(bytes) | 1))
    }
}

/// Ports that only root can bind: when the agent dies, nobody else can take its place and
/// be handed the connections that wait for it. Where bindresvport(3) looks, from the top.
const PORTS: std::ops::RangeInclusive<u16> = 512..=1023;

/// An address of its own, so that `ss` shows at a glance what is intercepted.
const ADDRESS_4: Ipv4Addr = Ipv4Addr::new(127, 86, 0, 1);

/// Handshakes that wait for the agent to accept; those that wait for the database are in
/// `legs`, not here.
const BACKLOG: i32 = 4096;

/// The agent's two listeners.
#[derive(Debug)]
pub struct Listeners {
    v4: TcpListener,
    /// None where the host has no IPv6.
    v6: Option<TcpListener>,
}

/// A connection to one of them.
#[derive(Debug)]
pub struct Accepted {
    /// The client's socket.
    pub client: ClientAddr,
    /// Its other end.
    pub stream: TcpStream,
}

impl Listeners {
    /// Opens them, with the filter in place before the first packet can arrive.
    pub(crate) fn open(filter: &SocketFilter, mark: Mark) -> io::Result<Self> {
        let v4 = listen(IpAddr::V4(ADDRESS_4), filter, mark)?;
        let v6 = match listen(IpAddr::V6(Ipv6Addr::LOCALHOST), filter, mark) {
            Ok(listener) => Some(listener),
            Err(error) => {
                tracing::warn!(%error, "no IPv6 loopback: IPv6 flows follow their rule's `fail`");
                None
            }
        };
        Ok(Self { v4, v6 })
    }

    pub(crate) fn addresses(&self) -> io::Result<(SocketAddr, Option<SocketAddr>)> {
        let v6 = self.v6.as_ref().map(TcpListener::local_addr).transpose()?;
        Ok((self.v4.local_addr()?, v6))
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// Those of accept(2): out of descriptors or memory. The listeners live on.
    pub async fn accept(&self) -> io::Result<Accepted> {
        let (stream, client) = match &self.v6 {
            Some(v6) => tokio::select! {
                accepted = self.v4.accept() => accepted?,
                accepted = v6.accept() => accepted?,
            },
            None => self.v4.accept().await?,
        };
        // Inherited from the listener; every packet would pay for it.
        if let Err(error) = SocketFilter::detach(&stream) {
            tracing::debug!(%error, "an accepted socket keeps the filter");
        }
        Ok(Accepted {
            client: ClientAddr::new(client),
            stream,
        })
    }
}

fn listen(address: IpAddr, filter: &SocketFilter, mark: Mark) -> io::Result<TcpListener> {
    let any = SocketAddr::new(address, 0);
    let socket = Socket::new(Domain::for_address(any), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_mark(mark.0)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    bind_to_free_port(&socket, address)?;
    filter.attach(&socket).map_err(io::Error::other)?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn bind_to_free_port(socket: &Socket, address: IpAddr) -> io::Result<()> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for port in PORTS.rev() {
        match socket.bind(&SocketAddr::new(address, port).into()) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => last = e,
            bound => return bound,
        }
    }
    Err(last)
}
