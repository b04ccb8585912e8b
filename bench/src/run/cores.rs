//! Cores that proxies have for themselves: so that a proxy's own cost shows apart from what it costs to share cores with
//! client and database.
//!
//! A process inherits the affinity of the thread that starts it, and sizes itself by it (a thread for each core). So whoever
//! starts one takes that affinity for as long.

use anyhow::Context;
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// The way in which the host's cores are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cores {
    /// By all, as the scheduler likes.
    Shared,
    /// A proxy has one for itself, client and database have another one.
    Apart {
        /// The number of the proxy's.
        proxy: usize,
        /// The number of the others'.
        others: usize,
    },
}

/// The calling thread's affinity, which is as before when this is dropped.
pub struct Pinned(CpuSet);

impl Cores {
    /// Divides two of the cores that this thread may use.
    ///
    /// # Errors
    /// There is one only.
    pub fn apart() -> anyhow::Result<Self> {
        let usable = affinity()?;
        let is_usable = |core: &usize| usable.is_set(*core).unwrap_or(false);
        let mut cores = (0..CpuSet::count()).filter(is_usable);
        let (proxy, others) = cores
            .next()
            .zip(cores.next())
            .context("a proxy with a core of its own needs a host of two cores")?;
        Ok(Self::Apart { proxy, others })
    }

    /// Takes the core of clients and databases.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn take_others(self) -> anyhow::Result<Option<Pinned>> {
        match self {
            Self::Shared => Ok(None),
            Self::Apart { others, .. } => Pinned::to(others).map(Some),
        }
    }

    /// Takes the core of a proxy.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn take_proxys(self) -> anyhow::Result<Option<Pinned>> {
        match self {
            Self::Shared => Ok(None),
            Self::Apart { proxy, .. } => Pinned::to(proxy).map(Some),
        }
    }
}

impl Pinned {
    fn to(core: usize) -> anyhow::Result<Self> {
        let before = affinity()?;
        let mut one = CpuSet::new();
        one.set(core)?;
        let this = Pid::from_raw(0);
        sched_setaffinity(this, &one).with_context(|| format!("core {core} cannot be taken"))?;
        Ok(Self(before))
    }
}

fn affinity() -> anyhow::Result<CpuSet> {
    sched_getaffinity(Pid::from_raw(0)).context("what is our affinity?")
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // What was allowed before still is.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// The cores that a child may use.
    fn of_child() -> String {
        let child = Command::new("grep")
            .args(["Cpus_allowed_list", "/proc/self/status"])
            .output()
            .expect("grep runs");
        let said = String::from_utf8(child.stdout).expect("a line");
        said.split_whitespace().last().expect("a list").to_owned()
    }

    #[test]
    fn what_is_started_is_where_it_should_be() {
        let before = of_child();
        let cores = Cores::apart().expect("two cores");
        let Cores::Apart { proxy, others } = cores else {
            panic!("{cores:?}");
        };
        assert_ne!(proxy, others);
        let taken = cores.take_others().expect("a core");
        assert_eq!(of_child(), others.to_string());
        let within = cores.take_proxys().expect("a core");
        assert_eq!(of_child(), proxy.to_string());
        drop(within);
        assert_eq!(of_child(), others.to_string());
        drop(taken);
        assert_eq!(of_child(), before);
        let shared = Cores::Shared.take_proxys().expect("nothing to do");
        assert!(shared.is_none() && of_child() == before);
    }
}
