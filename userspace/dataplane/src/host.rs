//! Facts about this host: where cgroup2 and bpffs are mounted, which namespace this is.

use std::{
    fs::{self, File},
    io,
    net::{Ipv4Addr, UdpSocket},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns},
    sys::statfs::{BPF_FS_MAGIC, CGROUP2_SUPER_MAGIC, statfs},
    unistd::{SysconfVar, sysconf},
};

use crate::sys;

/// The mount point that bpffs belongs at.
pub const BPFFS: &str = "/sys/fs/bpf";

/// Returns this host's name, or nothing if it has none.
pub fn hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_end().to_owned()
}

/// The root of the cgroup2 hierarchy: not `/sys/fs/cgroup` on hosts that also mount v1.
/// None when none is mounted.
pub fn cgroup2_root() -> io::Result<Option<PathBuf>> {
    Ok(cgroup2_in(&fs::read_to_string("/proc/self/mountinfo")?))
}

/// Says why [`cgroup2_root`] finds none, and what to do.
///
/// # Errors
/// `/proc` is not there.
pub fn no_cgroup2() -> io::Result<&'static str> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(match mounts.contains(" - cgroup2 ") {
        false => {
            "no cgroup2 is mounted: run `mount -t cgroup2 none /sys/fs/cgroup/unified`; in a container, mount the host's /sys/fs/cgroup"
        }
        true => {
            "cgroup2 is mounted, but not from its root on, as in a container with a cgroup namespace of its own: run the container with the \
             host's processes and CAP_SYS_ADMIN, or with `--cgroupns host`"
        }
    })
}

/// `PROC_CGROUP_INIT_INO` in the kernel's include/linux/proc_ns.h: the initial cgroup namespace.
const INITIAL_CGROUP_NAMESPACE: &str = "cgroup:[4026531835]";

/// Has this thread, and those that it starts, see cgroups by their paths on the host. A container has a cgroup namespace of its
/// own, from which those of others have no path, and a pod has no other choice. Nothing happens where a hierarchy is mounted from the
/// root on that this process sees.
///
/// # Errors
/// The host's processes are not seen, or the kernel refuses: it takes CAP_SYS_ADMIN.
pub fn join_cgroup_namespace() -> io::Result<()> {
    let is_initial = |path: &&str| {
        let namespace = fs::read_link(path);
        namespace.is_ok_and(|link| link == Path::new(INITIAL_CGROUP_NAMESPACE))
    };
    if is_initial(&"/proc/thread-self/ns/cgroup") || cgroup2_root()?.is_some() {
        return Ok(());
    }
    // The host's first process, and the first thread of the kernel's own.
    let theirs = ["/proc/1/ns/cgroup", "/proc/2/ns/cgroup"];
    let theirs = theirs.iter().find(|path| is_initial(path));
    let initial = File::open(theirs.ok_or(io::ErrorKind::NotFound)?)?;
    Ok(setns(initial, CloneFlags::CLONE_NEWCGROUP)?)
}

/// `mountinfo` lines are `id parent dev root mountpoint options [tags] - type source ...`
/// (proc(5)). A mount whose root is not `/` shows a part of the tree only.
fn cgroup2_in(mountinfo: &str) -> Option<PathBuf> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        Some((point, filesystem.starts_with("cgroup2 ") && root == "/"))
    });
    let mounts: Vec<(&str, bool)> = mounts.collect();
    let mut roots = mounts
        .iter()
        .enumerate()
        .filter(|(_, (_, is_root))| *is_root);
    // Later ones lie over earlier ones. There may be thousands, of which few are such roots.
    let found = roots.find(|(number, (point, _))| {
        let mut over = mounts.iter().skip(number + 1);
        !over.any(|(later, _)| later == point)
    });
    found.map(|(_, (point, _))| PathBuf::from(point))
}

/// The real user and group of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    /// User id, as this user namespace has it.
    pub uid: u32,
    /// Group id, likewise.
    pub gid: u32,
}

