//! Cgroups that single threads can join.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
    time::Duration,
};

use anyhow::{Context, bail};

/// A dying process stays in its cgroup for a moment.
const REMOVAL_TRIES: u32 = 100;
const REMOVAL_PAUSE: Duration = Duration::from_millis(20);

/// A threaded cgroup (cgroup-v2.rst): a test's thread can be an application while the test
/// itself is not. One that was made here is removed when dropped.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    root: PathBuf,
    is_found: bool,
}

impl Cgroup {
    /// A new one, beneath the root.
    ///
    /// # Errors
    /// No cgroup2, or not root.
    pub fn new() -> anyhow::Result<Self> {
        let root = root()?;
        Self::at(root.join(next_name()), root)
    }

    /// The one that a process lives in, which stays. None: the root, or one that single threads
    /// cannot join.
    ///
    /// # Errors
    /// No cgroup2, or no such process.
    pub fn of_process(pid: u32) -> anyhow::Result<Option<Self>> {
        let root = root()?;
        let file = format!("/proc/{pid}/cgroup");
        let text = fs::read_to_string(&file).with_context(|| file.clone())?;
        // cgroups(7): the line of the unified hierarchy.
        let line = text.lines().find_map(|line| line.strip_prefix("0::/"));
        let path = root.join(line.with_context(|| format!("{file} names no cgroup2"))?);
        let kind = fs::read_to_string(path.join("cgroup.type")).unwrap_or_default();
        let is_threaded = kind.trim() == "threaded";
        Ok(is_threaded.then_some(Self {
            path,
            root,
            is_found: true,
        }))
    }

    /// A new one beneath this one, which it must not outlive.
    ///
    /// # Errors
    /// It exists already.
    pub fn child(&self, name: &str) -> anyhow::Result<Self> {
        Self::at(self.path.join(name), self.root.clone())
    }

    fn at(path: PathBuf, root: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir(&path).with_context(|| format!("cannot make cgroup {}", path.display()))?;
        let cgroup = Self {
            path,
            root,
            is_found: false,
        };
        fs::write(cgroup.path.join("cgroup.type"), "threaded").context("threaded cgroups")?;
        Ok(cgroup)
    }

    /// Folder of the cgroup.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the cgroup from the mount's root, as in a rule.
    pub fn rule_path(&self) -> PathBuf {
        Path::new("/").join(self.path.strip_prefix(&self.root).unwrap_or(&self.path))
    }

    /// Moves this thread into it.
    pub(super) fn enter(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.threads"), "0")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if self.is_found {
            return;
        }
        remove(&self.path);
    }
}

/// A name that no other cgroup of tests has.
pub(super) fn next_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Relaxed);
    format!("underpass-test-{}-{next}", std::process::id())
}

/// Removes a cgroup, when its last process has gone.
pub(super) fn remove(path: &Path) {
    for _ in 0..REMOVAL_TRIES {
        match fs::remove_dir(path) {
            Err(e) if e.raw_os_error() == Some(nix::libc::EBUSY) => thread::sleep(REMOVAL_PAUSE),
            _ => return,
        }
    }
    eprintln!("cgroup {} is still busy and stays", path.display());
}

/// mountinfo(5): `id parent dev root mountpoint options - type source options`.
fn root() -> anyhow::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    for line in mounts.lines().filter(|l| l.contains(" - cgroup2 ")) {
        let mut fields = line.split(' ').skip(3);
        if let (Some("/"), Some(point)) = (fields.next(), fields.next()) {
            return Ok(point.into());
        }
    }
    bail!("no cgroup2 is mounted: `mount -t cgroup2 none /sys/fs/cgroup/unified`")
}
