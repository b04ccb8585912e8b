//! Pins of an agent: the connect hooks' links, so that they outlive the agent and a rule's `fail` holds
//! when it is dead; and what flows need that go straight to a backend, which no agent carries:
//! getpeername()'s hooks and the map that they read. The other hooks serve intercepted flows only,
//! which die with the agent or have a keeper that holds their hooks, so they are not pinned.
//!
//! Each agent pins into a folder of its own beneath the root (1, 2, ...), attaches
//! everything, and only then removes its predecessor's: there is no moment without hooks,
//! and a crash at any point leaves folders that the next agent, or [`crate::detach`], removes.
//! A lock on the root keeps it to one agent. An agent that takes over from one that runs shares the
//! lock, and the links of the connect hooks, whose programs are exchanged. The edge's folder lies beside them and is not
//! theirs: it outlives agents ([`crate::edge`]).

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, symlink},
    path::{Path, PathBuf},
};

use aya::programs::links::PinnedLink;
use thiserror::Error;

use crate::{host, sys};

/// The folder in which links are pinned unless the configuration says otherwise.
pub const DEFAULT_PINS: &str = "/sys/fs/bpf/underpass";

/// Prefix of the folders of the edge's pins, which lie beside the agents' own.
pub(crate) const EDGE_PREFIX: &str = "edge-";
/// Prefix of a folder's links to network namespaces.
const NETNS_PREFIX: &str = "netns_";

