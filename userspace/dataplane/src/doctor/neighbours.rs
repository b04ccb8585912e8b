//! Programs and sockmaps of others at the hooks that ours use: whose they are, where they are
//! attached, and which path they rule out.
//!
//! Ours are those that this process or one of the same name holds, those that are pinned where
//! agents pin, maps of such programs, and programs on such sockmaps. The kernel tells of a program by its
//! number; who holds it, its descriptors in `/proc` and the pins in bpffs do. What nobody holds may be on its way
//! out: the kernel frees it a moment after its last holder has gone, an ended canary's too. So it is looked at twice.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ffi::OsString,
    fs::{self, File},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use aya::{
    maps::{MapInfo, MapType},
    programs::ProgramInfo,
};

use super::{Finding, State, finding};
use crate::{host, sys};

/// Descriptors that are looked at, which takes a second or two.
const MAX_DESCRIPTORS: usize = 200_000;
/// Cgroups in which is looked what is attached.
const MAX_CGROUPS: usize = 2_000;
/// Pins that are opened, and folders above each.
const MAX_PINS: usize = 4_000;
const MAX_PIN_DEPTH: usize = 8;
/// Findings of a kind of program; further ones are counted.
const MAX_LISTED: usize = 16;

/// A type of programs (`BPF_PROG_TYPE_*` in uapi/linux/bpf.h), where such can be attached
/// (`BPF_CGROUP_*`), and what one of others means for flows.
struct Kind {
    number: u32,
    name: &'static str,
    hooks: &'static [(u32, &'static str)],
    state: State,
    rules_out: &'static str,
}

const KINDS: [Kind; 6] = [
    Kind {
        number: 8,
        name: "cgroup_skb",
        hooks: &[(0, "ingress"), (1, "egress")],
        state: State::Ok,
        rules_out: "rules out no path",
    },
    Kind {
        number: 13,
        name: "sock_ops",
        hooks: &[(3, "sock_ops")],
        state: State::Notice,
        rules_out: "splice and shortcut are refused for sockets that it puts into a sockmap",
    },
    Kind {
        number: 14,
        name: "sk_skb",
        hooks: &[],
        state: State::Notice,
        rules_out: "splice and shortcut are refused for sockets in its sockmap",
    },
    Kind {
        number: 16,
        name: "sk_msg",
        hooks: &[],
        state: State::Notice,
        rules_out: "splice and shortcut are refused for sockets in its sockmap",
    },
    Kind {
        number: 18,
        name: "cgroup_sock_addr",
        hooks: &[
            (10, "connect4"),
            (11, "connect6"),
            (8, "bind4"),
            (9, "bind6"),
            (14, "sendmsg4"),
            (15, "sendmsg6"),
            (19, "recvmsg4"),
            (20, "recvmsg6"),
            (29, "getpeername4"),
            (30, "getpeername6"),
            (31, "getsockname4"),
            (32, "getsockname6"),
        ],
        state: State::Notice,
        rules_out: "what it rewrites before our hooks look, rules do not see; what it rewrites \
                    behind them does not reach the agent: then enrich is lost",
    },
    Kind {
        number: 25,
        name: "cgroup_sockopt",
        hooks: &[(21, "getsockopt"), (22, "setsockopt")],
        state: State::Notice,
        rules_out: "rules out no path; it may answer SO_ORIGINAL_DST itself",
    },
];

/// Attach types of programs on a sockmap: `BPF_SK_SKB_STREAM_PARSER`, `BPF_SK_SKB_STREAM_VERDICT`,
/// `BPF_SK_MSG_VERDICT`, `BPF_SK_SKB_VERDICT`.
const SOCKMAP_HOOKS: [u32; 4] = [4, 5, 7, 38];

/// The time until things that nobody holds are looked at again.
const DYING: Duration = Duration::from_millis(300);

/// Programs and sockmaps that are loaded at one moment, and who holds them.
struct Loaded {
    programs: Vec<ProgramInfo>,
    sockmaps: Vec<MapInfo>,
    holders: Holders,
}

impl Loaded {
    fn list(pins: &Path) -> Result<Self, String> {
        let programs: Result<Vec<_>, _> = aya::programs::loaded_programs().collect();
        let maps: Result<Vec<_>, _> = aya::maps::loaded_maps().collect();
        let (programs, maps) = (
            programs.map_err(|e| unlisted(&e))?,
            maps.map_err(|e| unlisted(&e))?,
        );
        let sockmaps: Vec<_> = maps
            .into_iter()
            .filter(|map| sockmap_kind(map).is_some())
            .collect();
        let mut holders = Holders::find(pins);
        holders.find_more_of_ours(&programs, &sockmaps);
        Ok(Self {
            programs: programs
                .into_iter()
                .filter(|p| kind_of(p).is_some())
                .collect(),
            sockmaps,
            holders,
        })
    }

