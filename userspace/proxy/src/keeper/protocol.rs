//! The protocol between the agent and the keeper: whole messages as JSON, with descriptors.

use std::{
    io::{self, ErrorKind, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use nix::{
    sys::socket::{getsockopt, sockopt::PeerCredentials},
    unistd::geteuid,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize};
use tokio::{io::Interest, net::UnixStream};

use super::snapshot::FlowSnapshot;

/// The longest message. FlowSnapshot are the longest: eight facts of at most 256 bytes, and names.
const MESSAGE_BYTES: usize = 32 * 1024;

/// The most descriptors of a message. An engine has the most: 7, and those of its hooks.
const MAX_DESCRIPTORS: usize = 32;

/// A message. `Hello`, `Ask`, `State`, `End` and `Busy` are understood by every version.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// From either side: the first message.
    Hello { version: String },
    /// To an agent: another agent has this keeper.
    Busy,
    /// From either side: an engine, with its descriptors.
    Engine { engine: u32 },
    /// To the keeper: the agent's shortcut, with its descriptors.
    Shortcut,
    /// To the keeper: hold these two sockets, the accepted one and the dialled one. To the agent:
    /// carry this flow.
    Keep(Box<FlowSnapshot>),
    /// To the keeper: the flow has ended.
    Drop { id: u64 },
    /// To the keeper: the agent does not take it.
    Return { id: u64 },
    /// To the agent: the keeper does not hold it.
    Refused { id: u64, why: String },
    /// To the agent: the engine's last flow has ended.
    Gone { engine: u32 },
    /// To the keeper: close every flow, and end.
    End,
    /// To the keeper: describe yourself.
    Ask,
    /// To the one that asked: the keeper's description.
    State {
        version: String,
        pid: u32,
        flows: usize,
        has_agent: bool,
    },
}

/// A message with its descriptors.
pub(super) type Parcel = (Message, Vec<OwnedFd>);

/// An end of a connection: a unix socket that keeps messages apart (SOCK_SEQPACKET).
pub(super) struct Link(UnixStream);

impl Link {
    /// # Errors
    /// The other side is somebody else's.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        let peer = getsockopt(&socket, PeerCredentials)?;
        if peer.uid() != geteuid().as_raw() {
            let who = format!("user {} is at the other end", peer.uid());
            return Err(io::Error::new(ErrorKind::PermissionDenied, who));
        }
        let socket = std::os::unix::net::UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self(UnixStream::from_std(socket)?))
    }

    /// Makes both ends of a connection.
    pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
        let (domain, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
        Ok(socketpair(domain, SocketType::SEQPACKET, flags, None)?)
    }

    /// Keeps the link open until this process ends, whatever goes wrong here: to the keeper the end
    /// of the link means that nobody carries the flows any more.
    pub(super) fn lasts(&self) -> io::Result<()> {
        std::mem::forget(self.0.as_fd().try_clone_to_owned()?);
        Ok(())
    }

    /// Sends a message when there is room. If the future is dropped before that, nothing has been
    /// sent.
    pub(super) async fn send(&self, (message, fds): &Parcel) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        if text.len() > MESSAGE_BYTES {
            return Err(io::Error::other("a message that is too long"));
        }
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let sent = self.0.async_io(Interest::WRITABLE, || {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
                return Err(ErrorKind::InvalidInput.into());
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            Ok(sendmsg(
                &self.0,
                &[IoSlice::new(&text)],
                &mut control,
                flags,
            )?)
        });
        sent.await.map(drop)
    }

    /// Receives the next message; None when the other side has ended. If the future is dropped,
    /// nothing is lost.
    pub(super) async fn receive(&self) -> io::Result<Option<Parcel>> {
        loop {
            match self.receive_once().await {
                // The other side was killed with unread messages. The messages that it has sent are
                // still there.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                received => return received,
            }
        }
    }

    async fn receive_once(&self) -> io::Result<Option<Parcel>> {
        let mut text = vec![0; MESSAGE_BYTES];
        let mut fds = Vec::new();
        let received = self.0.async_io(Interest::READABLE, || {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let mut into = [IoSliceMut::new(&mut text)];
            let received = recvmsg(&self.0, &mut into, &mut control, flags)?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    fds.extend(rights);
                }
            }
            Ok(received.bytes)
        });
        match received.await {
            Ok(0) => Ok(None),
            Ok(n) => Ok(Some((
                serde_json::from_slice(text.get(..n).unwrap_or_default())?,
                fds,
            ))),
            Err(error) => Err(error),
        }
    }
}
