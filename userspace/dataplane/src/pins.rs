//! Where the connect hooks' links are pinned, so that they outlive the agent and a rule's
//! `fail` holds when it is dead. The other hooks serve intercepted flows only, which die
//! with the agent or have a keeper that holds their hooks, so they are not pinned.
//!
//! Each agent pins into a folder of its own beneath the root (1, 2, ...), attaches
//! everything, and only then removes its predecessor's: there is no moment without hooks,
//! and a crash at any point leaves folders that the next agent, or [`detach`], removes.
//! A lock on the root keeps it to one agent.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use aya::programs::links::PinnedLink;
use nix::fcntl::{Flock, FlockArg};
use thiserror::Error;

use crate::host;

/// Where links are pinned unless the configuration says otherwise.
pub const DEFAULT_PINS: &str = "/sys/fs/bpf/underpass";

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
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// One agent's pins. Dropped without [`Pins::release`], as by a crash, they stay.
pub(crate) struct Pins {
    root: PathBuf,
    own: PathBuf,
    predecessors: Vec<PathBuf>,
    _lock: Flock<File>,
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
        let predecessors = folders(root)?;
        let newest = predecessors
            .iter()
            .filter_map(|p| p.file_name()?.to_str()?.parse().ok());
        let own = root.join((newest.max().unwrap_or(0_u64) + 1).to_string());
        make_folder(&own)?;
        Ok(Self {
            root: root.to_owned(),
            own,
            predecessors,
            _lock: lock,
        })
    }

    /// Where a link of this name is pinned.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.own.join(name)
    }

    /// Detaches what a predecessor left behind. Returns whether there was anything.
    pub(crate) fn retire_predecessors(&mut self) -> Result<bool, PinsError> {
        for folder in &self.predecessors {
            remove_folder(folder)?;
        }
        Ok(!std::mem::take(&mut self.predecessors).is_empty())
    }

    /// Detaches everything of this agent.
    pub(crate) fn release(self) -> Result<(), PinsError> {
        remove_folder(&self.own)?;
        // What else lies there is not ours.
        match fs::remove_dir(&self.root) {
            Err(e) if e.kind() != io::ErrorKind::DirectoryNotEmpty => Err(at(&self.root)(e)),
            _ => Ok(()),
        }
    }
}

/// Removes the pins that a dead agent left beneath `root`, and with them its hooks. Returns
/// whether there were any.
///
/// # Errors
/// An agent that runs holds them; or the file system's.
pub fn detach(root: &Path) -> Result<bool, PinsError> {
    if !root.exists() {
        return Ok(false);
    }
    if !host::is_bpffs(root) {
        return Err(PinsError::NotBpffs(root.to_owned()));
    }
    let _lock = lock(root)?;
    for folder in folders(root)? {
        remove_folder(&folder)?;
    }
    fs::remove_dir(root).map_err(at(root))?;
    Ok(true)
}

fn lock(root: &Path) -> Result<Flock<File>, PinsError> {
    let folder = File::open(root).map_err(at(root))?;
    Flock::lock(folder, FlockArg::LockExclusiveNonblock)
        .map_err(|_| PinsError::Locked(root.to_owned()))
}

fn folders(root: &Path) -> Result<Vec<PathBuf>, PinsError> {
    let entries = fs::read_dir(root).map_err(at(root))?;
    entries
        .map(|e| e.map(|e| e.path()).map_err(at(root)))
        .collect()
}

fn make_folder(path: &Path) -> Result<(), PinsError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(at(path))
}

fn remove_folder(folder: &Path) -> Result<(), PinsError> {
    for pin in folders(folder)? {
        // The last reference: the kernel detaches at once when a descriptor is closed, and some
        // time later when a pin goes.
        let link = PinnedLink::from_pin(&pin);
        fs::remove_file(&pin).map_err(at(&pin))?;
        drop(link);
    }
    fs::remove_dir(folder).map_err(at(folder))
}

fn at(path: &Path) -> impl Fn(io::Error) -> PinsError {
    let path = path.to_owned();
    move |source| PinsError::Io {
        path: path.clone(),
        source,
    }
}