/// Why the pins cannot be used.
#[derive(Debug, Error)]
pub enum PinsError {
    /// bpffs.
    #[error("cannot mount bpffs at {root}: {0}; run as root", root = host::BPFFS)]
    Mount(io::Error),
    /// Not on a bpffs.
    #[error("{0} is not on a bpffs; use a path beneath {root}", root = host::BPFFS)]
    NotBpffs(PathBuf),
    /// Another agent.
    #[error("another underpass holds {0}; stop it first, or give this one `pins` of its own")]
    Locked(PathBuf),
    /// Anything else.
    #[error("cannot use {path}: {source}")]
    Io {
        /// Path of the file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The pins of one agent. Dropped without [`Pins::release`], as by a crash, they stay.
pub(crate) struct Pins {
    root: PathBuf,
    own: PathBuf,
    predecessors: Vec<PathBuf>,
    /// None once another agent has taken over.
    lock: Option<File>,
}

impl Pins {
    pub(crate) fn claim(root: &Path) -> Result<Self, PinsError> {
        host::mount_bpffs().map_err(PinsError::Mount)?;
        make_folder(root)?;
        if !host::is_bpffs(root) {
            let _ = fs::remove_dir(root);
            return Err(PinsError::NotBpffs(root.to_owned()));
        }
        let lock = lock(root)?;
        Self::beside(root, lock)
    }

    /// The pins of an agent that takes over from one that runs. `lock`: that one's, which both hold from now on.
    pub(crate) fn share(root: &Path, lock: File) -> Result<Self, PinsError> {
        Self::beside(root, lock)
    }

    fn beside(root: &Path, lock: File) -> Result<Self, PinsError> {
        let mut predecessors = folders(root)?;
        predecessors.retain(|folder| !is_of_the_edge(folder));
        let newest = predecessors
            .iter()
            .filter_map(|p| p.file_name()?.to_str()?.parse().ok());
        let own = root.join((newest.max().unwrap_or(0_u64) + 1).to_string());
        make_folder(&own)?;
        Ok(Self {
            root: root.to_owned(),
            own,
            predecessors,
            lock: Some(lock),
        })
    }

    /// Another descriptor of the lock, for an agent that takes over.
    pub(crate) fn lock(&self) -> io::Result<File> {
        let lock = self.lock.as_ref().ok_or(io::ErrorKind::NotFound)?;
        lock.try_clone()
    }

    /// Whether another agent has taken over.
    pub(crate) fn are_handed_over(&self) -> bool {
        self.lock.is_none()
    }

    /// Leaves the pins to another agent. Links that this process holds stay attached until it ends, or the kernel's
    /// reference to them goes.
    pub(crate) fn hand_over(&mut self) -> Result<(), PinsError> {
        // Closed and not unlocked: the lock is the other agent's, too.
        self.lock = None;
        match self.own.exists() {
            true => remove_folder(&self.own),
            false => Ok(()),
        }
    }

    /// Detaches what an agent has left that was to take over.
    pub(crate) fn remove_successors(&self) -> Result<(), PinsError> {
        let mut others = folders(&self.root)?;
        others.retain(|folder| *folder != self.own && !is_of_the_edge(folder));
        others.iter().try_for_each(|folder| remove_folder(folder))
    }

    /// The path of a pin of this name that the latest predecessor has left.
    pub(crate) fn inherited(&self, name: &str) -> Option<PathBuf> {
        let number = |folder: &&PathBuf| folder.file_name()?.to_str()?.parse::<u64>().ok();
        let latest = self.predecessors.iter().max_by_key(number)?;
        Some(latest.join(name)).filter(|pin| pin.exists())
    }

    /// The path at which a link of this name is pinned.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.own.join(name)
    }

    /// Keeps the path of the network namespace with this number, in which something is about to be made.
    pub(crate) fn remember_netns(&self, number: u32, netns: &Path) -> Result<(), PinsError> {
        let link = self.path(&format!("{NETNS_PREFIX}{number}"));
        let made = std::path::absolute(netns).and_then(|netns| symlink(netns, &link));
        made.map_err(at(&link))
    }

    /// Detaches what a predecessor left behind. If there was anything, returns the network namespaces in
    /// which there may be more.
    pub(crate) fn retire_predecessors(&mut self) -> Result<Option<Vec<PathBuf>>, PinsError> {
        let mut touched = Vec::new();
        // One that handed over has removed its own.
        for folder in self.predecessors.iter().filter(|folder| folder.exists()) {
            touched.extend(namespaces(folder)?);
            remove_folder(folder)?;
        }
        let any = !std::mem::take(&mut self.predecessors).is_empty();
        Ok(any.then_some(touched))
    }

    /// Detaches everything of this agent.
    pub(crate) fn release(self) -> Result<(), PinsError> {
        if self.are_handed_over() {
            return Ok(());
        }
        remove_folder(&self.own)?;
        // What else lies there is not ours.
        match fs::remove_dir(&self.root) {
            Err(e) if e.kind() != io::ErrorKind::DirectoryNotEmpty => Err(at(&self.root)(e)),
            _ => Ok(()),
        }
    }
}

/// Locks the folder until the last descriptor of the lock is closed.
pub(crate) fn lock(root: &Path) -> Result<File, PinsError> {
    let folder = File::open(root).map_err(at(root))?;
    let locked = sys::lock(&folder);
    locked.map_err(|_| PinsError::Locked(root.to_owned()))?;
    Ok(folder)
}

/// The namespaces that an agent has kept in its folder.
pub(crate) fn namespaces(folder: &Path) -> Result<Vec<PathBuf>, PinsError> {
    let pins = folders(folder)?;
    Ok(pins
        .iter()
        .filter_map(|pin| remembered_netns(pin))
        .collect())
}

/// The network namespace that a pin is the memory of, if it is one.
fn remembered_netns(pin: &Path) -> Option<PathBuf> {
    let name = pin.file_name().and_then(|name| name.to_str());
    name.filter(|name| name.starts_with(NETNS_PREFIX))
        .and_then(|_| fs::read_link(pin).ok())
}

/// Whether a folder beneath the agent's pins is one of the edge's.
pub(crate) fn is_of_the_edge(folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(EDGE_PREFIX))
}

pub(crate) fn folders(root: &Path) -> Result<Vec<PathBuf>, PinsError> {
    let entries = fs::read_dir(root).map_err(at(root))?;
    entries
        .map(|e| e.map(|e| e.path()).map_err(at(root)))
        .collect()
}

pub(crate) fn make_folder(path: &Path) -> Result<(), PinsError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(at(path))
}

pub(crate) fn remove_folder(folder: &Path) -> Result<(), PinsError> {
    for pin in folders(folder)? {
        // The last reference: the kernel detaches at once when a descriptor is closed, and some
        // time later when a pin goes.
        let link = PinnedLink::from_pin(&pin);
        fs::remove_file(&pin).map_err(at(&pin))?;
        drop(link);
    }
    fs::remove_dir(folder).map_err(at(folder))
}

pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> PinsError {
    let path = path.to_owned();
    move |source| PinsError::Io {
        path: path.clone(),
        source,
    }
}
