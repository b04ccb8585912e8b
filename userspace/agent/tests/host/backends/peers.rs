//! The peer that the kernel has really connected a socket to, whatever getpeername(2) says.

use std::{
    collections::HashMap,
    fs,
    net::{IpAddr, SocketAddr, TcpStream},
    os::fd::AsFd,
};

/// Peers of the sockets in the table of the calling thread's namespace: /proc/PID/net/tcp, see proc_net_tcp.rst.
pub fn of(sockets: &[&TcpStream]) -> Vec<SocketAddr> {
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    let tables = tables.map(|table| fs::read_to_string(table).unwrap());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let by_inode: HashMap<u64, &str> = lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .map(|fields| (fields[9].parse().unwrap(), fields[2]))
        .collect();
    let inode = |socket: &&TcpStream| nix::sys::stat::fstat(socket.as_fd()).unwrap().st_ino;
    sockets
        .iter()
        .map(|socket| address(by_inode[&inode(socket)]))
        .collect()
}

/// Words as this machine has them in memory, in hexadecimal, and the port.
fn address(text: &str) -> SocketAddr {
    let (ip, port) = text.split_once(':').unwrap();
    let word = |at: usize| {
        u32::from_str_radix(&ip[at..at + 8], 16)
            .unwrap()
            .to_ne_bytes()
    };
    let octets: Vec<u8> = (0..ip.len()).step_by(8).flat_map(word).collect();
    let ip = match <[u8; 4]>::try_from(octets.as_slice()) {
        Ok(v4) => IpAddr::from(v4),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(octets.as_slice()).unwrap()),
    };
    SocketAddr::new(ip.to_canonical(), u16::from_str_radix(port, 16).unwrap())
}
