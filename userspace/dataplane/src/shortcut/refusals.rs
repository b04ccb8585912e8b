//! The flows that a rule wants on the shortcut, and whose client's end is not taken: the kernel keeps the reason with
//! their sockets, and an iterator tells it.

use std::{
    io::{self, Read},
    os::fd::{AsFd, OwnedFd},
};

use aya::{Btf, Ebpf, programs::Iter};
use ebpf::abi;

use crate::{
    attach::{AttachError, program, refused},
    load,
    maps::{self, MapsError},
    sys,
};

const TELLS: &str = "tell_refusals";
/// Refusals that are told at most: as many as there may be flows on the shortcut.
const MOST: usize = abi::MAX_SHORTCUT_ENDS as usize / 2;
/// The kernel's own buffer for what an iterator tells: whoever reads less has it begin in the middle, from
/// where it may skip some, or tell of some again.
const PIECE_BYTES: usize = 32 << 10;

/// See the module.
pub(super) struct Refusals {
    wishes: OwnedFd,
    /// The iterator, once a rule has asked for the shortcut.
    tells: Option<OwnedFd>,
}

impl Refusals {
    pub(super) fn of(ebpf: &Ebpf) -> Result<Self, MapsError> {
        Ok(Self {
            wishes: maps::descriptor(ebpf, "shortcut_wishes")?,
            tells: None,
        })
    }

    /// Does nothing when it is there. Without it nobody is told of.
    pub(super) fn load(&mut self, ebpf: &mut Ebpf) -> Result<(), AttachError> {
        if self.tells.is_some() {
            return Ok(());
        }
        let btf = Btf::from_sys_fs().map_err(|e| AttachError::Load(e.into()))?;
        let tells: &mut Iter = program(ebpf, TELLS)?;
        // An attempt before may have come half-way.
        if tells.fd().is_err() {
            let loaded = load::retry_load(|| tells.load("bpf_sk_storage_map", &btf));
            loaded.map_err(refused(TELLS))?;
        }
        let descriptor = tells.fd().map_err(refused(TELLS))?.as_fd();
        self.tells = Some(descriptor.try_clone_to_owned().map_err(failed)?);
        Ok(())
    }

    /// The refusals of about this moment, in every namespace: while they are read, a flow that comes
    /// may have another told twice, and one that goes may have another left out.
    pub(super) fn read(&self) -> io::Result<Vec<abi::ShortcutRefusal>> {
        let Some(tells) = &self.tells else {
            return Ok(Vec::new());
        };
        let mut tells = sys::iterate_over(tells.as_fd(), Some(self.wishes.as_fd()))?;
        let (mut told, mut piece) = (Vec::new(), vec![0; PIECE_BYTES]);
        // The kernel gives whole ones.
        while let bytes @ 1.. = tells.read(&mut piece)? {
            let bytes = piece.get(..bytes).unwrap_or_default();
            told.extend(
                sys::bytes::read_all::<abi::ShortcutRefusal>(bytes).take(MOST - told.len()),
            );
            if told.len() == MOST {
                tracing::warn!(
                    "more flows are refused the shortcut than the {MOST} that are listed"
                );
                break;
            }
        }
        Ok(told)
    }
}

fn failed(error: io::Error) -> AttachError {
    AttachError::Program {
        name: TELLS,
        reason: error.to_string(),
    }
}
