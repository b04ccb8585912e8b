//! Frame positions of a spliced flow. They go to the kernel with the order to carry the flow
//! ([`Splice::engage`]), and come back with what the kernel has moved.

use ebpf::abi;

use crate::splice::Splice;

/// The frame position of one direction, in the kernel's own form; the crate `cql` says what it means.
pub type FramePosition = abi::FramePosition;

/// How a [`FramePosition`]'s direction is cut.
pub mod framing {
    use ebpf::abi;

    /// Nobody knows where in a frame it is.
    pub const UNKNOWN: u8 = abi::FRAME_UNKNOWN as u8;
    /// Frames without segments.
    pub const FRAMES: u8 = abi::FRAME_FRAMES as u8;
    /// v5 segments.
    pub const SEGMENTS: u8 = abi::FRAME_SEGMENTS as u8;
}

/// Nobody knows where.
pub const UNKNOWN_POSITION: FramePosition = FramePosition {
    left: 0,
    frame_left: 0,
    framing: framing::UNKNOWN,
    first: 0,
    have: 0,
    header: [0; 15],
    pad: [0; 2],
};

/// Frame positions of both directions, behind all that the agent has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowPosition {
    /// In what the client sends.
    pub to_database: FramePosition,
    /// In what the database sends.
    pub to_client: FramePosition,
}

impl FlowPosition {
    /// The position of a flow that nobody will want to decode.
    pub const UNKNOWN: Self = Self {
        to_database: UNKNOWN_POSITION,
        to_client: UNKNOWN_POSITION,
    };
}

/// The frame position of one direction behind the last byte that the kernel redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirected {
    /// When the agent had read so many bytes of it ([`AgentMoved`](crate::AgentMoved)).
    pub since: u64,
    /// The place.
    pub position: FramePosition,
}

impl Splice {
    /// The positions that the kernel has got to, in what the client and in what the database sends.
    /// They are final for one who has read a byte that came behind: such a byte was passed up after the
    /// last one that was redirected, and nothing is redirected again before an order says that it was
    /// read.
    pub fn redirected(&self) -> Result<[Redirected; 2], crate::SpliceRefusal> {
        let kernels = self.kernels()?.0;
        let up = Redirected {
            since: kernels.up_since,
            position: kernels.up_position,
        };
        let down = Redirected {
            since: kernels.down_since,
            position: kernels.down_position,
        };
        Ok(self.near().directions(up, down))
    }
}
