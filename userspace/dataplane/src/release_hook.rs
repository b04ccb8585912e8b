//! The hook that sees sockets close: attached when a policy comes with a limit, because every socket of the cgroup pays for
//! it.

use std::fs::File;

use aya::{
    Ebpf,
    programs::{
        CgroupAttachMode, CgroupSock,
        links::{FdLink, PinnedLink},
    },
};

use crate::{
    attach::{AttachError, missing, program, reasons, refused},
    load,
    pins::Pins,
};

const HOOK: &str = "on_release";

/// The hook, once a policy has a limit. It stays until the agent detaches: connections that are counted end by it, also while
/// no agent is there, because it is pinned.
#[derive(Default)]
pub(crate) struct ReleaseHook(Option<PinnedLink>);

impl ReleaseHook {
    /// Attaches it, if it is not. Called before a policy with a limit is in force.
    ///
    /// # Errors
    /// This kernel does not take it: connections cannot be counted.
    pub(crate) fn open(
        &mut self,
        ebpf: &mut Ebpf,
        cgroup: &File,
        pins: &Pins,
    ) -> Result<(), AttachError> {
        if self.0.is_some() {
            return Ok(());
        }
        let hook: &mut CgroupSock = program(ebpf, HOOK)?;
        load::retry_load(|| hook.load()).map_err(refused(HOOK))?;
        let id = hook
            .attach(cgroup, CgroupAttachMode::Single)
            .map_err(refused(HOOK))?;
        let link = hook.take_link(id).map_err(refused(HOOK))?;
        let link = FdLink::try_from(link).map_err(|_| missing(HOOK))?;
        let pinned = link
            .pin(pins.path(HOOK))
            .map_err(|e| AttachError::Program {
                name: HOOK,
                reason: reasons(&e),
            })?;
        self.0 = Some(pinned);
        Ok(())
    }
}
