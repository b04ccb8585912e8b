//! Holders of the agent's flows, and the quotas that are used up, as the connect hooks are told.

use aya::maps::MapError;
use ebpf::abi;

use crate::{maps::FullQuotasMap, sys::PodOf};

/// A user in a cgroup, whose flows are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// User id, in the initial user namespace.
    pub uid: u32,
    /// Id of the cgroup that the process cannot choose: the topmost one above it that was given to somebody
    /// other than root.
    pub cgroup_id: u64,
}

impl Holder {
    /// The holder of a connection. None for the host's root, for whom no quota holds.
    pub(crate) fn of(connect: &abi::Connect) -> Option<Self> {
        (connect.unlimited == 0).then_some(Self {
            uid: connect.opener.uid,
            cgroup_id: connect.holder_cgroup_id,
        })
    }
}

/// A quota, by whose flows count for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quota {
    /// Flows of one user in one cgroup.
    UserInCgroup(Holder),
    /// Flows of one user, in whatever cgroups.
    User(u32),
    /// Flows of all users in one cgroup.
    Cgroup(u64),
}

impl Quota {
    fn key(self) -> abi::Quota {
        let (cgroup_id, uid, any_uid) = match self {
            Self::UserInCgroup(Holder { uid, cgroup_id }) => (cgroup_id, uid, 0),
            Self::User(uid) => (0, uid, 0),
            Self::Cgroup(cgroup_id) => (cgroup_id, 0, 1),
        };
        abi::Quota {
            cgroup_id,
            uid,
            any_uid,
        }
    }
}

/// Quotas that are used up.
pub(crate) struct FullQuotas {
    map: FullQuotasMap,
    entries: u32,
}

impl FullQuotas {
    pub(crate) fn new(map: FullQuotasMap) -> Self {
        Self { map, entries: 0 }
    }

    /// Says whether a quota is used up. Returns how many are, now.
    pub(crate) fn set(&mut self, quota: Quota, full: bool) -> Result<u32, MapError> {
        let key = PodOf(quota.key());
        let was_full = self.map.get(&key, 0).is_ok();
        match (was_full, full) {
            (false, true) => {
                self.map.insert(key, 1, 0)?;
                self.entries += 1;
            }
            (true, false) => {
                self.map.remove(&key)?;
                self.entries = self.entries.saturating_sub(1);
            }
            _ => {}
        }
        Ok(self.entries)
    }
}
