//! Threads that are in a network namespace.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::host::netns_inode;

/// A thread that was in a namespace when it was last looked at. While it still is, nobody else has to
/// be looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NetnsThread {
    pub pid: u32,
    pub tid: u32,
}

impl NetnsThread {
    pub(super) fn is_in(self, inode: u32) -> bool {
        netns_inode(&self.netns()) == Some(inode)
    }

    /// The path at which the thread's namespace can be opened.
    pub(super) fn netns(self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/task/{}/ns/net", self.pid, self.tid))
    }
}

/// The namespace's name, if `ip netns` has given it one.
pub(super) fn name_of(inode: u32) -> Option<String> {
    let mut names = fs::read_dir(policy::NETNS).ok()?.flatten();
    let is_it = |name: &fs::DirEntry| netns_inode(&name.path()) == Some(inode);
    names.find(is_it)?.file_name().into_string().ok()
}

/// Somebody in each of these namespaces but this process, as far as there is anybody. Processes first:
/// a thread is seldom where its process is not, and there are many.
pub(super) fn of_each(mut inodes: BTreeSet<u32>) -> BTreeMap<u32, NetnsThread> {
    let own = std::process::id();
    let mut found = BTreeMap::new();
    let pids: Vec<u32> = numbers(Path::new("/proc")).filter(|n| *n != own).collect();
    let mut look = |thread: NetnsThread, inodes: &mut BTreeSet<u32>| {
        if let Some(inode) = netns_inode(&thread.netns())
            && inodes.remove(&inode)
        {
            found.insert(inode, thread);
        }
    };
    for pid in &pids {
        let process = NetnsThread {
            pid: *pid,
            tid: *pid,
        };
        look(process, &mut inodes);
        if inodes.is_empty() {
            return found;
        }
    }
    for pid in pids {
        for tid in numbers(Path::new(&format!("/proc/{pid}/task"))) {
            look(NetnsThread { pid, tid }, &mut inodes);
        }
        if inodes.is_empty() {
            break;
        }
    }
    found
}

fn numbers(folder: &Path) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(folder).ok().into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use nix::{
        sched::{CloneFlags, unshare},
        unistd::gettid,
    };

    use super::*;

    #[test]
    fn this_process_is_no_witness_and_another_is() {
        let own = netns_inode(Path::new("/proc/self/ns/net")).unwrap();
        let found = of_each(BTreeSet::from([own]));
        // Whoever started this test.
        let thread = found.get(&own).unwrap();
        assert_ne!(thread.pid, std::process::id());
        assert!(thread.is_in(own));
    }

    #[test]
    fn a_thread_is_a_witness_for_as_long_as_it_is_there() {
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let running = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            tell.send(gettid().as_raw() as u32).unwrap();
            let _ = ended.recv();
        });
        let thread = NetnsThread {
            pid: std::process::id(),
            tid: told.recv().unwrap(),
        };
        let inode = netns_inode(&thread.netns()).unwrap();
        assert!(thread.is_in(inode));
        assert_eq!(name_of(inode), None);
        drop(end);
        running.join().unwrap();
        while thread.is_in(inode) {
            thread::yield_now();
        }
        assert_eq!(of_each(BTreeSet::from([inode])), BTreeMap::new());
    }
}
