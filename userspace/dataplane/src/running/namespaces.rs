//! The network namespaces in which running connections are looked for: the agent's own, and those of other processes.

use std::{
    collections::{HashMap, HashSet},
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use crate::{host, netns_handle::NetnsHandle};

/// Namespaces besides the agent's own that are looked at, at most. To list the connections of one takes a millisecond on a host
/// whose table of connections is large.
const MAX_LOOKED_AT: usize = 1_024;

/// The capability without which `/proc` does not show the namespaces of other users' processes (capability.h).
const CAP_SYS_PTRACE: u32 = 19;

/// Processes by which a namespace can be entered, at most: one may end at any moment.
const MAX_PATHS: usize = 4;

/// A network namespace, by where it can be entered.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Where `/proc` shows it. Empty: it is the calling thread's.
    paths: Vec<PathBuf>,
    /// The number of its inode, if `/proc` shows it.
    pub inode: Option<u32>,
}

impl Place {
    /// The calling thread's namespace.
    pub(super) fn own() -> Self {
        Self {
            paths: Vec::new(),
            inode: host::own_netns_inode(),
        }
    }

    /// Whether it is the calling thread's.
    pub(super) fn is_own(&self) -> bool {
        self.paths.is_empty()
    }

    /// Does something there.
    ///
    /// # Errors
    /// The namespace cannot be entered, nobody is there any more (`NotFound`), and what `body` has.
    pub(super) fn within<T: Send>(
        &self,
        body: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        self.open()?.within(body)
    }

    fn open(&self) -> io::Result<NetnsHandle> {
        if self.is_own() {
            return NetnsHandle::open(None);
        }
        let mut failed = ErrorKind::NotFound.into();
        for path in &self.paths {
            match NetnsHandle::open(Some(path)) {
                // Another process may have the number by now.
                Ok(handle) if handle.inode() != self.inode => {}
                Err(_) if is_gone(path) => {}
                Err(error) => failed = error,
                Ok(handle) => return Ok(handle),
            }
        }
        Err(failed)
    }
}

/// The namespaces of this host's processes.
#[derive(Debug)]
pub(super) struct Places {
    /// The calling thread's is the first.
    pub places: Vec<Place>,
    /// The number of those beyond [`MAX_LOOKED_AT`], and one more if this process may not look at those of others.
    pub unseen: usize,
}

impl Places {
    /// Finds them. One in which only threads are, and no process, is not found.
    pub(super) fn find() -> Self {
        let own = Place::own();
        let mut known: HashMap<u32, usize> =
            own.inode.map(|inode| (inode, 0)).into_iter().collect();
        let (mut places, mut unseen) = (vec![own], HashSet::new());
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = process.file_name();
            if !name.as_encoded_bytes().iter().all(u8::is_ascii_digit) {
                continue;
            }
            let path = process.path().join("ns/net");
            // None: it has ended, or may not be looked at.
            let Some(inode) = host::netns_inode(&path) else {
                continue;
            };
            match known.get(&inode).copied() {
                Some(number) => {
                    let wants =
                        |place: &&mut Place| !place.is_own() && place.paths.len() < MAX_PATHS;
                    if let Some(place) = places.get_mut(number).filter(wants) {
                        place.paths.push(path);
                    }
                }
                None if places.len() > MAX_LOOKED_AT => {
                    unseen.insert(inode);
                }
                None => {
                    known.insert(inode, places.len());
                    places.push(Place {
                        paths: vec![path],
                        inode: Some(inode),
                    });
                }
            }
        }
        Self {
            places,
            unseen: unseen.len() + usize::from(!host::is_capable(CAP_SYS_PTRACE)),
        }
    }
}

/// Whether the process has ended whose namespace this is. (The kernel says of such a one that it may not be looked at.)
fn is_gone(path: &Path) -> bool {
    let process = path.ancestors().nth(2);
    process.is_some_and(|process| !process.exists())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    #[test]
    fn the_namespace_of_a_process_is_found_once_and_ones_own_is_the_first() {
        let (mut started, inode) = std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNET).unwrap();
                let started = Command::new("sleep").arg("60").spawn().unwrap();
                (started, host::own_netns_inode().unwrap())
            });
            there.join().unwrap()
        });
        let Places { places, unseen } = Places::find();
        let is_it = |place: &&Place| place.inode == Some(inode);
        let there = places.iter().find(is_it);
        let inode_there = there.map(|place| place.within(|| Ok(host::own_netns_inode())));
        started.kill().unwrap();
        started.wait().unwrap();
        assert_eq!(inode_there.unwrap().unwrap(), Some(inode));
        assert_eq!(places.iter().filter(is_it).count(), 1);
        assert_eq!(places[0].inode, host::own_netns_inode());
        assert_eq!(places.iter().filter(|place| place.is_own()).count(), 1);
        assert_eq!(unseen, 0);
        // Nobody is there any more.
        let entered = there.unwrap().within(|| Ok(()));
        assert_eq!(entered.unwrap_err().kind(), ErrorKind::NotFound);
    }
}
