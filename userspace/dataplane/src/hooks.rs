//! The hooks on the cgroup.

use std::{fs::File, os::fd::OwnedFd, path::Path};

use aya::{
    Ebpf,
    programs::{
        CgroupAttachMode, CgroupSockAddr, Program,
        links::{FdLink, PinnedLink},
    },
};

use crate::{
    attach::{AttachError, missing, program, reasons, refused},
    load,
    pins::Pins,
    sys,
};

/// Hooks that an intercepted flow meets. They go when the agent goes and the keeper, which holds some
/// of them; but those that are pinned stay.
const FLOW_HOOKS: [&str; 6] = [
    "original_dst",
    "getpeername4",
    "getpeername6",
    "getsockname4",
    "getsockname6",
    "on_socket_event",
];

/// The decision; pinned. Attached last, so that a flow is intercepted only when everything
/// that it will meet is in place.
const CONNECT_HOOKS: [&str; 2] = ["connect4", "connect6"];

/// Hooks that balanced flows meet as well; pinned, because such flows do not need the agent.
const BALANCED_FLOW_HOOKS: [&str; 2] = ["getpeername4", "getpeername6"];

/// The attached hooks. Dropped, all but the pinned ones go.
pub(crate) struct Hooks {
    pub pinned: Vec<PinnedLink>,
    /// Hooks that tell a client the addresses that it would have without us.
    pub names: Vec<FdLink>,
    /// Descriptors of these hooks: clients ask as long as their flows live, and some outlive the agent.
    pub descriptors: Vec<OwnedFd>,
}

pub(crate) fn attach(ebpf: &mut Ebpf, cgroup: &File, pins: &Pins) -> Result<Hooks, AttachError> {
    // A bpf_link is always one of several on a cgroup; the mode is for hosts without links.
    let mode = CgroupAttachMode::Single;
    let (mut pinned, mut names, mut descriptors) = (Vec::new(), Vec::new(), Vec::new());
    for name in FLOW_HOOKS {
        let program = ebpf.program_mut(name).ok_or_else(|| missing(name))?;
        match program {
            Program::CgroupSockAddr(p) => {
                let attached = load::retry_load(|| p.load()).and_then(|()| p.attach(cgroup, mode));
                let taken = attached.and_then(|id| p.take_link(id));
                let link = FdLink::try_from(taken.map_err(refused(name))?);
                let link = link.map_err(|_| missing(name))?;
                let stays = BALANCED_FLOW_HOOKS.contains(&name);
                let opened = opened(link, &pins.path(name));
                let opened = opened.map_err(|reason| AttachError::Program { name, reason });
                let (link, descriptor) = opened?;
                descriptors.push(descriptor);
                match stays {
                    true => pinned.push(link),
                    false => names.push(link.unpin().map_err(|e| AttachError::Program {
                        name,
                        reason: e.to_string(),
                    })?),
                }
                Ok(())
            }
            Program::CgroupSockopt(p) => load::retry_load(|| p.load())
                .and_then(|()| p.attach(cgroup, mode))
                .map(drop),
            Program::SockOps(p) => load::retry_load(|| p.load())
                .and_then(|()| p.attach(cgroup, mode))
                .map(drop),
            _ => return Err(missing(name)),
        }
        .map_err(refused(name))?;
    }
    let connect = CONNECT_HOOKS.into_iter().map(|name| {
        let hook: &mut CgroupSockAddr = program(ebpf, name)?;
        load::retry_load(|| hook.load()).map_err(refused(name))?;
        let id = hook.attach(cgroup, mode).map_err(refused(name))?;
        let link = hook.take_link(id).map_err(refused(name))?;
        let link = FdLink::try_from(link).map_err(|_| missing(name))?;
        let pinned = link.pin(pins.path(name));
        pinned.map_err(|e| AttachError::Program {
            name,
            reason: reasons(&e),
        })
    });
    for link in connect {
        pinned.push(link?);
    }
    Ok(Hooks {
        pinned,
        names,
        descriptors,
    })
}

/// A pinned link, and another descriptor of it, for which it has to be pinned at least for a moment.
fn opened(link: FdLink, path: &Path) -> Result<(PinnedLink, OwnedFd), String> {
    let pinned = link.pin(path).map_err(|e| reasons(&e))?;
    let descriptor = sys::open_pin(path).map_err(|e| e.to_string())?;
    Ok((pinned, descriptor))
}
