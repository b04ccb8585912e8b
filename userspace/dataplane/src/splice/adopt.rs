//! Spliced flows in other hands: with an engine's descriptors another process goes on where the
//! one before was.
//!
//! While a flow rides, everything that is to be known of it is in the kernel: the agent has
//! withdrawn its order before it reads a byte. So an order that is engaged, of a flow of which
//! nothing was read since, says exactly where its bytes are, whatever became of the agent.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use aya::maps::MapError;
use ebpf::abi;

use super::{
    AgentMoved, Caller, Calls, Carrier, EVERY_ENGINE, Engine, IN_PLACE, KernelMoved, NO_QUESTION,
    Near, Splice, SpliceMaps, Splicer, kernel,
};
use crate::{
    causes::{causes, other},
    maps,
    netns_handle::NetnsHandle,
    readers::Readers,
    splice::position::FlowPosition,
    splice::refusal::SpliceRefusal,
};

/// A flow that rides, as the kernel has it.
pub struct Resumed {
    /// The flow.
    pub splice: Splice,
    /// Bytes that its former owner had moved.
    pub position: AgentMoved,
    /// The frame positions at which it left both directions.
    pub frame_positions: FlowPosition,
    /// Bytes that the kernel has moved until now.
    pub moved: KernelMoved,
    /// The sequence number that [`Splice::up_seq`] gives.
    pub up_seq: u32,
}

/// Why a flow cannot be resumed.
#[derive(Debug, thiserror::Error)]
pub enum NotResumed {
    /// Bytes were under way in its former owner.
    #[error("bytes of it were under way")]
    UnderWay,
    /// See [`SpliceRefusal`].
    #[error(transparent)]
    Kernel(#[from] SpliceRefusal),
}

/// Descriptors that are no map's come after these: `splice_look`, the iterators of [`Readers::of`], then the
/// maps in the order of [`SpliceMaps::of`].
const PROGRAMS_AND_MAPS: usize = 12;

impl Splicer {
    /// Descriptors by which another process can carry this engine's flows on, and their clients
    /// see the names that they dialled.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let hooks = self.carrier.hooks.get().into_iter().flatten();
        let own = self.carrier.descriptors.iter();
        own.chain(hooks).map(AsFd::as_fd)
    }

    /// Hooks that flows need after the agent's death: they stay while a process holds them.
    pub(crate) fn keep_hooks(&self, hooks: Vec<OwnedFd>) {
        // Nobody else sets it.
        let _ = self.carrier.hooks.set(hooks);
    }

    /// The engine's number, which no other has while a process holds it.
    pub fn number(&self) -> u32 {
        self.carrier.number
    }

    /// The engine of these descriptors, which came from [`Self::descriptors`] of an agent with
    /// the same BPF object. Whoever calls this sees to it that only one process reads the calls.
    ///
    /// # Errors
    /// They are something else.
    pub fn adopt(mut descriptors: Vec<OwnedFd>) -> io::Result<(Self, Calls)> {
        if descriptors.len() < PROGRAMS_AND_MAPS {
            return Err(io::Error::other("an engine with too few descriptors"));
        }
        let hooks = descriptors.split_off(PROGRAMS_AND_MAPS);
        let look = descriptors.remove(0);
        let readers = Readers::of([0; 3].map(|first| descriptors.remove(first)));
        let maps = SpliceMaps::of(descriptors).map_err(other)?;
        let (carrier, calls) =
            Carrier::new(look, readers, maps, None, hooks.into()).map_err(other)?;
        let engines = EVERY_ENGINE;
        Ok((Self { carrier, engines }, calls))
    }

    /// The calls once more, for another reader than the one before.
    ///
    /// # Errors
    /// For want of memory or descriptors.
    pub fn calls(&self) -> io::Result<Calls> {
        let descriptor = self.carrier.descriptors.last();
        let descriptor = descriptor.ok_or_else(|| io::Error::other("no calls"))?;
        let map = maps::map(descriptor.try_clone()?).map_err(other)?;
        Ok(self.carrier.calls(map.try_into().map_err(other)?))
    }

    /// From now on what the kernel has of this engine's flows stays there when their splices are
    /// dropped: another process goes on with it.
    pub fn leave(&self) {
        self.carrier.left.store(true, Relaxed);
    }

