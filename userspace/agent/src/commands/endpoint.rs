//! Where the command line finds the agent, and whether it is root who answers there.
//!
//! Any user can listen at a free port, or at a socket in a folder of his own, and answer as an agent would.

use std::{
    fmt, fs,
    io::ErrorKind,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    str::FromStr,
};

use super::whereabouts::Named;
use anyhow::{anyhow, bail};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// `st` of a listening socket in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// The admin interface: a socket's path, or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The admin socket.
    Socket(PathBuf),
    /// `agent.admin`.
    Tcp(SocketAddr),
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // No address has one.
        if text.contains('/') {
            return Ok(Self::Socket(text.into()));
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Tcp(address));
        }
        let found = text.to_socket_addrs().map(|mut found| found.next());
        let why = match found {
            Ok(Some(address)) => return Ok(Self::Tcp(address)),
            Ok(None) => "the name has no address".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(format!(
            "expected the path of a socket, or an address or name and a port: {why}"
        ))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

/// Connects to a socket of the agent. `named`: what has named it.
///
/// # Errors
/// Nobody listens there, this user may not, or it is not root who listens.
pub(super) fn connect(socket: &Path, named: &Named) -> anyhow::Result<UnixStream> {
    let at = format!("{}{named}", socket.display());
    let option = named.option();
    let stream = UnixStream::connect(socket).map_err(|error| match (error.kind(), option) {
        (ErrorKind::PermissionDenied, "--control") => {
            anyhow!("only root may open {at}: run as root")
        }
        (ErrorKind::PermissionDenied, _) => {
            anyhow!(
                "only root and the group `underpass` may open {at}: run as root, or join the group"
            )
        }
        (ErrorKind::NotFound | ErrorKind::ConnectionRefused, _) => {
            anyhow!("no agent answers at {at}: start one, or name its socket by {option}")
        }
        _ => anyhow!("cannot open {at}: {error}"),
    })?;
    let listener = getsockopt(&stream, PeerCredentials)?.uid();
    if listener != 0 {
        bail!("{at} is a socket of uid {listener}, not of root: it is no agent's; check {option}");
    }
    Ok(stream)
}

/// Connects to the admin interface on TCP.
///
/// # Errors
/// Nobody listens there, or, on this host, it is not root who listens.
pub(super) fn connect_tcp(address: SocketAddr, named: &Named) -> anyhow::Result<TcpStream> {
    let nobody = || {
        anyhow!(
            "no agent answers at {address}{named}: start one, or name its admin address by --admin"
        )
    };
    let stream = TcpStream::connect(address).map_err(|_| nobody())?;
    if !is_this_hosts(address.ip()) {
        eprintln!("warning: {address} is on another host: who answers there cannot be told");
        return Ok(stream);
    }
    match owner_of_listener(address) {
        None => Err(nobody()),
        Some(0) => Ok(stream),
        Some(uid) => {
            bail!("uid {uid} listens at {address}{named}, not root: it is no agent; check --admin")
        }
    }
}

/// A socket can have only an address of this host.
fn is_this_hosts(ip: IpAddr) -> bool {
    ip.is_unspecified() || TcpListener::bind((ip, 0)).is_ok()
}

/// The user whose socket listens at an address, or at every address with this port.
fn owner_of_listener(address: SocketAddr) -> Option<u32> {
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    let tables = tables.map(|table| fs::read_to_string(table).unwrap_or_default());
    let mut owners = tables
        .iter()
        .flat_map(|table| table.lines().skip(1))
        .filter_map(|line| listener(line, address));
    let first = owners.next()?;
    // Several may share a port, and any of them may have answered.
    Some(owners.fold(first, u32::max))
}

/// The owner, if a line of the table is of a socket that listens there.
fn listener(line: &str, address: SocketAddr) -> Option<u32> {
    let mut fields = line.split_ascii_whitespace();
    let (local, state) = (fields.nth(1)?, fields.nth(1)?);
    let uid = fields.nth(3)?.parse().ok()?;
    let (ip, port) = local.split_once(':')?;
    let is_there = u16::from_str_radix(port, 16).ok()? == address.port();
    let ip = parse_ip(ip)?;
    let holds = ip.is_unspecified() || ip.to_canonical() == address.ip().to_canonical();
    (state == LISTENS && is_there && holds).then_some(uid)
}

/// Words of 32 bits, each in this host's byte order.
fn parse_ip(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let word = u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    match hex.len() {
        8 => Some(IpAddr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Some(IpAddr::from(bytes))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_path_or_an_address_or_a_name() {
        let parse = |text: &str| text.parse::<Endpoint>();
        for path in ["/run/x", "./x", "run/x"] {
            assert_eq!(parse(path), Ok(Endpoint::Socket(path.into())));
        }
        assert_eq!(
            parse("[::1]:9"),
            Ok(Endpoint::Tcp("[::1]:9".parse().unwrap()))
        );
        let Ok(Endpoint::Tcp(address)) = parse("localhost:9") else {
            panic!("a name of every host")
        };
        assert!(address.ip().is_loopback() && address.port() == 9);
        for wrong in ["x", "localhost", "127.0.0.1", "nowhere.invalid:9"] {
            let said = parse(wrong).unwrap_err();
            assert!(
                said.starts_with("expected the path of a socket, or an address"),
                "{said}"
            );
        }
    }

    #[test]
    fn whoever_listens_is_found() {
        let own = nix::unistd::geteuid().as_raw();
        for at in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(at) else {
                continue;
            };
            let mut address = listener.local_addr().unwrap();
            if address.ip().is_unspecified() {
                address.set_ip([127, 0, 0, 1].into());
            }
            assert_eq!(owner_of_listener(address), Some(own), "{at}");
            drop(listener);
            assert_eq!(owner_of_listener(address), None, "{at}");
        }
    }

    #[test]
    fn addresses_of_this_host_are_known() {
        assert!(is_this_hosts([127, 0, 0, 1].into()));
        assert!(!is_this_hosts([192, 0, 2, 77].into()));
    }
}