/// The user and the group of a process, as its sockets have them. None: it has ended.
pub fn ids(pid: u32) -> Option<Ids> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let id = |key| {
        let mut lines = status.lines();
        let ids = lines.find_map(|line| line.strip_prefix(key))?;
        ids.split_whitespace().next()?.parse().ok()
    };
    Some(Ids {
        uid: id("Uid:")?,
        gid: id("Gid:")?,
    })
}

/// Whether this thread has a capability, by its number (capability.h).
pub(crate) fn is_capable(number: u32) -> bool {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> number & 1 != 0)
}

/// Whether `path` lies in a cgroup2 hierarchy.
pub fn is_cgroup2(path: &Path) -> bool {
    statfs(path).is_ok_and(|s| s.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

/// Whether `path` lies on a bpffs.
pub fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|s| s.filesystem_type() == BPF_FS_MAGIC)
}

/// Mounts bpffs at [`BPFFS`] unless it is there.
pub fn mount_bpffs() -> io::Result<()> {
    let at = Path::new(BPFFS);
    if is_bpffs(at) {
        return Ok(());
    }
    mount(
        Some("bpf"),
        at,
        Some("bpf"),
        MsFlags::empty(),
        Some("mode=0700"),
    )?;
    Ok(())
}

/// The id by which BPF programs know a cgroup: its inode number. None while it does not
/// exist.
pub fn cgroup_id(root: &Path, path: &Path) -> Option<u64> {
    let beneath = path.strip_prefix("/").unwrap_or(path);
    Some(fs::metadata(root.join(beneath)).ok()?.ino())
}

/// The path, from the mount's root, of the cgroup with this id, in which a thread of a process
/// was a moment ago. None when the process is gone.
pub fn cgroup_of(pid: u32, id: u64) -> Option<PathBuf> {
    let root = cgroup2_root().ok()??;
    let of = |thread: &Path| cgroup2_path(&fs::read_to_string(thread.join("cgroup")).ok()?);
    let is_it = |path: &PathBuf| cgroup_id(&root, path) == Some(id);
    let process = PathBuf::from(format!("/proc/{pid}"));
    let path = of(&process)?;
    if is_it(&path) {
        return Some(path);
    }
    // Threads may be in cgroups of their own.
    let threads = fs::read_dir(process.join("task")).ok()?.take(MAX_THREADS);
    let mut paths = threads.filter_map(|thread| of(&thread.ok()?.path()));
    Some(paths.find(is_it).unwrap_or(path))
}

/// The cgroup of a container's processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerCgroup {
    /// In this cgroup, which is its own, from the mount's root.
    Own(PathBuf),
    /// In one that is named after somebody else, so that others may be in it, too.
    Shared,
    /// The container's process has gone.
    Gone,
}

/// The cgroup of the container with this id, of which `pid` is a process. Runtimes name a container's
/// cgroup after its id, whichever way (`docker-ID.scope`, `cri-containerd-ID.scope`, `ID`); what is
/// beneath it is the container's (`init.scope`, `container`). By this, a process that has got the number
/// of one that has gone is not taken for it, either.
pub fn container_cgroup(pid: u32, id: &str) -> ContainerCgroup {
    match fs::read_to_string(format!("/proc/{pid}/cgroup")) {
        Ok(lines) => cgroup2_path(&lines)
            .and_then(|path| named_after(id, &path))
            .map_or(ContainerCgroup::Shared, ContainerCgroup::Own),
        Err(_) => ContainerCgroup::Gone,
    }
}

/// The cgroup v2 path of a process, from the mount's root. None when it is gone.
pub fn cgroup_path(pid: u32) -> Option<PathBuf> {
    cgroup2_path(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// Whether a process is in this cgroup, or beneath it.
pub fn is_in_cgroup(pid: u32, cgroup: &Path) -> bool {
    cgroup_path(pid).is_some_and(|path| path.starts_with(cgroup))
}

/// The beginning of `path` up to what is named after `id`.
fn named_after(id: &str, path: &Path) -> Option<PathBuf> {
    let is_its = |path: &&Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.contains(id))
    };
    path.ancestors().filter(is_its).last().map(Path::to_owned)
}