    /// Wakes every flow, as if the kernel had called for it: for a process that does not read the
    /// calls.
    pub fn call_all(&self) {
        self.carrier.call_all();
    }

    /// Goes on with a flow whose former owner is gone, or has left it while it rode. `near_leg`: the agent's socket
    /// that leads to the near application.
    ///
    /// # Errors
    /// Nobody knows where its bytes are: it has to be closed.
    pub fn resume(
        &self,
        id: u64,
        near: Near,
        near_leg: BorrowedFd<'_>,
    ) -> Result<Resumed, NotResumed> {
        let resumed = self.look_at(id, near, near_leg);
        if matches!(resumed, Err(NotResumed::UnderWay)) {
            // Nobody else would.
            self.carrier.forget(id);
        }
        resumed
    }

    fn look_at(
        &self,
        id: u64,
        near: Near,
        near_leg: BorrowedFd<'_>,
    ) -> Result<Resumed, NotResumed> {
        let (order, kernels) = {
            let maps = self.carrier.maps();
            let slot = maps.orders.get(&id, IN_PLACE).map_err(gone)?.0;
            (slot.order, maps.splices.get(&id, 0).map_err(gone)?.0)
        };
        let engine = Engine::of(order.engine.into()).ok_or(NotResumed::UnderWay)?;
        let question = abi::SpliceQuestion { id, ..NO_QUESTION };
        let answer = self.carrier.look(&question, near, None)?;
        // The one thing that an owner may do while its order is engaged is to read the applications.
        let read_on = answer.near_leg_copied_seq != order.up_seq
            || engine == Engine::Sender && answer.far_leg_copied_seq != order.down_seq;
        if order.up == 0 || read_on || kernels.corrupted != 0 {
            return Err(NotResumed::UnderWay);
        }
        let [to_database, to_client] = near.directions(order.up_position, order.down_position);
        let netns = NetnsHandle::of_socket(near_leg).map_err(kernel)?;
        let is_out = kernels.is_out != 0;
        if is_out {
            // Its former owner may not have come to it.
            self.carrier.nudge_later(netns.clone());
        }
        let caller = Caller::new(netns, is_out);
        self.carrier.wait_for_calls(id, caller.clone());
        Ok(Resumed {
            splice: Splice {
                carrier: self.carrier.clone(),
                engine,
                why_not_by_sender: match engine {
                    Engine::Sender => "",
                    Engine::Egress => "another process enrolled it",
                },
                near,
                id,
                base_up: order.up_seq.wrapping_sub(order.up_read as u32),
                base_down: kernels.base_seq,
                base_far: order.down_seq.wrapping_sub(order.down_passed as u32),
                caller,
                left: AtomicBool::new(false),
            },
            position: AgentMoved {
                from_near: order.up_read,
                from_far: order.down_passed,
                to_near: order.down_written,
            },
            frame_positions: FlowPosition {
                to_database,
                to_client,
            },
            moved: KernelMoved::of(&kernels),
            up_seq: order.up_seq,
        })
    }
}

fn gone(error: MapError) -> NotResumed {
    match error {
        MapError::KeyNotFound => NotResumed::UnderWay,
        error => NotResumed::Kernel(kernel(causes(&error))),
    }
}

impl Splice {
    /// The flow's number, which no other ever has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The engine's.
    pub fn carrier(&self) -> u32 {
        self.carrier.number
    }

    /// The near application's side.
    pub fn near(&self) -> Near {
        self.near
    }

    /// The sequence number of the next byte of the near application's, where the agent has read so
    /// many.
    pub fn up_seq(&self, from_near: u64) -> u32 {
        self.base_up.wrapping_add(from_near as u32)
    }

    /// Dropped, it stays in the kernel's hands: another process goes on with it.
    pub fn leave(&self) {
        self.left.store(true, Relaxed);
    }

    pub(super) fn is_left(&self) -> bool {
        self.left.load(Relaxed) || self.carrier.left.load(Relaxed)
    }
}

/// The fingerprint that the carriers of two processes must share: the BPF object's 64-bit FNV-1a hash.
pub fn fingerprint() -> u64 {
    ebpf::OBJECT
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
}
