//! The sockets of a process, as its kernel sees them: `/proc/PID/net/tcp` (proc_net_tcp.rst).

use std::{
    collections::HashSet,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use anyhow::Context;

/// ESTABLISHED, in the table's third column.
const ESTABLISHED: &str = "01";

/// A connected socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The socket's own address.
    pub local: SocketAddr,
    /// The address to which the packets go, whatever `getpeername()` says.
    pub remote: SocketAddr,
}

/// The connected TCP sockets of a process.
pub fn of(pid: u32) -> anyhow::Result<Vec<Socket>> {
    let inodes = inodes(pid).with_context(|| format!("the descriptors of process {pid}"))?;
    let mut sockets = Vec::new();
    for table in ["tcp", "tcp6"] {
        // Without IPv6 there is no second table.
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/net/{table}")) else {
            continue;
        };
        let rows = text.lines().filter_map(row);
        sockets.extend(
            rows.filter(|(_, inode)| inodes.contains(inode))
                .map(|(s, _)| s),
        );
    }
    Ok(sockets)
}

fn inodes(pid: u32) -> std::io::Result<HashSet<String>> {
    let mut inodes = HashSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        // The descriptor may have been closed meanwhile.
        let Ok(target) = fs::read_link(entry?.path()) else {
            continue;
        };
        let target = target.to_string_lossy();
        let inode = target
            .strip_prefix("socket:[")
            .and_then(|t| t.strip_suffix(']'));
        inodes.extend(inode.map(str::to_owned));
    }
    Ok(inodes)
}

/// A row of the table, if it is of a connected socket; with its inode.
fn row(line: &str) -> Option<(Socket, String)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    if *fields.get(3)? != ESTABLISHED {
        return None;
    }
    let socket = Socket {
        local: address(fields.get(1)?)?,
        remote: address(fields.get(2)?)?,
    };
    Some((socket, (*fields.get(9)?).to_owned()))
}

/// Hexadecimal: words of the address as the CPU reads them, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words = (0..address.len() / 8)
        .map(|n| {
            let word = address.get(n * 8..n * 8 + 8)?;
            Some(u32::from_str_radix(word, 16).ok()?.to_ne_bytes())
        })
        .collect::<Option<Vec<_>>>()?;
    let bytes = words.concat();
    let ip = match (<[u8; 4]>::try_from(&*bytes), <[u8; 16]>::try_from(&*bytes)) {
        (Ok(v4), _) => IpAddr::V4(Ipv4Addr::from(v4)),
        (_, Ok(v6)) => IpAddr::V6(Ipv6Addr::from(v6)).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn our_own_socket_is_found() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(any) else {
                continue;
            };
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let socket = Socket {
                local: stream.local_addr().unwrap(),
                remote: stream.peer_addr().unwrap(),
            };
            let found = of(std::process::id()).unwrap();
            assert!(found.contains(&socket), "{socket:?} is not among {found:?}");
        }
    }

    #[test]
    fn others_and_listeners_are_not_rows() {
        let listening = "0: 0100007F:2352 00000000:0000 0A 0 0 0 0 0 0 123 1";
        assert_eq!(row(listening), None);
        assert_eq!(row("  sl  local_address rem_address   st"), None);
        assert_eq!(row(""), None);
    }
}