    /// Lists what is there, and what still is a moment later if some of it is held by nobody.
    fn settled(pins: &Path) -> Result<Self, String> {
        let first = Self::list(pins)?;
        let before: HashSet<Thing> = first.things().collect();
        if first.things().all(|thing| first.holders.is_held(thing)) {
            return Ok(first);
        }
        thread::sleep(DYING);
        let mut now = Self::list(pins)?;
        now.programs
            .retain(|program| before.contains(&Thing::Program(program.id())));
        now.sockmaps
            .retain(|map| before.contains(&Thing::Map(map.id())));
        Ok(now)
    }

    fn things(&self) -> impl Iterator<Item = Thing> {
        let programs = self.programs.iter().map(|p| Thing::Program(p.id()));
        programs.chain(self.sockmaps.iter().map(|m| Thing::Map(m.id())))
    }
}

fn kind_of(program: &ProgramInfo) -> Option<&'static Kind> {
    let number = program.program_type() as u32;
    KINDS.iter().find(|kind| kind.number == number)
}

fn sockmap_kind(map: &MapInfo) -> Option<&'static str> {
    match map.map_type() {
        Ok(MapType::SockMap) => Some("sockmap"),
        Ok(MapType::SockHash) => Some("sockhash"),
        _ => None,
    }
}

/// Programs that are attached to a sockmap. Kernels before 5.18 do not tell.
fn programs_on(map: &MapInfo) -> Vec<u32> {
    let Ok(fd) = map.fd() else { return Vec::new() };
    let on = |hook: &u32| sys::attached_programs(fd.as_fd(), *hook).unwrap_or_default();
    SOCKMAP_HOOKS.iter().flat_map(on).collect()
}

/// Looks at all of them. `pins`: where agents pin.
pub(super) fn look(pins: &Path) -> Vec<Finding> {
    let what = "other BPF programs";
    let Loaded {
        programs,
        sockmaps,
        holders,
    } = match Loaded::settled(pins) {
        Ok(loaded) => loaded,
        Err(unlisted) => return vec![finding(what, State::Notice, unlisted)],
    };
    let mut places = AttachPoints::default();
    let mut findings = Vec::new();
    for map in sockmaps {
        let Some(kind) = sockmap_kind(&map) else {
            continue;
        };
        let thing = Thing::Map(map.id());
        let name = numbered(map.name_as_str(), map.id());
        places.add_sockmap(&map, &name);
        if holders.is_ours(thing) {
            continue;
        }
        let detail = format!(
            "{name}, {}: flows whose client's socket is in it are relayed, and stay on TCP",
            holders.of(thing, None)
        );
        findings.push(finding(&format!("other {kind}"), State::Notice, detail));
    }
    let others: Vec<_> = programs
        .into_iter()
        .filter_map(|program| {
            let kind = kind_of(&program)?;
            let is_ours = holders.is_ours(Thing::Program(program.id()));
            (!is_ours).then_some((kind, program))
        })
        .collect();
    if others.iter().any(|(kind, _)| !kind.hooks.is_empty()) {
        places.look_at_cgroups();
    }
    let sockmaps = findings.len();
    for kind in &KINDS {
        let of_kind = others.iter().filter(|(k, _)| k.number == kind.number);
        let mut details: Vec<String> = of_kind
            .map(|(_, program)| {
                let id = program.id();
                let name = numbered(program.name_as_str(), id);
                let by = holders.of(Thing::Program(id), program.created_by_uid());
                let (at, rules_out) = (places.of(id), kind.rules_out);
                format!("{name}, {by}{at}: {rules_out}")
            })
            .collect();
        let more = details.len().saturating_sub(MAX_LISTED);
        details.truncate(MAX_LISTED);
        if more > 0 {
            details.push(format!("and {more} more"));
        }
        let what = format!("other {}", kind.name);
        findings.extend(details.into_iter().map(|d| finding(&what, kind.state, d)));
    }
    let summary = match (others.len(), sockmaps) {
        (0, 0) => finding(
            what,
            State::Ok,
            "none at hooks that ours use, and no sockmap",
        ),
        (programs, maps) => {
            let worst = findings.iter().any(|f| f.state != State::Ok);
            let state = if worst { State::Notice } else { State::Ok };
            let detail = format!("{programs} at hooks that ours use, {maps} sockmaps: below");
            finding(what, state, detail)
        }
    };
    [vec![summary], findings].concat()
}

