//! The hooks on the cgroup.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

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

/// Attaches the hooks that intercepted flows meet. The connect hooks come last: [`attach_connect`], [`exchange_connect`].
pub(crate) fn attach(ebpf: &mut Ebpf, cgroup: &File, pins: &Pins) -> Result<Hooks, AttachError> {
    // A bpf_link is always one of several on a cgroup; the mode is for hosts without links.
    let mode = CgroupAttachMode::Single;
    let (mut pinned, mut names, mut descriptors) = (Vec::new(), Vec::new(), Vec::new());
    for name in FLOW_HOOKS {
        let program = ebpf.program_mut(name).ok_or_else(|| missing(name))?;
        match program {
            Program::CgroupSockAddr(p) => {
                load::retry_load(|| p.load()).map_err(refused(name))?;
                let stays = BALANCED_FLOW_HOOKS.contains(&name);
                let program = p.fd().map_err(refused(name))?.as_fd();
                let linked = link_before_others(program, cgroup, name);
                let opened = linked.map_err(|e| e.to_string()).and_then(|(link, _)| {
                    let path = pins.path(name);
                    sys::pin(link.as_fd(), &path).map_err(|e| e.to_string())?;
                    let pinned = PinnedLink::from_pin(&path).map_err(|e| reasons(&e))?;
                    Ok((pinned, link))
                });
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
    Ok(Hooks {
        pinned,
        names,
        descriptors,
    })
}

/// Loads the connect hooks' programs, which the kernel checks by it.
pub(crate) fn load_connect(ebpf: &mut Ebpf) -> Result<(), AttachError> {
    CONNECT_HOOKS.into_iter().try_for_each(|name| {
        let hook: &mut CgroupSockAddr = program(ebpf, name)?;
        load::retry_load(|| hook.load()).map_err(refused(name))
    })
}

/// Attaches the connect hooks, whose programs are loaded: connections are decided from then on.
pub(crate) fn attach_connect(
    ebpf: &mut Ebpf,
    cgroup: &File,
    pins: &Pins,
) -> Result<Vec<PinnedLink>, AttachError> {
    let mode = CgroupAttachMode::Single;
    let connect = CONNECT_HOOKS.into_iter().map(|name| {
        let hook: &mut CgroupSockAddr = program(ebpf, name)?;
        let id = hook.attach(cgroup, mode).map_err(refused(name))?;
        let link = hook.take_link(id).map_err(refused(name))?;
        let link = FdLink::try_from(link).map_err(|_| missing(name))?;
        let pinned = link.pin(pins.path(name));
        pinned.map_err(|e| AttachError::Program {
            name,
            reason: reasons(&e),
        })
    });
    connect.collect()
}

/// Has the links of the connect hooks that an agent before has pinned run this agent's programs, which are loaded.
///
/// # Errors
/// Some of them may run this agent's programs then: the agent before takes them back when this one ends.
pub(crate) fn exchange_connect(
    ebpf: &mut Ebpf,
    pins: &Pins,
) -> Result<Vec<PinnedLink>, AttachError> {
    let exchanged = CONNECT_HOOKS.into_iter().map(|name| {
        let failed = |reason| AttachError::Program { name, reason };
        let from = pins.inherited(name);
        let from = from.ok_or_else(|| failed("the agent of before has not pinned it".into()))?;
        let own = pins.path(name);
        // First, so that the link outlives the agent before.
        let link =
            sys::open_pin(&from).and_then(|link| sys::pin(link.as_fd(), &own).map(|()| link));
        let link = link.map_err(|e| failed(e.to_string()))?;
        run_by(ebpf, name, link.as_fd())?;
        PinnedLink::from_pin(&own).map_err(|e| failed(reasons(&e)))
    });
    exchanged.collect()
}

/// Has this agent's own links of the connect hooks run its programs again.
pub(crate) fn take_back_connect(ebpf: &mut Ebpf, pins: &Pins) -> Result<(), AttachError> {
    CONNECT_HOOKS.into_iter().try_for_each(|name| {
        let link = sys::open_pin(&pins.path(name));
        let link = link.map_err(|e| AttachError::Program {
            name,
            reason: e.to_string(),
        })?;
        run_by(ebpf, name, link.as_fd())
    })
}

fn run_by(ebpf: &mut Ebpf, name: &'static str, link: BorrowedFd<'_>) -> Result<(), AttachError> {
    let hook: &mut CgroupSockAddr = program(ebpf, name)?;
    let program = hook.fd().map_err(refused(name))?.as_fd();
    sys::update_link(link, program).map_err(|e| AttachError::Program {
        name,
        reason: e.to_string(),
    })
}

/// `BPF_F_BEFORE` and `BPF_F_PREORDER` (linux/bpf.h).
const BEFORE: u32 = 1 << 3;
const PREORDER: u32 = 1 << 6;

/// The place of a hook among those of other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The hook runs before all that did not ask for the same.
    Ahead,
    /// The hook runs in the order in which programs were attached.
    InTurn,
}

/// Attaches a hook that tells names ahead of others, if the kernel can.
///
/// Where another program has changed the address before `connect4` saw it, as a service's is changed into a
/// backend's, that one has to undo its change last: it knows the address that it changed to, and not the agent's.
/// Where `connect4` saw the address first, the order does not matter.
fn link_before_others(
    program: BorrowedFd<'_>,
    cgroup: &File,
    name: &str,
) -> io::Result<(OwnedFd, Place)> {
    let hook = name_hook(name).ok_or_else(|| io::Error::other("it tells no name"))?;
    let mut last = io::Error::from_raw_os_error(nix::libc::EINVAL);
    for (flags, place) in [
        (PREORDER | BEFORE, Place::Ahead),
        (PREORDER, Place::Ahead),
        (0, Place::InTurn),
    ] {
        match sys::link_to_cgroup(program, cgroup.as_fd(), hook, flags) {
            Ok(link) => return Ok((link, place)),
            // The kernel does not know the flags.
            Err(error) if error.raw_os_error() == Some(nix::libc::EINVAL) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// `BPF_CGROUP_*_GETPEERNAME` and `_GETSOCKNAME` (linux/bpf.h).
fn name_hook(name: &str) -> Option<u32> {
    let hooks = [
        ("getpeername4", 29),
        ("getpeername6", 30),
        ("getsockname4", 31),
        ("getsockname6", 32),
    ];
    hooks.into_iter().find(|(n, _)| *n == name).map(|(_, n)| n)
}

/// The place that this kernel gives to hooks which tell names, tried on this cgroup, where nothing changes.
pub(crate) fn place_of_names(cgroup: &Path) -> Result<Place, String> {
    let mut ebpf = load::load().map_err(|e| reasons(&e))?;
    let name = "getpeername4";
    let hook: &mut CgroupSockAddr = program(&mut ebpf, name).map_err(|e| reasons(&e))?;
    load::retry_load(|| hook.load()).map_err(|e| reasons(&e))?;
    let program = hook.fd().map_err(|e| reasons(&e))?.as_fd();
    let cgroup = File::open(cgroup).map_err(|e| e.to_string())?;
    let linked = link_before_others(program, &cgroup, name);
    linked.map(|(_, place)| place).map_err(|e| e.to_string())
}
