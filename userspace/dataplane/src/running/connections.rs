//! The TCP connections of a network namespace, as sock_diag(7) lists them.

use std::{
    collections::HashSet,
    io::{self, Read as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use crate::{
    address::SockCookie,
    sock_diag::{
        AF_INET, AF_INET6, BUFFER_BYTES, ID_AT, ID_BYTES, MESSAGE_BYTES, NLM_F_DUMP, NLMSG_DONE,
        NLMSG_ERROR, SOCK_DIAG_BY_FAMILY, ask, error_of, message, next_attribute, open, request,
    },
};

/// net/tcp_states.h, as bits.
const ESTABLISHED: u8 = 1;
const LISTEN: u8 = 10;
const STATES: u32 = 1 << ESTABLISHED | 1 << LISTEN;

/// struct inet_diag_msg: its state, and behind the id the user and the inode's number.
const STATE_AT: usize = 1;
const UID_AT: usize = ID_AT + ID_BYTES + 12;
const INODE_AT: usize = ID_AT + ID_BYTES + 16;
/// An attribute: the id of the socket's cgroup.
const CGROUP_ID: u16 = 21;

/// An established connection, by one of its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connection {
    pub cookie: SockCookie,
    pub own: SocketAddr,
    pub peer: SocketAddr,
    pub uid: u32,
    /// The number by which /proc/PID/fd names the socket.
    pub inode: u32,
    /// 0: this kernel does not say.
    pub cgroup_id: u64,
}

/// The connections of a namespace.
#[derive(Debug, Default)]
pub(super) struct Connections {
    pub established: Vec<Connection>,
    listening: HashSet<SocketAddr>,
}

impl Connections {
    /// Lists those of the calling thread's namespace, `most` at most.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn list(most: usize) -> io::Result<Self> {
        let mut all = Self::default();
        for family in [AF_INET, AF_INET6] {
            all.add(family, most)?;
        }
        Ok(all)
    }

    fn add(&mut self, family: u8, most: usize) -> io::Result<()> {
        let mut kernel = open()?;
        let request = request(family, STATES, &[0; ID_BYTES], &[]);
        ask(&mut kernel, SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, &request)?;
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let read = kernel.read(&mut buffer)?;
            let mut rest = buffer.get(..read).unwrap_or_default();
            while let Some((kind, body, next)) = message(rest) {
                rest = next;
                match kind {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => return error_of(body),
                    _ => self.take(family, body, most),
                }
            }
        }
    }

    fn take(&mut self, family: u8, body: &[u8], most: usize) {
        let Some(connection) = connection(family, body) else {
            return;
        };
        match body.get(STATE_AT) {
            Some(&LISTEN) => {
                self.listening.insert(connection.own);
            }
            Some(&ESTABLISHED) if self.established.len() < most => {
                self.established.push(connection);
            }
            _ => {}
        }
    }

    /// The addresses at which somebody listens, in no order.
    pub(super) fn listening(&self) -> impl Iterator<Item = SocketAddr> {
        self.listening.iter().copied()
    }

    /// Whether the connection came to a socket of this namespace that listens: `own` is the database's side of it.
    pub(super) fn was_accepted(&self, connection: &Connection) -> bool {
        let port = connection.own.port();
        let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let here = [connection.own.ip()].into_iter().chain(any);
        let mut listens = here.map(|ip| self.listening.contains(&SocketAddr::new(ip, port)));
        listens.any(|listens| listens)
    }
}

fn connection(family: u8, body: &[u8]) -> Option<Connection> {
    let id = body.get(ID_AT..ID_AT + ID_BYTES)?;
    let word = |at: usize| Some(u32::from_ne_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let (own, peer) = (end(family, id, 0, 4)?, end(family, id, 2, 20)?);
    let mut cgroup_id = 0;
    let mut attributes = body.get(MESSAGE_BYTES..)?;
    while let Some((kind, value, next)) = next_attribute(attributes) {
        if kind == CGROUP_ID {
            cgroup_id = u64::from_ne_bytes(value.try_into().ok()?);
        }
        attributes = next;
    }
    Some(Connection {
        cookie: SockCookie(u64::from_ne_bytes(id.get(40..)?.try_into().ok()?)),
        own,
        peer,
        uid: word(UID_AT)?,
        inode: word(INODE_AT)?,
        cgroup_id,
    })
}

/// One end in a struct inet_diag_sockid; never IPv4-mapped.
fn end(family: u8, id: &[u8], port_at: usize, address_at: usize) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(id.get(port_at..port_at + 2)?.try_into().ok()?);
    let address: [u8; 16] = id.get(address_at..address_at + 16)?.try_into().ok()?;
    let ip: IpAddr = match family {
        AF_INET => Ipv4Addr::from(*address.first_chunk::<4>()?).into(),
        _ => Ipv6Addr::from(address).to_canonical(),
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        net::{TcpListener, TcpStream},
        os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    };

    #[test]
    fn both_ends_of_a_connection_are_listed_and_known_apart() {
        for (ip, to) in [
            ("127.0.0.1", "127.0.0.1"),
            ("::", "127.0.0.1"),
            ("::1", "::1"),
        ] {
            let listener = TcpListener::bind((ip, 0)).unwrap();
            let to: IpAddr = to.parse().unwrap();
            let to = SocketAddr::new(to, listener.local_addr().unwrap().port());
            let client = TcpStream::connect(to).unwrap();
            let accepted = listener.accept().unwrap().0;
            let all = Connections::list(usize::MAX).unwrap();
            let of = |socket: &TcpStream| {
                let cookie = socket2::SockRef::from(socket).cookie().unwrap();
                let mut all = all.established.iter();
                *all.find(|c| c.cookie.number() == cookie).unwrap()
            };
            let (near, far) = (of(&client), of(&accepted));
            assert_eq!((near.peer, near.own), (to, far.peer));
            assert_eq!(far.own, to);
            assert!(!all.was_accepted(&near) && all.was_accepted(&far), "{ip}");
            assert_eq!(near.uid, nix::unistd::geteuid().as_raw());
            let fd = format!("/proc/self/fd/{}", client.as_raw_fd());
            assert_eq!(u64::from(near.inode), std::fs::metadata(fd).unwrap().ino());
        }
    }
}