fn unlisted(error: &dyn std::fmt::Display) -> String {
    format!("cannot be listed: {error}; run as root")
}

fn numbered(name: Option<&str>, id: u32) -> String {
    // Names are chosen by whoever loads them.
    let name = name.filter(|name| !name.is_empty()).unwrap_or("?");
    format!("{}#{id}", name.replace(char::is_control, "?"))
}

/// A program, map or link of the kernel's, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Thing {
    Program(u32),
    Map(u32),
}

/// Processes by the things that they keep loaded.
#[derive(Default)]
struct Holders {
    processes: HashMap<Thing, BTreeMap<u32, String>>,
    pins: HashMap<Thing, PathBuf>,
    ours: HashSet<Thing>,
}

/// Holders of a program, without which it would not be loaded.
pub(crate) enum Held {
    /// A running process of the same name as this one.
    ByAgent(String),
    /// Something else, or nothing.
    Otherwise(String),
}

impl Held {
    /// Looks for what keeps a program loaded.
    pub(crate) fn of_program(program: u32, pins: &Path) -> Self {
        let thing = Thing::Program(program);
        let holders = Holders::find(pins);
        let own = executable(std::process::id());
        let processes = holders.processes.get(&thing);
        let mut pids = processes.into_iter().flat_map(BTreeMap::keys);
        let is_agents = pids.any(|pid| own.is_some() && executable(*pid) == own);
        let words = holders.of(thing, None);
        match is_agents {
            true => Self::ByAgent(words),
            false => Self::Otherwise(words),
        }
    }
}

/// The program that a link attaches.
pub(crate) fn program_of(link: BorrowedFd<'_>) -> Option<u32> {
    let info = format!("/proc/self/fdinfo/{}", link.as_raw_fd());
    match thing_of(&fs::read_to_string(info).ok()?)? {
        Thing::Program(id) => Some(id),
        Thing::Map(_) => None,
    }
}

impl Holders {
    fn find(our_pins: &Path) -> Self {
        let mut holders = Self::default();
        holders.look_at_processes();
        let mut left = MAX_PINS;
        holders.look_at_pins(Path::new(host::BPFFS), our_pins, MAX_PIN_DEPTH, &mut left);
        if !our_pins.starts_with(host::BPFFS) {
            holders.look_at_pins(our_pins, our_pins, MAX_PIN_DEPTH, &mut left);
        }
        holders
    }

    fn look_at_processes(&mut self) {
        let own = executable(std::process::id());
        let mut left = MAX_DESCRIPTORS;
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        for pid in pids {
            let process = PathBuf::from(format!("/proc/{pid}"));
            // It may have ended.
            let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten();
            for descriptor in descriptors.flatten() {
                if left == 0 {
                    return;
                }
                left -= 1;
                let target = fs::read_link(descriptor.path()).unwrap_or_default();
                if !target.as_os_str().to_string_lossy().contains("bpf") {
                    continue;
                }
                let info = process.join("fdinfo").join(descriptor.file_name());
                let Some(thing) = thing_of(&fs::read_to_string(info).unwrap_or_default()) else {
                    continue;
                };
                if own.is_some() && executable(pid) == own {
                    self.ours.insert(thing);
                }
                let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
                let name = name.trim_end().replace(char::is_control, "?");
                self.processes.entry(thing).or_default().insert(pid, name);
            }
        }
    }

    fn look_at_pins(&mut self, folder: &Path, ours: &Path, depth: usize, left: &mut usize) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if *left == 0 {
                return;
            }
            *left -= 1;
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if depth > 0 {
                    self.look_at_pins(&path, ours, depth - 1, left);
                }
                continue;
            }
            let Ok(fd) = sys::open_pin(&path) else {
                continue;
            };
            let info = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
            let Some(thing) = thing_of(&fs::read_to_string(info).unwrap_or_default()) else {
                continue;
            };
            if path.starts_with(ours) {
                self.ours.insert(thing);
            }
            self.pins.entry(thing).or_insert(path);
        }
    }

    /// Notes that what our programs use and what is on our sockmaps is ours, although no process of ours has a descriptor of it:
    /// programs keep their maps loaded, and sockmaps their programs.
    fn find_more_of_ours(&mut self, programs: &[ProgramInfo], sockmaps: &[MapInfo]) {
        loop {
            let before = self.ours.len();
            for program in programs {
                if self.is_ours(Thing::Program(program.id())) {
                    let maps = program.map_ids().ok().flatten().unwrap_or_default();
                    self.ours.extend(maps.iter().copied().map(Thing::Map));
                }
            }
            for map in sockmaps {
                if self.is_ours(Thing::Map(map.id())) {
                    let on = programs_on(map).into_iter();
                    self.ours.extend(on.map(Thing::Program));
                }
            }
            if self.ours.len() == before {
                return;
            }
        }
    }

    fn is_held(&self, thing: Thing) -> bool {
        self.is_ours(thing) || self.processes.contains_key(&thing) || self.pins.contains_key(&thing)
    }

    fn is_ours(&self, thing: Thing) -> bool {
        self.ours.contains(&thing)
    }

    /// Describes who holds a program or map. `uid`: the user that loaded it.
    fn of(&self, thing: Thing, uid: Option<u32>) -> String {
        if let Some(processes) = self.processes.get(&thing) {
            let names = processes.iter().map(|(pid, name)| format!("{name}[{pid}]"));
            let shown: Vec<String> = names.take(4).collect();
            return format!("held by {}", shown.join(" "));
        }
        if let Some(pin) = self.pins.get(&thing) {
            return format!("pinned at {}", pin.display());
        }
        match uid {
            Some(uid) => format!("loaded by uid {uid}, held by no process"),
            None => "held by no process".into(),
        }
    }
}

