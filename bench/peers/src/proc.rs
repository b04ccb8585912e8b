//! The kernel's knowledge of processes and of listening sockets.

use std::{
    collections::BTreeSet,
    fs, io,
    net::{IpAddr, SocketAddr},
};

/// The state `st` of a listening socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// Processes of the process group `group` that run (a zombie does not).
pub(crate) fn group_members(group: u32) -> io::Result<Vec<u32>> {
    let mut members = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // The process may have ended since the folder was read.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        if group_of(&stat) == Some(group) {
            members.push(pid);
        }
    }
    members.sort_unstable();
    Ok(members)
}

/// The process group in a line of `/proc/PID/stat`; None: it is dead.
fn group_of(stat: &str) -> Option<u32> {
    // The name stands in parentheses and may hold any character.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let _parent = fields.next()?;
    let group = fields.next()?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(group)
}

/// Returns those of `pids` that hold a socket which listens on `address`, or on its port and any
/// address, in this thread's network namespace.
pub(crate) fn listening(pids: &[u32], address: SocketAddr) -> io::Result<Vec<u32>> {
    let table = fs::read_to_string("/proc/thread-self/net/tcp")?;
    let sockets: BTreeSet<_> = listening_inodes(&table, address)
        .into_iter()
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    let holds = |pid: &u32| {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            return false;
        };
        descriptors
            .flatten()
            .filter_map(|descriptor| fs::read_link(descriptor.path()).ok())
            .any(|target| {
                target
                    .to_str()
                    .is_some_and(|target| sockets.contains(target))
            })
    };
    Ok(pids.iter().copied().filter(holds).collect())
}

fn listening_inodes(table: &str, address: SocketAddr) -> Vec<&str> {
    let IpAddr::V4(ip) = address.ip() else {
        return Vec::new();
    };
    let local = |ip: u32| format!("{ip:08X}:{:04X}", address.port());
    // The kernel prints the address's four bytes as one number of this machine's byte order.
    let wanted = [local(u32::from_ne_bytes(ip.octets())), local(0)];
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let (at, state) = (fields.nth(1)?, fields.nth(1)?);
            let inode = fields.nth(5)?;
            (state == LISTEN && wanted.iter().any(|wanted| wanted == at)).then_some(inode)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, process};

    use super::*;

    #[test]
    fn a_name_with_parentheses_hides_no_group() {
        assert_eq!(group_of("12 (a) S 7) (b) S 1 34 34 0"), Some(34));
        assert_eq!(group_of("12 (nginx) Z 1 34 34 0"), None);
        assert_eq!(group_of(""), None);
    }

    #[test]
    fn our_own_socket_is_ours() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let us = process::id();
        assert_eq!(listening(&[1, us], address).unwrap(), [us]);
        drop(listener);
        assert_eq!(listening(&[us], address).unwrap(), [0_u32; 0]);
    }

    #[test]
    fn a_connection_is_no_listener() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(address).unwrap();
        let us = process::id();
        assert!(
            listening(&[us], client.local_addr().unwrap())
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn a_group_has_its_members() {
        let group = nix::unistd::getpgrp().as_raw().cast_unsigned();
        assert!(group_members(group).unwrap().contains(&process::id()));
    }
}
