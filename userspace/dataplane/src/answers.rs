//! The database's answer, passed on to the client that waits for it.

use std::{
    io,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
};

use aya::maps::MapError;
use ebpf::abi;
use nix::libc;
use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    address::{self, LocalAddr, SockCookie},
    causes::other,
    holds::Held,
    listeners::Mark,
    maps::FlowMaps,
    packet::Unreachable,
    sys::{self, PodOf},
};

/// How a connect() is to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nobody listens: ECONNREFUSED.
    Reset,
    /// ENETUNREACH.
    NetUnreachable,
    /// EHOSTUNREACH.
    HostUnreachable,
    /// A firewall said so: EACCES on IPv6, EHOSTUNREACH on IPv4.
    Prohibited,
    /// The client's own retransmissions go unanswered until its patience ends.
    Silence,
}

/// Whether this agent has run out of descriptors or memory.
pub fn is_exhaustion(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    matches!(
        errno,
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)
    )
}

impl Refusal {
    /// The refusal that the client must see, for the error that the agent got when it dialled.
    pub fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENETUNREACH | libc::ENETDOWN) => Self::NetUnreachable,
            Some(libc::EHOSTUNREACH | libc::EHOSTDOWN) => Self::HostUnreachable,
            Some(libc::EACCES) => Self::Prohibited,
            Some(libc::ETIMEDOUT) => Self::Silence,
            // Ours, not the database's: nothing is claimed.
            _ if is_exhaustion(error) => Self::Silence,
            _ => Self::Reset,
        }
    }

    /// The refusal's name as a metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reset => "refused",
            Self::NetUnreachable => "net_unreachable",
            Self::HostUnreachable => "host_unreachable",
            Self::Prohibited => "prohibited",
            Self::Silence => "silence",
        }
    }
}

/// Answers held SYNs.
pub struct Answers {
    maps: Mutex<FlowMaps>,
    raw: RawSockets,
}

/// By which packets are sent in a namespace.
#[derive(Debug)]
pub(crate) struct RawSockets {
    v4: Socket,
    /// None where the host has no IPv6.
    v6: Option<Socket>,
}

impl RawSockets {
    /// In the calling thread's namespace.
    pub(crate) fn open(mark: Option<Mark>) -> io::Result<Self> {
        let v6 = raw_socket(Domain::IPV6, mark).and_then(|s| {
            sys::set_ipv6_header_included(&s)?;
            Ok(s)
        });
        Ok(Self {
            v4: raw_socket(Domain::IPV4, mark)?,
            v6: v6.ok(),
        })
    }
}

impl Answers {
    pub(crate) fn new(maps: FlowMaps, mark: Mark) -> io::Result<Self> {
        Ok(Self {
            maps: Mutex::new(maps),
            raw: RawSockets::open(Some(mark))?,
        })
    }

    /// Whether the client still waits. It may have given up, and its port may be another's.
    pub fn waits(&self, held: &Held) -> bool {
        let maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        maps.pending_connects
            .get(&PodOf(held.key), 0)
            .is_ok_and(|PodOf(connect)| connect.cookie == held.cookie.0)
    }

    /// Lets the SYN pass: the client's handshake with the listener completes, and its
    /// socket's name is `local` from now on.
    pub fn let_pass(&self, held: &Held, local: LocalAddr) -> io::Result<()> {
        let release = abi::Release {
            local: address::to_abi(local.socket_addr()),
        };
        self.maps
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .releases
            .insert(held.cookie.0, PodOf(release), 0)
            .map_err(other)?;
        self.send(held, &held.syn.again())
    }

    /// Ends the grace for a connection that the agent has accepted. The kernel finds its socket from
    /// now on: a packet that meets the listener later belongs to a connection that is gone, and is
    /// answered.
    pub fn note_accepted(&self, held: &Held) {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        match maps.fresh.remove(&PodOf(held.key)) {
            // Newer ones have taken its place.
            Ok(()) | Err(MapError::KeyNotFound) => {}
            Err(error) => tracing::debug!(%error, "a handshake counts as fresh for a while yet"),
        }
    }

    /// Has the client's connect() fail.
    pub fn refuse(&self, held: &Held, refusal: Refusal) -> io::Result<()> {
        // RFC 792 type 3, RFC 4443 type 1; the errno that each becomes is in the kernel's
        // icmp_err_convert and icmpv6_err_convert.
        let packet = match refusal {
            Refusal::Reset => held.syn.reset(),
            Refusal::NetUnreachable => held.syn.unreachable(Unreachable {
                v4: (3, 0),
                v6: (1, 0),
            }),
            Refusal::HostUnreachable => held.syn.unreachable(Unreachable {
                v4: (3, 1),
                v6: (1, 3),
            }),
            Refusal::Prohibited => held.syn.unreachable(Unreachable {
                v4: (3, 13),
                v6: (1, 1),
            }),
            Refusal::Silence => return Ok(()),
        };
        self.send(held, &packet)
    }

    /// Forgets a flow that has ended.
    pub fn forget(&self, cookie: SockCookie) {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        match maps.releases.remove(&cookie.0) {
            Ok(()) | Err(MapError::KeyNotFound) => {}
            Err(error) => tracing::debug!(%error, %cookie, "a flow that was forgotten already"),
        }
    }

    fn send(&self, held: &Held, packet: &[u8]) -> io::Result<()> {
        let to = held.client.socket_addr();
        let sockets = held.netns_agent.as_ref().map_or(&self.raw, |o| &o.raw);
        let raw = match (to, &sockets.v6) {
            (SocketAddr::V4(_), _) => &sockets.v4,
            (SocketAddr::V6(_), Some(raw6)) => raw6,
            (SocketAddr::V6(_), None) => return Err(io::ErrorKind::Unsupported.into()),
        };
        // The port is of no meaning here, and IPv6 refuses one. The kernel routes by the
        // address given, which is on this host either way.
        let to = SocketAddr::new(held.syn.destination(packet).unwrap_or(to.ip()), 0);
        raw.send_to(packet, &to.into()).map(drop)
    }
}

fn raw_socket(domain: Domain, mark: Option<Mark>) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
    mark.map_or(Ok(()), |mark| socket.set_mark(mark.0))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
