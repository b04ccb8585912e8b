//! The hooks that count connections of clients and see their end: attached when a policy comes with a limit, because every
//! socket of the cgroup pays for them.

use std::fs::File;

use aya::{
    Ebpf,
    programs::{
        CgroupAttachMode, CgroupSock, SockOps,
        links::{FdLink, PinnedLink},
    },
};

use crate::{
    attach::{AttachError, missing, program, reasons, refused},
    load,
    pins::Pins,
};
use policy::Policy;

/// Sees sockets of this host's clients close.
const RELEASE: &str = "on_release";

/// Sees connections of clients on other hosts begin and end.
const EVENTS: &str = "on_client_event";

/// The hooks, once a policy has a limit that needs them. They stay until the agent detaches: connections that are counted end
/// by them, also while no agent is there, because they are pinned.
#[derive(Default)]
pub(crate) struct LimitHooks {
    release: Option<PinnedLink>,
    events: Option<PinnedLink>,
}

impl LimitHooks {
    /// Attaches those that the policy needs and that are not. Called before it is in force.
    ///
    /// # Errors
    /// This kernel does not take one: connections cannot be counted.
    pub(crate) fn open(
        &mut self,
        policy: &Policy,
        ebpf: &mut Ebpf,
        cgroup: &File,
        pins: &Pins,
    ) -> Result<(), AttachError> {
        let mode = CgroupAttachMode::Single;
        if policy.limits_here() && self.release.is_none() {
            let hook: &mut CgroupSock = program(ebpf, RELEASE)?;
            load::retry_load(|| hook.load()).map_err(refused(RELEASE))?;
            let id = hook.attach(cgroup, mode).map_err(refused(RELEASE))?;
            let link = hook.take_link(id).map_err(refused(RELEASE))?;
            self.release = Some(pinned(RELEASE, link.try_into().ok(), pins)?);
        }
        if policy.limits_elsewhere() && self.events.is_none() {
            let hook: &mut SockOps = program(ebpf, EVENTS)?;
            load::retry_load(|| hook.load()).map_err(refused(EVENTS))?;
            let id = hook.attach(cgroup, mode).map_err(refused(EVENTS))?;
            let link = hook.take_link(id).map_err(refused(EVENTS))?;
            self.events = Some(pinned(EVENTS, link.try_into().ok(), pins)?);
        }
        Ok(())
    }
}

fn pinned(
    name: &'static str,
    link: Option<FdLink>,
    pins: &Pins,
) -> Result<PinnedLink, AttachError> {
    let link = link.ok_or_else(|| missing(name))?;
    link.pin(pins.path(name)).map_err(|e| AttachError::Program {
        name,
        reason: reasons(&e),
    })
}
