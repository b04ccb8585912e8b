//! Messages between two processes of this program: whole ones as JSON, with descriptors.

use std::{
    fs,
    io::{self, ErrorKind, IoSlice, IoSliceMut},
    marker::PhantomData,
    mem::{ManuallyDrop, MaybeUninit},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use nix::{
    sys::socket::{getsockopt, sockopt::PeerCredentials},
    unistd::geteuid,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind,
    connect, listen, recvmsg, sendmsg, shutdown, socket_with, socketpair,
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{io::Interest, net::UnixStream};

/// The longest message. Flows are the longest: eight facts of at most 256 bytes, and names.
const MESSAGE_BYTES: usize = 32 * 1024;

/// The most descriptors of a message. An engine has the most: 7, and those of its hooks.
const MAX_DESCRIPTORS: usize = 32;

/// The most processes that wait at a socket.
const BACKLOG: i32 = 16;

/// An end of a connection between two processes of this program, which exchange messages `M`: a unix socket that keeps
/// messages apart (SOCK_SEQPACKET).
pub struct Link<M> {
    socket: UnixStream,
    says: PhantomData<fn(M) -> M>,
}

/// A link that stays open though its [`Link`] may be dropped, as by a panic.
pub struct HeldOpen(ManuallyDrop<OwnedFd>);

impl HeldOpen {
    /// Holds it no longer: the other side has ended.
    pub fn close(self) {
        drop(ManuallyDrop::into_inner(self.0));
    }
}

impl<M: Serialize + DeserializeOwned> Link<M> {
    /// Takes a connected socket. Within a runtime.
    ///
    /// # Errors
    /// The other side is somebody else's.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let peer = getsockopt(&socket, PeerCredentials)?;
        if peer.uid() != geteuid().as_raw() {
            let who = format!("user {} is at the other end", peer.uid());
            return Err(io::Error::new(ErrorKind::PermissionDenied, who));
        }
        let socket = std::os::unix::net::UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: UnixStream::from_std(socket)?,
            says: PhantomData,
        })
    }

    /// Connects to whoever listens at a path. Within a runtime.
    ///
    /// # Errors
    /// Nobody does, or somebody who is not this process's user.
    pub fn to(path: &Path) -> io::Result<Self> {
        let socket = seqpacket()?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Self::new(socket)
    }

    /// Makes both ends of a connection.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
        let (domain, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
        Ok(socketpair(domain, SocketType::SEQPACKET, flags, None)?)
    }

    /// Keeps the link open until [`HeldOpen::close`], or the end of this process, whatever goes wrong here: to the keeper the
    /// end of the link means that nobody carries the flows any more.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn hold_open(&self) -> io::Result<HeldOpen> {
        let socket = self.socket.as_fd().try_clone_to_owned()?;
        Ok(HeldOpen(ManuallyDrop::new(socket)))
    }

    /// Ends the connection, whoever else has it: the other side hears so.
    pub fn end(&self) {
        // It has ended where this fails.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Sends a message when there is room. If the future is dropped before that, nothing has been
    /// sent.
    ///
    /// # Errors
    /// The other side has ended, the message is too long, or has too many descriptors.
    pub async fn send(&self, (message, fds): &(M, Vec<OwnedFd>)) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        if text.len() > MESSAGE_BYTES {
            return Err(io::Error::other("a message that is too long"));
        }
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let sent = self.socket.async_io(Interest::WRITABLE, || {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
                return Err(ErrorKind::InvalidInput.into());
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            Ok(sendmsg(
                &self.socket,
                &[IoSlice::new(&text)],
                &mut control,
                flags,
            )?)
        });
        sent.await.map(drop)
    }

    /// Receives the next message; None when the other side has ended. If the future is dropped,
    /// nothing is lost.
    ///
    /// # Errors
    /// The message is none of `M`, or this process is out of descriptors or memory.
    pub async fn receive(&self) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        loop {
            match self.receive_once().await {
                // The other side was killed with unread messages. The messages that it has sent are
                // still there.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                received => return received,
            }
        }
    }

    async fn receive_once(&self) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        let mut text = vec![0; MESSAGE_BYTES];
        let mut fds = Vec::new();
        let received = self.socket.async_io(Interest::READABLE, || {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let mut into = [IoSliceMut::new(&mut text)];
            let received = recvmsg(&self.socket, &mut into, &mut control, flags)?;
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

/// Listens at a path, in place of whoever did before. Only root can open the socket.
///
/// # Errors
/// The file system's.
pub fn bind_at(path: &Path) -> io::Result<OwnedFd> {
    use nix::sys::stat::{Mode, umask};
    let socket = seqpacket()?;
    // The socket gets its name only once it listens: a socket that does not is taken for a dead
    // process's.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!(".{name}"));
    // Of a process that was killed in between.
    let _ = fs::remove_file(&aside);
    let before = umask(Mode::S_IXUSR | Mode::S_IRWXG | Mode::S_IRWXO);
    let bound = bind(&socket, &SocketAddrUnix::new(&aside)?);
    umask(before);
    bound?;
    listen(&socket, BACKLOG)?;
    fs::rename(&aside, path)?;
    Ok(socket)
}

fn seqpacket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let made = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    Ok(made?)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use tokio::runtime;

    use super::*;

    /// A message with a descriptor that is not understood: the link says so, and the descriptor is closed.
    #[test]
    fn no_descriptor_is_left_of_a_message_that_is_none() {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            for text in [&b"?"[..], b"{}", b"{\"a\":", &[b'['; MESSAGE_BYTES + 10]] {
                let (mine, other) = Link::<u32>::pair().unwrap();
                let link = Link::<u32>::new(mine).unwrap();
                let (mut reader, writer) = io::pipe().unwrap();
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let fds = [writer.as_fd(), writer.as_fd()];
                assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
                let flags = SendFlags::NOSIGNAL;
                sendmsg(&other, &[IoSlice::new(text)], &mut control, flags).unwrap();
                drop(writer);
                assert!(link.receive().await.is_err());
                // It would wait for ever for a writer that is there.
                assert_eq!(reader.read(&mut [0; 1]).unwrap(), 0);
            }
        });
    }
}
