//! Listeners for connections from other hosts.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time,
};

use super::dial::{Dialler, IncomingDialled};
use crate::{
    address::{ClientAddr, OrigDst},
    dial::new_socket,
    listeners::Mark,
    netns_handle::NetnsHandle,
};

/// A backend that does not answer the dial for so long has failed: its client has a connection
/// already, and knows nothing of that. TCP asks again after a second.
const BACKEND_LIMIT: Duration = Duration::from_secs(3);

/// The agent's listener for connections of one family from other hosts: to the databases of one
/// namespace, or to virtual addresses.
#[derive(Debug)]
pub struct IncomingListener {
    pub(super) listener: TcpListener,
    pub(super) behind: Behind,
}

/// The servers that a listener stands in front of.
#[derive(Clone, Debug)]
pub(super) enum Behind {
    /// A database of this host's.
    Database(Arc<Dialler>),
    /// Backends of a virtual address; from sockets with this mark.
    Backends(Mark),
}

/// A connection.
#[derive(Debug)]
pub struct Arrived {
    /// The client's socket, on another host.
    pub client: ClientAddr,
    /// The address that the client dialled: the database's on this host, or a virtual one.
    pub orig_dst: OrigDst,
    /// The accepted socket.
    pub stream: TcpStream,
    behind: Behind,
}

impl IncomingListener {
    /// To virtual addresses.
    pub(crate) fn of_backends(listener: TcpListener, mark: Mark) -> Self {
        let behind = Behind::Backends(mark);
        Self { listener, behind }
    }

    /// Waits for the next connection; None for one that was made to the listener itself, which nobody
    /// is sent to: it has been closed.
    ///
    /// # Errors
    /// Those of accept(2): out of descriptors or memory. The listener lives on.
    pub async fn accept(&self) -> io::Result<Option<Arrived>> {
        let (stream, client) = self.listener.accept().await?;
        let dialled = stream.local_addr()?;
        if dialled == self.listener.local_addr()? {
            return Ok(None);
        }
        Ok(Some(Arrived {
            client: ClientAddr::new(client),
            orig_dst: OrigDst::new(dialled),
            stream,
            behind: self.behind.clone(),
        }))
    }
}

impl Arrived {
    /// The namespace of the database; None: backends of a virtual address, on other hosts.
    pub fn netns(&self) -> Option<Arc<NetnsHandle>> {
        match &self.behind {
            Behind::Database(dialler) => Some(dialler.netns.clone()),
            Behind::Backends(_) => None,
        }
    }

    /// Whether it was to a virtual address: then a backend is to be dialled.
    pub fn is_virtual(&self) -> bool {
        matches!(self.behind, Behind::Backends(_))
    }

    /// Dials the database that the client dialled; `backend`: behind the virtual address, from this
    /// host's own.
    ///
    /// # Errors
    /// The database does not accept: it has closed its listener a moment ago. Nobody is behind a
    /// virtual address but backends.
    pub async fn dial(&self, backend: Option<SocketAddr>) -> io::Result<IncomingDialled> {
        match (&self.behind, backend) {
            (Behind::Database(dialler), None) => dialler.dial(self.client, self.orig_dst).await,
            (Behind::Backends(mark), Some(backend)) => dial_backend(backend, *mark).await,
            _ => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }
}

async fn dial_backend(backend: SocketAddr, mark: Mark) -> io::Result<IncomingDialled> {
    let socket = TcpSocket::from_std_stream(new_socket(backend, Some(mark))?.into());
    let connected = time::timeout(BACKEND_LIMIT, socket.connect(backend)).await;
    Ok(IncomingDialled {
        stream: connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??,
        not_kept: None,
    })
}
