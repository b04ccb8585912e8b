//! Pins of the edge: a folder beneath the agent's pins that outlives the agent. Its name says how the
//! maps are laid out, so that an agent that lays them out otherwise makes its own, and never reads
//! another's.

use std::{
    fs,
    path::{Path, PathBuf},
};

use aya::programs::links::{FdLink, PinnedLink};
use ebpf::abi;

use crate::{
    host,
    pins::{PinsError, at, make_folder, remove_folder},
};

const PREFIX: &str = "edge-";
const LINK: &str = "link-";

/// Whether a folder beneath the agent's pins is one of the edge's.
pub(crate) fn is_of_the_edge(folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(PREFIX))
}

/// The edge's pins.
pub(super) struct EdgePins {
    root: PathBuf,
    pub(super) own: PathBuf,
}

impl EdgePins {
    /// Makes the folder for maps with so many connections, unless it is there.
    pub(super) fn open(root: &Path, connections: u32) -> Result<Self, PinsError> {
        host::mount_bpffs().map_err(PinsError::Mount)?;
        let own = root.join(format!("{PREFIX}{:016x}", fingerprint(connections)));
        make_folder(&own)?;
        if !host::is_bpffs(root) {
            let _ = fs::remove_dir(&own);
            let _ = fs::remove_dir(root);
            return Err(PinsError::NotBpffs(root.to_owned()));
        }
        Ok(Self {
            root: root.to_owned(),
            own,
        })
    }

    /// The path at which a map is pinned.
    pub(super) fn map(&self, name: &str) -> PathBuf {
        self.own.join(name)
    }

    /// The path at which an interface's link is pinned.
    pub(super) fn link(&self, ifindex: u32) -> PathBuf {
        self.own.join(format!("{LINK}{ifindex}"))
    }

    /// All links of the edge, by the interface that they were made for; other layouts' come last.
    pub(super) fn links(&self) -> Result<Vec<(u32, PathBuf)>, PinsError> {
        let mut links = Self::links_beneath(&self.root)?;
        links.sort_by_key(|(_, path)| !path.starts_with(&self.own));
        Ok(links)
    }

    /// All links of the edge beneath an agent's pins.
    pub(super) fn links_beneath(root: &Path) -> Result<Vec<(u32, PathBuf)>, PinsError> {
        let mut links = Vec::new();
        for folder in edges(root)? {
            for entry in fs::read_dir(&folder).map_err(at(&folder))? {
                let path = entry.map_err(at(&folder))?.path();
                let name = path.file_name().and_then(|name| name.to_str());
                let ifindex = name.and_then(|name| name.strip_prefix(LINK)?.parse().ok());
                links.extend(ifindex.map(|ifindex| (ifindex, path)));
            }
        }
        Ok(links)
    }

    /// Removes what other layouts have left. Returns whether there was anything.
    pub(super) fn retire_others(&self) -> Result<bool, PinsError> {
        let others = edges(&self.root)?.into_iter().filter(|f| *f != self.own);
        let mut any = false;
        for folder in others {
            remove_folder(&folder)?;
            any = true;
        }
        Ok(any)
    }
}

/// The link that is pinned there.
pub(super) fn open_link(path: &Path) -> Option<FdLink> {
    Some(PinnedLink::from_pin(path).ok()?.into())
}

/// Removes the edge that an agent has left beneath `root`. Returns whether there was any.
pub(crate) fn remove(root: &Path) -> Result<bool, PinsError> {
    let folders = edges(root)?;
    for folder in &folders {
        remove_folder(folder)?;
    }
    Ok(!folders.is_empty())
}

fn edges(root: &Path) -> Result<Vec<PathBuf>, PinsError> {
    let mut edges = Vec::new();
    for entry in fs::read_dir(root).map_err(at(root))? {
        let path = entry.map_err(at(root))?.path();
        if is_of_the_edge(&path) {
            edges.push(path);
        }
    }
    Ok(edges)
}

/// FNV-1a over every layout of the edge, its version, and the table's size.
fn fingerprint(connections: u32) -> u64 {
    let of_the_edge = abi::LAYOUT.iter().filter(|l| l.0.starts_with("up_edge_"));
    let layouts: Vec<_> = of_the_edge.collect();
    let text = format!("{layouts:?} {} {connections}", abi::EDGE_VERSION);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}
