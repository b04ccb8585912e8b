//! Bytes that went through the TCP sockets of a program, as the kernel counted them: `ss`
//! (iproute2) asks for `tcp_info` and names each socket's process.

use std::{collections::BTreeMap, fs, net::SocketAddr, process::Command};

use anyhow::{Context, ensure};

/// Bytes sent and received so far, by process.
#[derive(Clone, Debug, Default)]
pub struct Sockets(BTreeMap<u32, u64>);

impl Sockets {
    /// All of this network namespace's connected sockets, now.
    ///
    /// # Errors
    /// `ss` is missing or fails.
    pub fn now() -> anyhow::Result<Self> {
        let text = ss(&["--info", "--processes", "--oneline", "state", "connected"])?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut bytes = BTreeMap::new();
        for line in text.lines() {
            let count = |name: &str| {
                let mut words = line.split_whitespace();
                words.find_map(|word| word.strip_prefix(name)?.parse::<u64>().ok())
            };
            let through = count("bytes_sent:").unwrap_or(0) - count("bytes_retrans:").unwrap_or(0)
                + count("bytes_received:").unwrap_or(0);
            if let Some(pid) = owner(line) {
                *bytes.entry(pid).or_default() += through;
            }
        }
        Self(bytes)
    }

    /// Returns the bytes that these processes' sockets carried since then. Sockets that were closed
    /// in between are lost.
    pub fn since(&self, before: &Self, pids: &[u32]) -> u64 {
        let sum = |of: &Self| -> u64 { pids.iter().filter_map(|pid| of.0.get(pid)).sum() };
        sum(self).saturating_sub(sum(before))
    }
}

/// Reads the owner from `users:(("nginx",pid=7,fd=3),("nginx",pid=8,fd=3))`: the first holder
/// alone, or bytes would count twice.
fn owner(line: &str) -> Option<u32> {
    let (_, users) = line.split_once("users:((")?;
    let (_, rest) = users.split_once("pid=")?;
    rest.split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

/// A connected socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The socket's own address.
    pub local: SocketAddr,
    /// The address to which the packets go, whatever `getpeername()` says.
    pub remote: SocketAddr,
}

/// The connected sockets of a process, as the kernel sees them.
///
/// # Errors
/// `ss` is missing or fails.
pub fn connected(pid: u32) -> anyhow::Result<Vec<Socket>> {
    let text = ss(&["--processes", "state", "connected"])?;
    let of_it = text.lines().filter(|line| owner(line) == Some(pid));
    Ok(of_it.filter_map(socket).collect())
}

/// Reads the addresses from `ESTAB 0 0 127.0.0.1:1 127.0.0.1:2 …`.
fn socket(line: &str) -> Option<Socket> {
    let mut addresses = line.split_whitespace().skip(3).map(|word| {
        let address: SocketAddr = word.parse().ok()?;
        Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
    });
    Some(Socket {
        local: addresses.next()??,
        remote: addresses.next()??,
    })
}

/// The process that listens there, if it can be seen from here.
pub fn listener(address: SocketAddr) -> Option<u32> {
    let port = format!("sport = :{}", address.port());
    let text = ss(&["--listening", "--processes", &port]).ok()?;
    let pid = text.lines().find_map(owner)?;
    // Another host's database may have the port of one of ours.
    let is_local =
        address.ip().is_loopback() || local_addresses().contains(&address.ip().to_string());
    is_local.then_some(pid)
}

/// The output of `ss` on the TCP sockets of this network namespace, a line each.
fn ss(args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("ss")
        .args(["--tcp", "--no-header", "--numeric"])
        .args(args)
        .output()
        .context("cannot run ss (Debian's iproute2)")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ss: {}", complaint.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn local_addresses() -> String {
    // fib_trie: every address that is the host's own, as `|-- ADDRESS` before `/32 host LOCAL`.
    fs::read_to_string("/proc/net/fib_trie").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        process,
    };

    const TRIES: usize = 20;

    #[test]
    fn bytes_of_a_process_are_found() {
        let listener_socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener_socket.local_addr().unwrap();
        assert_eq!(listener(address), Some(process::id()));
        let mut client = TcpStream::connect(address).unwrap();
        let (mut server, _) = listener_socket.accept().unwrap();
        let socket = Socket {
            local: client.local_addr().unwrap(),
            remote: address,
        };
        assert!(connected(process::id()).unwrap().contains(&socket));
        let mut passed = || {
            let before = Sockets::now().unwrap();
            client.write_all(&[7; 10_000]).unwrap();
            server.read_exact(&mut [0; 10_000]).unwrap();
            let after = Sockets::now().unwrap();
            assert_eq!(after.since(&before, &[u32::MAX]), 0);
            after.since(&before, &[process::id()])
        };
        // Both ends are ours: sent by one, received by the other. Other tests have sockets of this process, too: one that is closed
        // meanwhile takes what it has counted along.
        assert!((0..TRIES).any(|_| passed() >= 20_000));
    }

    #[test]
    fn lines_of_ss() {
        let text = "ESTAB 0 0 127.0.0.1:1 127.0.0.1:2 users:((\"a b\",pid=7,fd=3),(\"a\",pid=8,fd=3)) \
                    cubic bytes_sent:100 bytes_retrans:10 bytes_acked:90 bytes_received:5\n\
                    ESTAB 0 0 127.0.0.1:2 127.0.0.1:1 users:((\"x\",pid=9,fd=1)) cubic\n\
                    ESTAB 0 0 127.0.0.1:3 127.0.0.1:1\n";
        let sockets = Sockets::parse(text);
        assert_eq!(sockets.0, BTreeMap::from([(7, 95), (9, 0)]));
    }
}
