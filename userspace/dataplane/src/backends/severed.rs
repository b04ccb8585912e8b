//! Resets connections that the kernel has sent straight to a backend: they are nobody's to carry, so
//! the kernel is asked, through sock_diag(7), which sockets they are, and to destroy those.
//!
//! A socket is one of them if it has an entry in the map of virtual addresses; whoever has dialled the
//! backend itself is left alone. Only sockets of the agent's own network namespace are seen.

use std::{
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
};

use socket2::Socket;

use crate::sock_diag::{
    AF_INET, AF_INET6, BUFFER_BYTES, ID_AT, ID_BYTES, Id, MESSAGE_BYTES, NLM_F_ACK, NLM_F_DUMP,
    NLMSG_DONE, NLMSG_ERROR, SOCK_DIAG_BY_FAMILY, ask, attribute, error_of, message,
    next_attribute, open, request,
};

/// linux/sock_diag.h, linux/inet_diag.h
const SOCK_DESTROY: u16 = 21;
const REQ_SK_BPF_STORAGES: u16 = 2;
const REQ_MAP_FD: u16 = 1;
const SK_BPF_STORAGES: u16 = 20;

/// Every state of a connection but LISTEN and what is as good as over: ESTABLISHED, SYN_SENT,
/// FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING.
const STATES: u32 = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;

/// The way to end connections to a backend.
#[derive(Clone, Debug)]
pub struct Severed {
    virtuals: Arc<OwnedFd>,
}

impl Severed {
    pub(crate) fn new(virtuals: OwnedFd) -> Self {
        Self {
            virtuals: Arc::new(virtuals),
        }
    }

    /// Resets all balanced connections to this backend; gives how many. Looks at every connection of
    /// the namespace: not for a thread that anybody waits for.
    ///
    /// # Errors
    /// The kernel cannot destroy sockets (CONFIG_INET_DIAG_DESTROY), or none of its answers is
    /// understood.
    pub fn reset(&self, backend: SocketAddr) -> io::Result<usize> {
        let mut kernel = open()?;
        let mut count = 0;
        for family in [AF_INET, AF_INET6] {
            for id in self.connections(&mut kernel, family, backend)? {
                count += usize::from(destroy(&mut kernel, family, &id)?);
            }
        }
        Ok(count)
    }

    fn connections(
        &self,
        kernel: &mut Socket,
        family: u8,
        backend: SocketAddr,
    ) -> io::Result<Vec<Id>> {
        let map = attribute(REQ_MAP_FD, &self.virtuals.as_raw_fd().to_ne_bytes());
        let storages = attribute(REQ_SK_BPF_STORAGES, &map);
        let request = request(family, STATES, &[0; ID_BYTES], &storages);
        ask(kernel, SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, &request)?;
        let mut found = Vec::new();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let read = kernel.read(&mut buffer)?;
            let mut rest = buffer.get(..read).unwrap_or_default();
            while let Some((kind, body, next)) = message(rest) {
                rest = next;
                match kind {
                    NLMSG_DONE => return Ok(found),
                    NLMSG_ERROR => return error_of(body).map(|()| found),
                    _ => found.extend(balanced_to(family, body, backend)),
                }
            }
        }
    }
}

/// The socket that a message tells of, if it is one of those.
fn balanced_to(family: u8, body: &[u8], backend: SocketAddr) -> Option<Id> {
    let id: Id = body.get(ID_AT..ID_AT + ID_BYTES)?.try_into().ok()?;
    if peer(family, &id)? != backend {
        return None;
    }
    let mut attributes = body.get(MESSAGE_BYTES..)?;
    while let Some((kind, value, next)) = next_attribute(attributes) {
        if kind == SK_BPF_STORAGES && next_attribute(value).is_some() {
            return Some(id);
        }
        attributes = next;
    }
    None
}

/// struct inet_diag_sockid: two ports, two addresses.
fn peer(family: u8, id: &Id) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(id.get(2..4)?.try_into().ok()?);
    let address: [u8; 16] = id.get(20..36)?.try_into().ok()?;
    let ip = match family {
        AF_INET => {
            let [a, b, c, d, ..] = address;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        _ => IpAddr::V6(Ipv6Addr::from(address)),
    };
    Some(SocketAddr::new(ip.to_canonical(), port))
}

/// False: it has gone meanwhile.
fn destroy(kernel: &mut Socket, family: u8, id: &Id) -> io::Result<bool> {
    ask(
        kernel,
        SOCK_DESTROY,
        NLM_F_ACK,
        &request(family, STATES, id, &[]),
    )?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let read = kernel.read(&mut buffer)?;
    let answer = message(buffer.get(..read).unwrap_or_default());
    let Some((NLMSG_ERROR, body, _)) = answer else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    match error_of(body) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_message_is_none() {
        let whole = {
            let mut bytes = Vec::from(20_u32.to_ne_bytes());
            bytes.extend(NLMSG_DONE.to_ne_bytes());
            bytes.extend([0; 14]);
            bytes
        };
        assert_eq!(whole.len(), 20);
        let (kind, body, rest) = message(&whole).unwrap();
        assert_eq!((kind, body.len(), rest.len()), (NLMSG_DONE, 4, 0));
        for cut in 0..whole.len() {
            assert!(message(&whole[..cut]).is_none(), "{cut}");
        }
        // Shorter than its own header.
        assert!(message(&[8, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_none());
        assert!(next_attribute(&[2, 0, 1, 0]).is_none());
        let no_socket = balanced_to(AF_INET, &[0; 10], "10.1.0.1:1".parse().unwrap());
        assert_eq!(no_socket, None);
    }

    #[test]
    fn the_kernel_tells_of_sockets_and_leaves_those_alone_that_nobody_balanced() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(to).unwrap();
        let object = crate::load::load().unwrap();
        let severed = Severed::new(super::super::virtuals(&object).unwrap());
        assert_eq!(severed.reset(to).unwrap(), 0);
        assert!(client.take_error().unwrap().is_none());
        assert_eq!(client.peer_addr().unwrap(), to);
    }
}
