//! Other agents at the same cgroup: each would send the other's flows to itself.

use std::{
    fs::{self, File},
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use aya::maps::MapInfo;

use crate::{doctor::neighbours::Held, sys};

/// `BPF_CGROUP_INET4_CONNECT` (uapi/linux/bpf.h).
const CONNECT4: u32 = 10;

/// The connect hook's program, and a map that only an agent's uses.
const PROGRAM: &str = "connect4";
const MAP: &str = "netns_agents";

/// An agent whose connect hook is at a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rival {
    /// The process that is alive, or where a dead one's hook is pinned.
    pub who: String,
    /// Whether it is alive.
    pub is_alive: bool,
}

/// Finds an agent whose hook is at this very cgroup, and that is not one that has pinned beneath `pins`: those are
/// taken over.
pub(crate) fn at(cgroup: &File, pins: &Path) -> Option<Rival> {
    let attached = sys::attached_programs(cgroup.as_fd(), CONNECT4).unwrap_or_default();
    let mut others = attached.into_iter().filter(|id| is_an_agents(*id));
    let known = pinned(pins);
    let other = others.find(|id| !known.contains(id))?;
    // Looked up only now: it reads what every process has open.
    Some(match Held::of_program(other, pins) {
        Held::ByAgent(who) => Rival {
            who,
            is_alive: true,
        },
        Held::Otherwise(who) => Rival {
            who,
            is_alive: false,
        },
    })
}

/// The most cgroups beneath an agent's that are looked at: a host has some hundreds.
const MAX_BENEATH: usize = 4096;

/// Returns the cgroups beneath this one, the nearer ones first: at most [`MAX_BENEATH`].
pub(crate) fn beneath(cgroup: &Path) -> Vec<PathBuf> {
    let (mut found, mut at) = (vec![cgroup.to_owned()], 0);
    while let Some(folder) = found.get(at)
        && found.len() < MAX_BENEATH
    {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let paths: Vec<PathBuf> = folders.map(|entry| entry.path()).collect();
        found.extend(paths);
        at += 1;
    }
    found.truncate(MAX_BENEATH);
    found.split_off(1)
}

fn is_an_agents(program: u32) -> bool {
    let mut loaded = aya::programs::loaded_programs().flatten();
    let Some(info) = loaded.find(|info| info.id() == program) else {
        return false;
    };
    let maps = info.map_ids().ok().flatten().unwrap_or_default();
    let mut names = maps.into_iter().filter_map(|id| MapInfo::from_id(id).ok());
    info.name_as_str() == Some(PROGRAM) && names.any(|map| map.name_as_str() == Some(MAP))
}

/// The connect hooks' programs that are pinned beneath a folder of pins.
fn pinned(pins: &Path) -> Vec<u32> {
    let folders = fs::read_dir(pins).into_iter().flatten().flatten();
    let links = folders.filter_map(|folder| sys::open_pin(&folder.path().join(PROGRAM)).ok());
    links
        .filter_map(|link| crate::doctor::neighbours::program_of(link.as_fd()))
        .collect()
}
