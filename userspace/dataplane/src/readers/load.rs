//! The iterators over readers, as they go into the kernel.

use std::os::fd::{AsFd, OwnedFd};

use aya::{Btf, Ebpf, programs::Iter};

use super::Readers;
use crate::{
    attach::{AttachError, program, refused},
    load,
};

const FIND: &str = "find_stalled";
const FIND_BESIDE: &str = "find_stalled_beside";
const NUDGE: &str = "nudge_left";

/// Loads the iterators, unless an attempt before has.
pub(crate) fn readers(ebpf: &mut Ebpf) -> Result<Readers, AttachError> {
    let btf = Btf::from_sys_fs().map_err(|e| AttachError::Load(e.into()))?;
    let mut descriptor = |name, what| -> Result<OwnedFd, AttachError> {
        let iterator: &mut Iter = program(ebpf, name)?;
        if iterator.fd().is_err() {
            load::retry_load(|| iterator.load(what, &btf)).map_err(refused(name))?;
        }
        let fd = iterator.fd().map_err(refused(name))?.as_fd();
        fd.try_clone_to_owned().map_err(AttachError::Sockets)
    };
    Ok(Readers::of([
        descriptor(FIND, "sockmap")?,
        descriptor(FIND_BESIDE, "sockmap")?,
        descriptor(NUDGE, "tcp")?,
    ]))
}
