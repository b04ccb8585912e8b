//! The agent's listeners on a namespace's loopback, whose SYNs are held.

use std::{
    fs::File,
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
};

use aya::programs::SocketFilter;
use ebpf::abi;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};

use crate::{
    address::{self, ClientAddr},
    causes::other,
    sys,
};

/// The mark that makes a socket the agent's own in its own namespace: `connect4|6` leave it alone. The
/// mark is new with each start and told to nobody, because whoever may set marks (CAP_NET_RAW) could
/// pass every rule by it.
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
pub(crate) const PORTS: std::ops::RangeInclusive<u16> = 512..=1023;

/// An address of its own, so that `ss` shows at a glance what is intercepted.
pub(crate) const ADDRESS_4: Ipv4Addr = Ipv4Addr::new(127, 86, 0, 1);

/// Handshakes that wait for the agent to accept; those that wait for the database are in
/// `pending_connects`, not here.
const BACKLOG: i32 = 4096;

/// The agent's two listeners in a namespace.
#[derive(Debug)]
pub struct Listeners {
    v4: TcpListener,
    /// None where the host has no IPv6.
    v6: Option<TcpListener>,
    netns_cookie: u64,
}

/// The filter that holds SYNs.
#[derive(Debug)]
pub(crate) struct HoldFilter(OwnedFd);

impl HoldFilter {
    /// The filter of a program that is loaded.
    pub(crate) fn of(program: &SocketFilter) -> io::Result<Self> {
        let fd = program.fd().map_err(other)?;
        Ok(Self(fd.as_fd().try_clone_to_owned()?))
    }
}

/// Both families' before they are the runtime's: bound, filtered, listening. Of the calling thread's
/// namespace.
#[derive(Debug)]
pub(crate) struct Opened {
    v4: Socket,
    v6: io::Result<Socket>,
}

impl Opened {
    /// With the filter in place before the first packet can arrive.
    pub(crate) fn open(filter: &HoldFilter, mark: Option<Mark>) -> io::Result<Self> {
        Ok(Self {
            v4: listen(IpAddr::V4(ADDRESS_4), filter, mark)?,
            v6: listen(IpAddr::V6(Ipv6Addr::LOCALHOST), filter, mark),
        })
    }

    /// The listeners as the connect hooks know them.
    pub(crate) fn to_abi(&self) -> io::Result<abi::NetnsAgent> {
        let address = |socket: &Socket| {
            let address = socket.local_addr()?.as_socket();
            Ok::<_, io::Error>(address.map_or(NONE, address::to_abi))
        };
        let (listener6, cookie6) = match &self.v6 {
            Ok(v6) => (address(v6)?, sys::socket_cookie(v6)?),
            Err(_) => (NONE, 0),
        };
        Ok(abi::NetnsAgent {
            listener4: address(&self.v4)?,
            listener6,
            cookie4: sys::socket_cookie(&self.v4)?,
            cookie6,
        })
    }

    /// Why there is none for IPv6.
    pub(crate) fn lacks_v6(&self) -> Option<&io::Error> {
        self.v6.as_ref().err()
    }
}

const NONE: abi::Endpoint = abi::Endpoint {
    addr: [0; 16],
    port_be: 0,
    family: 0,
    pad: 0,
};

/// A connection to one of them.
#[derive(Debug)]
pub struct Accepted {
    /// The client's socket.
    pub client: ClientAddr,
    /// The network namespace of both.
    pub netns_cookie: u64,
    /// The accepted socket.
    pub stream: TcpStream,
}

impl Listeners {
    /// Hands them to the runtime that this is called in.
    pub(crate) fn of(opened: Opened, netns_cookie: u64) -> io::Result<Self> {
        let v6 = opened.v6.ok().map(|v6| TcpListener::from_std(v6.into()));
        Ok(Self {
            v4: TcpListener::from_std(opened.v4.into())?,
            v6: v6.transpose()?,
            netns_cookie,
        })
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
            netns_cookie: self.netns_cookie,
            stream,
        })
    }
}

/// A listener for connections that are handed to it, whatever address they were made to: without a
/// mark, which their packets would have on the wire.
pub(crate) fn incoming(address: IpAddr) -> io::Result<Socket> {
    let socket = bound(address)?;
    // Inherited: connections that it accepts are at the database's port, and the database may be
    // started again while they last.
    socket.set_reuse_address(true)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// A listener that nobody reaches: what is handed to it belongs to connections that are gone, and is answered with RST
/// from whatever address it was sent to.
pub(crate) fn of_strays() -> io::Result<Socket> {
    let socket = bound(IpAddr::V4(ADDRESS_4))?;
    sys::set_transparent(&socket, false)?;
    socket.listen(0)?;
    Ok(socket)
}

fn bound(address: IpAddr) -> io::Result<Socket> {
    let any = SocketAddr::new(address, 0);
    let socket = Socket::new(Domain::for_address(any), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    bind_to_free_port(&socket, address)?;
    Ok(socket)
}

fn listen(address: IpAddr, filter: &HoldFilter, mark: Option<Mark>) -> io::Result<Socket> {
    let socket = bound(address)?;
    mark.map_or(Ok(()), |mark| socket.set_mark(mark.0))?;
    sys::attach_filter(&socket, filter.0.as_fd())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
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
