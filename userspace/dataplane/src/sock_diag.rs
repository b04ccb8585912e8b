//! sock_diag(7): what the kernel tells of sockets that are not ours, and by which number it knows them.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};

const AF_NETLINK: i32 = 16;
const NETLINK_SOCK_DIAG: i32 = 4;
pub(crate) const AF_INET: u8 = 2;
pub(crate) const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;

/// linux/netlink.h
const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;
const NLMSG_HEADER_BYTES: usize = 16;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// Mask of an attribute's type without its flags.
const ATTRIBUTE_TYPE: u16 = 0x3fff;

/// linux/sock_diag.h, linux/inet_diag.h
pub(crate) const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// struct inet_diag_msg: family, state and two more; the id; five words.
const STATE_AT: usize = 1;
pub(crate) const ID_AT: usize = 4;
pub(crate) const ID_BYTES: usize = 48;
pub(crate) const MESSAGE_BYTES: usize = 72;
/// Offset of the cookie: the last eight bytes of the id; all ones ask for any.
const COOKIE_AT: usize = 40;
const ANY_COOKIE: [u8; 8] = [0xff; 8];

/// net/tcp_states.h
const ESTABLISHED: u8 = 1;
const SYN_RECV: u8 = 3;
const NEW_SYN_RECV: u8 = 12;

/// A dump comes in messages of at most this.
pub(crate) const BUFFER_BYTES: usize = 64 * 1024;
/// The kernel answers at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// A socket's own and its peer's addresses, and its cookie, as the kernel writes them.
pub(crate) type Id = [u8; ID_BYTES];

/// A way to ask, in the calling thread's network namespace.
pub(crate) fn open() -> io::Result<Socket> {
    let kernel = Socket::new(
        Domain::from(AF_NETLINK),
        Type::RAW,
        Some(Protocol::from(NETLINK_SOCK_DIAG)),
    )?;
    kernel.set_read_timeout(Some(PATIENCE))?;
    Ok(kernel)
}

/// The number of the connection between these addresses in the calling thread's namespace, which no
/// other socket ever has; None while its handshake is under way.
///
/// # Errors
/// `NotFound` when there is none.
pub(crate) fn cookie(own: SocketAddr, peer: SocketAddr) -> io::Result<Option<u64>> {
    let mut kernel = open()?;
    let family = if own.is_ipv4() { AF_INET } else { AF_INET6 };
    let request = request(family, u32::MAX, &id_of(own, peer), &[]);
    ask(&mut kernel, SOCK_DIAG_BY_FAMILY, 0, &request)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let read = kernel.read(&mut buffer)?;
    let answer = message(buffer.get(..read).unwrap_or_default());
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let (kind, body, _) = answer.ok_or_else(malformed)?;
    if kind == NLMSG_ERROR {
        error_of(body)?;
        return Err(malformed());
    }
    match body.get(STATE_AT).copied().ok_or_else(malformed)? {
        ESTABLISHED => {}
        SYN_RECV | NEW_SYN_RECV => return Ok(None),
        // A listening socket, which is what is left when there is no connection, or one that ends.
        _ => return Err(io::ErrorKind::NotFound.into()),
    }
    let cookie = body
        .get(ID_AT + COOKIE_AT..)
        .and_then(|rest| rest.first_chunk());
    Ok(Some(u64::from_ne_bytes(*cookie.ok_or_else(malformed)?)))
}

/// struct inet_diag_sockid: two ports, two addresses, a device, the cookie.
fn id_of(own: SocketAddr, peer: SocketAddr) -> Id {
    let mut bytes = Vec::with_capacity(ID_BYTES);
    bytes.extend(own.port().to_be_bytes());
    bytes.extend(peer.port().to_be_bytes());
    for ip in [own.ip(), peer.ip()] {
        match ip {
            IpAddr::V4(v4) => bytes.extend([v4.octets().as_slice(), &[0; 12]].concat()),
            IpAddr::V6(v6) => bytes.extend(v6.octets()),
        }
    }
    bytes.extend([0; 4]);
    bytes.extend(ANY_COOKIE);
    bytes.try_into().unwrap_or([0; ID_BYTES])
}

/// struct inet_diag_req_v2, and attributes.
pub(crate) fn request(family: u8, states: u32, id: &Id, attributes: &[u8]) -> Vec<u8> {
    let mut bytes = vec![family, IPPROTO_TCP, 0, 0];
    bytes.extend(states.to_ne_bytes());
    bytes.extend(id);
    bytes.extend(attributes);
    bytes
}

pub(crate) fn ask(kernel: &mut Socket, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    let bytes = (NLMSG_HEADER_BYTES + body.len()) as u32;
    let mut request = Vec::from(bytes.to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    // Sequence number, port: one question at a time, and the kernel knows who asks.
    request.extend([0; 8]);
    request.extend(body);
    kernel.write_all(&request)
}

/// The first message: what it is, its body, and what is behind it.
pub(crate) fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(NLMSG_HEADER_BYTES..length)?;
    Some((kind, body, behind(bytes, length)))
}

/// Splits the first attribute off: its type, its value, and the rest.
pub(crate) fn next_attribute(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
    let value = bytes.get(ATTRIBUTE_HEADER_BYTES..length)?;
    Some((kind & ATTRIBUTE_TYPE, value, behind(bytes, length)))
}

/// Each begins at a multiple of four.
fn behind(bytes: &[u8], length: usize) -> &[u8] {
    bytes.get(length.next_multiple_of(4)..).unwrap_or_default()
}

/// An attribute with this value, which must be a multiple of four bytes long, so that it needs no
/// padding.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = (ATTRIBUTE_HEADER_BYTES + value.len()) as u16;
    let mut bytes = Vec::from(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes
}

/// struct nlmsgerr begins with it; 0 is an acknowledgement.
pub(crate) fn error_of(body: &[u8]) -> io::Result<()> {
    let number = body.get(..4).and_then(|bytes| bytes.try_into().ok());
    match number.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(-error)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_is_known_by_its_addresses_and_no_other_for_it() {
        for ip in ["127.0.0.1", "::1"] {
            let listener = TcpListener::bind((ip, 0)).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            let own = accepted.local_addr().unwrap();
            let number = socket2::SockRef::from(&accepted).cookie().unwrap();
            assert_eq!(cookie(own, peer).unwrap(), Some(number), "{ip}");
            let number = socket2::SockRef::from(&client).cookie().unwrap();
            assert_eq!(cookie(peer, own).unwrap(), Some(number), "{ip}");
            drop((client, accepted));
            // Its listener is all that is left.
            let gone = cookie(own, SocketAddr::new(peer.ip(), 1)).unwrap_err();
            assert_eq!(gone.kind(), io::ErrorKind::NotFound, "{ip}");
        }
    }
}