/// The name of a process's executable file: agents of other versions and places are agents.
fn executable(pid: u32) -> Option<OsString> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = path.file_name()?.to_str()?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).into())
}

/// The thing that a descriptor's `fdinfo` tells of; of a link, the program that it attaches.
fn thing_of(info: &str) -> Option<Thing> {
    let number = |key: &str| {
        let mut lines = info.lines();
        let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        value.trim().parse().ok()
    };
    let program = number("prog_id").map(Thing::Program);
    program.or_else(|| number("map_id").map(Thing::Map))
}

/// Sockmaps and cgroups by the programs that are attached there.
#[derive(Default)]
struct AttachPoints(HashMap<u32, Vec<String>>);

impl AttachPoints {
    fn add(&mut self, programs: Vec<u32>, place: &str) {
        for program in programs {
            self.0.entry(program).or_default().push(place.to_owned());
        }
    }

    fn add_sockmap(&mut self, map: &MapInfo, name: &str) {
        self.add(programs_on(map), name);
    }

    fn look_at_cgroups(&mut self) {
        let Ok(Some(root)) = host::cgroup2_root() else {
            return;
        };
        let hooks = || KINDS.iter().flat_map(|kind| kind.hooks);
        let mut left = vec![root.clone()];
        for _ in 0..MAX_CGROUPS {
            let Some(cgroup) = left.pop() else { return };
            let Ok(folder) = File::open(&cgroup) else {
                continue;
            };
            let path = cgroup.strip_prefix(&root).unwrap_or(&cgroup);
            for (hook, name) in hooks() {
                let programs = sys::attached_programs(folder.as_fd(), *hook).unwrap_or_default();
                self.add(programs, &format!("/{} ({name})", path.display()));
            }
            let beneath = fs::read_dir(&cgroup).into_iter().flatten().flatten();
            let folders = beneath.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            left.extend(folders.map(|entry| entry.path()));
        }
    }

    /// Describes what a program is attached to.
    fn of(&self, program: u32) -> String {
        match self.0.get(&program).map(Vec::as_slice) {
            None | Some([]) => String::new(),
            Some([place]) => format!(", at {place}"),
            Some([place, rest @ ..]) => format!(", at {place} and {} more", rest.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_tell_what_they_are() {
        let program = "pos:\t0\nprog_type:\t13\nprog_id:\t12\nrun_cnt:\t0\n";
        let link = "link_type:\tcgroup\nlink_id:\t5\nprog_tag:\t00\nprog_id:\t7\ncgroup_id:\t1\n";
        let map = "map_type:\t18\nkey_size:\t8\nmap_id:\t9\nfrozen:\t0\n";
        assert_eq!(thing_of(program), Some(Thing::Program(12)));
        assert_eq!(thing_of(link), Some(Thing::Program(7)));
        assert_eq!(thing_of(map), Some(Thing::Map(9)));
        assert_eq!(thing_of("pos:\t0\n"), None);
    }

    #[test]
    fn holders_come_before_pins_and_pins_before_users() {
        let thing = Thing::Map(1);
        let mut holders = Holders::default();
        assert_eq!(
            holders.of(thing, Some(0)),
            "loaded by uid 0, held by no process"
        );
        holders.pins.insert(thing, "/sys/fs/bpf/x".into());
        assert_eq!(holders.of(thing, Some(0)), "pinned at /sys/fs/bpf/x");
        let processes = [(7, "a".to_owned()), (8, "b".to_owned())];
        holders.processes.insert(thing, processes.into());
        assert_eq!(holders.of(thing, None), "held by a[7] b[8]");
    }
}