/// Threads whose cgroups are looked at when it is not their process's: reading them takes a few
/// milliseconds.
const MAX_THREADS: usize = 1_000;

/// Lines are `hierarchy:controllers:path` (cgroups(7)); v2's begins with `0::`.
fn cgroup2_path(lines: &str) -> Option<PathBuf> {
    let path = lines.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(PathBuf::from(
        path.strip_suffix(" (deleted)").unwrap_or(path),
    ))
}

/// `PROC_PID_INIT_INO` in the kernel's include/linux/proc_ns.h: the initial pid namespace.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Whether this process knows every process of the host, by the number that BPF programs know.
pub fn sees_every_process() -> bool {
    let namespace = fs::read_link("/proc/self/ns/pid");
    namespace.is_ok_and(|link| link == Path::new(INITIAL_PID_NAMESPACE))
}

/// The inode's number of a network namespace that can be opened there.
pub fn netns_inode(path: &Path) -> Option<u32> {
    fs::metadata(path).ok()?.ino().try_into().ok()
}

/// The inode's number of this thread's network namespace.
pub fn own_netns_inode() -> Option<u32> {
    netns_inode(Path::new("/proc/thread-self/ns/net"))
}

/// When a process began, in ticks since the host's start. None when it is gone.
pub fn started_ticks(pid: u32) -> Option<u64> {
    start_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// A tick of `/proc`, in ns.
pub fn tick_ns() -> Option<u64> {
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten()?;
    1_000_000_000_u64.checked_div(per_second.try_into().ok()?)
}

/// The 22nd field (proc_pid_stat(5)); the second is a name in parentheses that may hold anything.
fn start_in(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_whitespace().nth(19)?.parse().ok()
}

/// The kernel's number for this thread's network namespace (Linux 5.14).
pub fn netns_cookie() -> io::Result<u64> {
    sys::netns_cookie(&UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup2_is_found_beside_v1_and_only_at_its_root() {
        let hybrid = "\
30 25 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro
31 30 0:27 / /sys/fs/cgroup/cpu rw shared:5 - cgroup cgroup rw,cpu
32 30 0:28 /x /mnt/part rw - cgroup2 cgroup2 rw
33 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
        assert_eq!(cgroup2_in(hybrid), Some("/sys/fs/cgroup/unified".into()));
        let over_it = "35 33 0:28 /../.. /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        assert_eq!(cgroup2_in(&[hybrid, over_it].concat()), None);
        assert_eq!(
            cgroup2_in("31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw\n"),
            None
        );
    }

    #[test]
    fn the_beginning_of_a_process_is_found_whatever_its_name() {
        let stat = "7 (a) S 1 (b)) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21\n";
        assert_eq!(start_in(stat), Some(4711));
        assert_eq!(start_in("7 (a) R 1 2"), None);
        assert_eq!(started_ticks(u32::MAX), None);
    }

    #[test]
    fn a_containers_cgroup_is_the_one_that_is_named_after_it() {
        let named = |path: &str| named_after("4f2a", Path::new(path));
        for path in [
            "/docker/4f2a",
            "/a.slice/docker-4f2a.scope",
            "/pods/x/crio-4f2a",
        ] {
            assert_eq!(named(path), Some(path.into()));
            assert_eq!(named(&format!("{path}/init.scope")), Some(path.into()));
        }
        for other in ["/", "/system.slice/containerd.service", "/docker/4f2b"] {
            assert_eq!(named(other), None);
        }
        let own = std::process::id();
        assert_eq!(
            container_cgroup(own, "4f2a4f2a4f2a"),
            ContainerCgroup::Shared
        );
        assert_eq!(container_cgroup(u32::MAX, "4f2a"), ContainerCgroup::Gone);
    }

    #[test]
    fn the_path_in_v2_is_found_beside_those_in_v1() {
        let lines = "5:cpu:/v1\n0::/a/b\n";
        assert_eq!(cgroup2_path(lines), Some("/a/b".into()));
        assert_eq!(cgroup2_path("0::/a (deleted)\n"), Some("/a".into()));
        assert_eq!(cgroup2_path("5:cpu:/v1\n"), None);
    }
}
