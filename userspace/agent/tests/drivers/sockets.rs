//! Sockets of this process, as the kernel has them: no hook changes what is read here.

use std::{
    collections::HashSet,
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

/// Both ends of a connected TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelSocket {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

/// Every connected IPv4 socket that this process has open in the thread's namespace. /proc/PID/net/tcp, see proc_net_tcp.rst.
pub fn own_sockets() -> HashSet<KernelSocket> {
    const ESTABLISHED: &str = "01";
    let inodes = own_inodes();
    let table = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let sockets = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, remote, state, inode) = (fields[1], fields[2], fields[3], fields[9]);
        (state == ESTABLISHED && inodes.contains(inode)).then(|| KernelSocket {
            local: address(local),
            remote: address(remote),
        })
    });
    sockets.collect()
}

fn own_inodes() -> HashSet<String> {
    let files = fs::read_dir("/proc/self/fd").unwrap();
    let targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    targets
        .filter_map(|target| {
            let inode = target.to_str()?.strip_prefix("socket:[")?;
            Some(inode.strip_suffix(']')?.to_owned())
        })
        .collect()
}

/// `0100007F:2352`: the address as a number in the host's byte order, the port.
fn address(text: &str) -> SocketAddr {
    let (ip, port) = text.split_once(':').unwrap();
    let ip = u32::from_str_radix(ip, 16).unwrap().to_ne_bytes();
    let port = u16::from_str_radix(port, 16).unwrap();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::from(ip)), port)
}
