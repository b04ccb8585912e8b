//! The agent's listeners on the loopback, whose SYNs are held.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use aya::programs::SocketFilter;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};

use crate::address::ClientAddr;

/// What makes a socket the agent's own: `connect4|6` leave it alone, and know the agent's
/// listener from a stranger's by it. Chosen to collide with no mark in common use.
pub(crate) const MARK: u32 = 0x7570_6173;

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
    pub(crate) fn open(filter: &SocketFilter) -> io::Result<Self> {
        let v4 = listen(IpAddr::V4(ADDRESS_4), filter)?;
        let v6 = match listen(IpAddr::V6(Ipv6Addr::LOCALHOST), filter) {
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

fn listen(address: IpAddr, filter: &SocketFilter) -> io::Result<TcpListener> {
    let address = SocketAddr::new(address, 0);
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_mark(MARK)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    filter.attach(&socket).map_err(io::Error::other)?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}
