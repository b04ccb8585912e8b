//! Memory of a test's agents and of its sockets: accounted, and limited for a while.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};

use super::{cgroup, program, run_after};

/// A memory cgroup of version 1 (cgroup-v1/memory.rst), beneath that of this process. Version 2 has none for tests: single threads
/// join their cgroups ([`super::Cgroup`]), and such cgroups account no memory.
#[derive(Debug)]
pub struct MemoryCgroup(PathBuf);

impl MemoryCgroup {
    /// Makes one. None: this host accounts no memory by version 1.
    ///
    /// # Errors
    /// Not root.
    pub fn new() -> anyhow::Result<Option<Self>> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        // mountinfo(5): `id parent dev root mountpoint options - type source options`.
        let mount = mounts.lines().find_map(|line| {
            let (fields, of_type) = line.split_once(" - cgroup ")?;
            let (_, options) = of_type.split_once(' ')?;
            let mut fields = fields.split(' ').skip(3);
            let is_whole = fields.next() == Some("/");
            let is_memory = options.split(',').any(|option| option == "memory");
            fields.next().filter(|_| is_whole && is_memory)
        });
        let Some(mount) = mount else {
            return Ok(None);
        };
        let own = fs::read_to_string("/proc/self/cgroup")?;
        // cgroups(7): `id:controllers:path`.
        let own = own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let is_memory = parts.next()?.split(',').any(|name| name == "memory");
            parts.next().filter(|_| is_memory)
        });
        let Some(own) = own else {
            bail!("/proc/self/cgroup names no memory cgroup");
        };
        let beneath = Path::new(mount).join(own.trim_start_matches('/'));
        let path = beneath.join(cgroup::next_name());
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Some(Self(path)))
    }

    /// Makes a program of its own at `path` of `binary`, which runs in the cgroup, and so does what it starts.
    ///
    /// # Errors
    /// The folder does not take it.
    pub fn program(&self, path: &Path, binary: &str) -> anyhow::Result<()> {
        let joins = self.0.join("cgroup.procs").display().to_string();
        program::script(path, &format!("echo $$ >{joins} && exec {binary} \"$@\""))
    }

    /// Runs `body` on a thread whose new sockets are charged to this cgroup.
    ///
    /// # Errors
    /// The thread cannot join.
    ///
    /// # Panics
    /// `body` panics.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        let joins =
            || fs::write(self.0.join("tasks"), "0").context("cannot join the memory cgroup");
        run_after(joins, body)
    }

    /// Limits what TCP may hold for its sockets to these bytes. None: no limit any more. Only sockets that are made while there is a
    /// limit are charged.
    ///
    /// # Errors
    /// The kernel's: TCP holds more.
    pub fn limit_tcp(&self, bytes: Option<u64>) -> anyhow::Result<()> {
        let limit = bytes.map_or_else(|| "-1".to_owned(), |bytes| bytes.to_string());
        Ok(fs::write(
            self.0.join("memory.kmem.tcp.limit_in_bytes"),
            limit,
        )?)
    }

    /// Bytes that TCP holds for its sockets.
    ///
    /// # Errors
    /// The kernel's.
    pub fn tcp_bytes(&self) -> anyhow::Result<u64> {
        self.read("memory.kmem.tcp.usage_in_bytes")
    }

    /// Limits its memory to this much more than it has now. None: no limit any more.
    ///
    /// # Errors
    /// The kernel's.
    pub fn limit(&self, headroom_bytes: Option<u64>) -> anyhow::Result<()> {
        let limit = match headroom_bytes {
            Some(more) => (self.read("memory.usage_in_bytes")? + more).to_string(),
            None => "-1".to_owned(),
        };
        Ok(fs::write(self.0.join("memory.limit_in_bytes"), limit)?)
    }

    /// Bytes that the kernel holds for its processes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn kernel_bytes(&self) -> anyhow::Result<u64> {
        self.read("memory.kmem.usage_in_bytes")
    }

    fn read(&self, name: &str) -> anyhow::Result<u64> {
        Ok(fs::read_to_string(self.0.join(name))?.trim().parse()?)
    }

    /// Folder of the cgroup.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        cgroup::remove(&self.0);
    }
}
