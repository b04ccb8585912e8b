//! The containers of clients, for views of many of them.

use std::{collections::HashMap, sync::Arc};

use serde::{Serialize, Serializer};
use steps::containers::{Contained, Containers};

/// The containers of cgroups that were looked up: thousands of flows are of a few processes.
pub(super) struct Known<'c> {
    containers: &'c Containers,
    by_cgroup: HashMap<u64, Option<Arc<Contained>>>,
}

impl<'c> Known<'c> {
    pub(super) fn new(containers: &'c Containers) -> Self {
        Self {
            containers,
            by_cgroup: HashMap::new(),
        }
    }

    /// Returns the container that a process was in when its cgroup had this number.
    pub(super) fn of(&mut self, pid: u32, cgroup: u64) -> Option<Arc<Contained>> {
        if self.containers.is_empty() {
            return None;
        }
        let find = || self.containers.of(pid, cgroup);
        self.by_cgroup.entry(cgroup).or_insert_with(find).clone()
    }
}

/// Serialises the container itself.
pub(super) fn pointee<S: Serializer>(
    of: &Option<Arc<Contained>>,
    to: S,
) -> Result<S::Ok, S::Error> {
    of.as_deref().serialize(to)
}
