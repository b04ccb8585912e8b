//! The processes that have the sockets of connections open.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::PathBuf,
    sync::Arc,
};

use crate::host;

/// A process, as the connect hook would have seen it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub pid: u32,
    /// `/proc/PID/comm`.
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// From the mount's root.
    pub cgroup: PathBuf,
    pub cgroup_id: u64,
}

/// Finds who has the sockets with these inodes' numbers open: of several processes any one. Number 0 is of sockets that nobody
/// has accepted yet. The search ends when
/// all are found.
pub(super) fn of(inodes: HashSet<u32>) -> HashMap<u32, Arc<Owner>> {
    let mut wanted = inodes;
    wanted.remove(&0);
    let mut found = HashMap::new();
    let Ok(processes) = fs::read_dir("/proc") else {
        return found;
    };
    for process in processes.flatten() {
        if wanted.is_empty() {
            break;
        }
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let sockets: Vec<u32> = sockets_of(pid).filter(|s| wanted.contains(s)).collect();
        if sockets.is_empty() {
            continue;
        }
        // It may be gone by now.
        let Some(owner) = owner(pid).map(Arc::new) else {
            continue;
        };
        for socket in sockets {
            wanted.remove(&socket);
            found.insert(socket, owner.clone());
        }
    }
    found
}

/// The numbers of a process's sockets.
fn sockets_of(pid: u32) -> impl Iterator<Item = u32> {
    let open = fs::read_dir(format!("/proc/{pid}/fd"));
    let open = open.into_iter().flatten().flatten();
    open.filter_map(|file| {
        let target = fs::read_link(file.path()).ok()?;
        let number = target.to_str()?.strip_prefix("socket:[")?;
        number.strip_suffix(']')?.parse().ok()
    })
}

fn owner(pid: u32) -> Option<Owner> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let cgroup = host::cgroup_path(pid)?;
    let root = host::cgroup2_root().ok()??;
    let ids = host::ids(pid)?;
    Some(Owner {
        pid,
        uid: ids.uid,
        gid: ids.gid,
        name: name.trim_end_matches('\n').to_owned(),
        cgroup_id: host::cgroup_id(&root, &cgroup)?,
        cgroup,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        net::TcpListener,
        os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    };

    #[test]
    fn a_sockets_process_is_found() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = format!("/proc/self/fd/{}", socket.as_raw_fd());
        let inode = u32::try_from(fs::metadata(fd).unwrap().ino()).unwrap();
        let found = of(HashSet::from([inode, u32::MAX, 0]));
        let owner = &found[&inode];
        assert_eq!(owner.pid, std::process::id());
        let name = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(owner.name, name.trim_end());
        assert!(owner.cgroup.is_absolute());
        assert_eq!(owner.uid, nix::unistd::getuid().as_raw());
        assert_eq!(owner.gid, nix::unistd::getgid().as_raw());
        assert!(!found.contains_key(&u32::MAX));
    }
}
