//! Why the data plane is not there.

use std::{io, path::PathBuf};

use aya::{
    Ebpf, EbpfError,
    programs::{Program, ProgramError},
};
use thiserror::Error;

use crate::{
    causes::causes, compile::CompileError, incoming::IncomingError, maps::MapsError,
    pins::PinsError, tables::InstallError,
};

/// Why the data plane is not there.
#[derive(Debug, Error)]
pub enum AttachError {
    /// See [`CompileError`].
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// See [`InstallError`].
    #[error(transparent)]
    Install(#[from] InstallError),
    /// See [`IncomingError`].
    #[error(transparent)]
    Incoming(#[from] IncomingError),
    /// See [`PinsError`].
    #[error(transparent)]
    Pins(#[from] PinsError),
    /// See [`MapsError`].
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// The object or a program was refused.
    #[error(
        "the kernel does not load the BPF programs: {}; `underpass doctor` says what is missing",
        causes(.0)
    )]
    Load(#[from] EbpfError),
    /// A program.
    #[error(
        "the kernel does not take BPF program `{name}`: {reason}; `underpass doctor` says what is missing"
    )]
    Program {
        /// Name of the program.
        name: &'static str,
        /// Why.
        reason: String,
    },
    /// The cgroup.
    #[error("cannot open cgroup {path}: {source}")]
    Cgroup {
        /// Path of the folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The folder is not a cgroup v2 folder.
    #[error("{0} is not a cgroup v2 folder; `underpass doctor` says where cgroup2 is mounted")]
    NotCgroup(PathBuf),
    /// Another agent.
    #[error(
        "another agent is attached to {cgroup}, {who}: stop it first, or give this one another `cgroup`"
    )]
    Rival {
        /// Path of the folder.
        cgroup: PathBuf,
        /// Process of the agent that is there.
        who: String,
    },
    /// Socket diagnostics.
    #[error(
        "cannot list this host's connections: {0}; it takes the kernel's modules inet_diag and tcp_diag (`modprobe tcp_diag`)"
    )]
    Connections(io::Error),
    /// Listeners and raw sockets.
    #[error("cannot open the agent's sockets: {0}")]
    Sockets(io::Error),
    /// Applications' sockets on the shortcut.
    #[error("cannot look after readers on the shortcut: {0}")]
    Readers(io::Error),
}

pub(crate) fn program<'a, P>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut P, AttachError>
where
    &'a mut P: TryFrom<&'a mut Program>,
{
    let program = ebpf.program_mut(name).ok_or_else(|| missing(name))?;
    program.try_into().map_err(|_| missing(name))
}

pub(crate) fn missing(name: &'static str) -> AttachError {
    AttachError::Program {
        name,
        reason: "the object does not have it".into(),
    }
}

pub(crate) fn refused(name: &'static str) -> impl Fn(ProgramError) -> AttachError {
    move |e| AttachError::Program {
        name,
        reason: reasons(&e),
    }
}

/// The error and its causes on one line; the verifier's log, if there is one, in the log.
pub(crate) fn reasons(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(ProgramError::LoadError {
        io_error,
        verifier_log,
    }) = error.downcast_ref()
    {
        tracing::error!(%verifier_log, "refused by the verifier");
        return io_error.to_string();
    }
    causes(error)
}

#[cfg(test)]
mod tests {
    use aya::{EbpfError, maps::MapError, sys::SyscallError};

    use super::*;
    use crate::causes::other;

    #[test]
    fn an_error_says_once_what_the_system_call_has_answered() {
        let failed = || {
            MapError::SyscallError(SyscallError {
                call: "bpf_map_update_elem",
                io_error: io::Error::from_raw_os_error(nix::libc::ENOMEM),
            })
        };
        let told = "`bpf_map_update_elem` failed: Cannot allocate memory (os error 12)";
        assert_eq!(causes(&failed()), told);
        assert_eq!(other(failed()).to_string(), told);
        let map = MapsError::Layout("meters", failed());
        let expected = format!("map `meters` is not what this agent expects: {told}");
        assert_eq!(map.to_string(), expected);
        let load = AttachError::Load(EbpfError::MapError(failed()));
        let told = format!("map error: {told}; `underpass doctor` says what is missing");
        assert!(load.to_string().ends_with(&told), "{load}");
    }
}
