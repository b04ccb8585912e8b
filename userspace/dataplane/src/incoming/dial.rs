//! The dialled leg to a database on this host: from the client's own address and port.
//!
//! That address at the database's own is the accepted socket's four-tuple. So the dial goes to an
//! address of the agent's, from where `incoming.h` takes it to the database that is meant, and
//! `routes.rs` brings the answers back.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use aya::maps::{HashMap, MapData};
use ebpf::abi;
use socket2::Socket;
use tokio::{
    net::{TcpSocket, TcpStream},
    time,
};

use super::{Routing, addresses};
use crate::{
    address::{self, ClientAddr, OrigDst},
    dial::{bind_address, bind_to_taken_port, is_taken, new_socket},
    listeners::Mark,
    netns_handle::NetnsHandle,
    sys::{self, PodOf},
};

/// A database of this host that does not answer the dial for so long is dialled from the agent's
/// own address: its answers may be going astray. Long enough for a database that is too busy to
/// accept: TCP asks again after a second.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// Why the database does not see a client's own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotKept {
    /// The routing rule or the route could not be made.
    NoRoute,
    /// Every one of the agent's addresses has a connection of that client's port already.
    Taken,
    /// Nothing came back: something else routes the database's answers.
    NoAnswer,
    /// The kernel refuses.
    Kernel,
}

impl NotKept {
    /// Every label, for metrics.
    pub const LABELS: [&str; 4] = ["no_route", "taken", "no_answer", "kernel"];

    /// The reason as a metric's label.
    pub fn as_str(self) -> &'static str {
        let [no_route, taken, no_answer, kernel] = Self::LABELS;
        match self {
            Self::NoRoute => no_route,
            Self::Taken => taken,
            Self::NoAnswer => no_answer,
            Self::Kernel => kernel,
        }
    }
}

/// A connection to the database.
#[derive(Debug)]
pub struct IncomingDialled {
    /// The connection.
    pub stream: TcpStream,
    /// Why it is not from the client's own address and port, though it was to be.
    pub not_kept: Option<NotKept>,
}

pub(super) type Dials =
    Arc<Mutex<HashMap<MapData, PodOf<abi::IncomingDial>, PodOf<abi::Endpoint>>>>;

/// How the databases of a namespace are dialled.
#[derive(Debug)]
pub(super) struct Dialler {
    pub netns: Arc<NetnsHandle>,
    pub number: u32,
    pub mark: Mark,
    pub dials: Dials,
    pub routing: Arc<Routing>,
    /// Whether the database is to see the client's address.
    pub keeps: bool,
    /// The namespace's, in which a port can be asked for without taking it from others.
    pub ports: std::ops::RangeInclusive<u16>,
}

enum Failed {
    /// The database refused, and the client would have got the same answer.
    Database(io::Error),
    Ours(NotKept),
}

impl Dialler {
    /// # Errors
    /// The database does not accept.
    pub(super) async fn dial(
        &self,
        client: ClientAddr,
        orig_dst: OrigDst,
    ) -> io::Result<IncomingDialled> {
        let not_kept = match self.keeps {
            false => None,
            true => match self.dial_as(client, orig_dst).await {
                Ok(stream) => {
                    return Ok(IncomingDialled {
                        stream,
                        not_kept: None,
                    });
                }
                Err(Failed::Database(error)) => return Err(error),
                Err(Failed::Ours(why)) => Some(why),
            },
        };
        let to = orig_dst.socket_addr();
        let socket = self.netns.within(|| new_socket(to, Some(self.mark)))?;
        // From the database's address to itself: so it is known for this host's own.
        bind_address(&socket, to.ip())?;
        let stream = TcpSocket::from_std_stream(socket.into())
            .connect(to)
            .await?;
        Ok(IncomingDialled { stream, not_kept })
    }

    async fn dial_as(&self, client: ClientAddr, orig_dst: OrigDst) -> Result<TcpStream, Failed> {
        let (client, database) = (client.socket_addr(), orig_dst.socket_addr());
        if !self.routing.has(client) {
            return Err(Failed::Ours(NotKept::NoRoute));
        }
        for ip in addresses::of_family(client.ip()) {
            let to = SocketAddr::new(ip, database.port());
            let Some(_under_way) = self.announce(client, to, database) else {
                continue;
            };
            match time::timeout(ANSWER_LIMIT, self.dial_at(client, to)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) if is_taken(&error) => {}
                Ok(Err(error)) => return Err(failed(error)),
                Err(_) => return Err(Failed::Ours(NotKept::NoAnswer)),
            }
        }
        Err(Failed::Ours(NotKept::Taken))
    }

    async fn dial_at(&self, client: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.netns.within(|| new_socket(to, Some(self.mark)))?;
        sys::set_transparent(&socket, client.is_ipv6())?;
        self.bind(&socket, client)?;
        let connecting = TcpSocket::from_std_stream(socket.into());
        let stream = connecting.connect(to).await?;
        match stream.local_addr()? == client {
            true => Ok(stream),
            false => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }

    /// To the client's address and port. A port out of those that connect() chooses from on this
    /// host is shared with whoever else connects from it; another can be taken, because nobody does.
    fn bind(&self, socket: &Socket, client: SocketAddr) -> io::Result<()> {
        if self.ports.contains(&client.port()) && sys::set_port_range(socket, client.port()).is_ok()
        {
            bind_address(socket, client.ip())?;
        } else {
            bind_to_taken_port(socket, client)?;
        }
        // Should a server be started at that port.
        socket.set_reuse_address(true)
    }

    /// Tells the kernel's program which database a dial is meant for. None: such a dial is under way
    /// already.
    fn announce(
        &self,
        client: SocketAddr,
        dialled: SocketAddr,
        database: SocketAddr,
    ) -> Option<UnderWay> {
        let dial = abi::IncomingDial {
            client: address::to_abi(client),
            dialled: address::to_abi(dialled),
            netns_index: self.number,
        };
        let database = PodOf(address::to_abi(database));
        let mut dials = self.dials.lock().unwrap_or_else(PoisonError::into_inner);
        let inserted = dials.insert(PodOf(dial), database, BPF_NOEXIST);
        inserted.ok().map(|()| UnderWay {
            dial,
            dials: self.dials.clone(),
        })
    }
}

/// `linux/bpf.h`.
const BPF_NOEXIST: u64 = 1;

/// Sorts an error of a dial: an error that the agent did not cause is the database's answer.
fn failed(error: io::Error) -> Failed {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => {
            Failed::Database(error)
        }
        _ if crate::answers::is_exhaustion(&error) => Failed::Database(error),
        _ => {
            tracing::warn!(%error, "a client's own address cannot be dialled from");
            Failed::Ours(NotKept::Kernel)
        }
    }
}

/// The kernel forgets the dial with this: the connection stands, or is given up.
struct UnderWay {
    dial: abi::IncomingDial,
    dials: Dials,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut dials = self.dials.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = dials.remove(&PodOf(self.dial)) {
            tracing::error!(%error, "the kernel does not forget a dial");
        }
    }
}
