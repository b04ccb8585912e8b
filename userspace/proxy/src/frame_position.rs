//! Conversion of a position in a frame between the protocol's type (`cql`) and the kernel's
//! (`dataplane`).

use cql::{FramePosition, Framing, NoPosition, Unread};
use dataplane::{FlowPosition, UNKNOWN_POSITION, framing};

/// Converts the flow's positions for the kernel, which goes on from there.
pub(super) fn to_kernel(unread: &Unread) -> FlowPosition {
    FlowPosition {
        to_database: kernels(&unread.requests),
        to_client: kernels(&unread.responses),
    }
}

fn kernels(position: &FramePosition) -> dataplane::FramePosition {
    dataplane::FramePosition {
        left: position.left,
        frame_left: position.frame_left,
        framing: match position.framing {
            Framing::Unknown => framing::UNKNOWN,
            Framing::Frames => framing::FRAMES,
            Framing::Segments => framing::SEGMENTS,
        },
        first: position.first,
        have: position.have,
        header: position.header,
        ..UNKNOWN_POSITION
    }
}

/// Converts the positions that the kernel was told when a flow was handed over.
pub(super) fn unread(positions: &FlowPosition) -> Result<Unread, NoPosition> {
    let FlowPosition {
        to_database,
        to_client,
    } = positions;
    Unread::at(from_kernel(to_database), from_kernel(to_client))
}

/// Converts the position that the kernel has got to.
pub(super) fn from_kernel(position: &dataplane::FramePosition) -> FramePosition {
    FramePosition {
        left: position.left,
        frame_left: position.frame_left,
        framing: match position.framing {
            framing::FRAMES => Framing::Frames,
            framing::SEGMENTS => Framing::Segments,
            _ => Framing::Unknown,
        },
        first: position.first,
        have: position.have,
        header: position.header,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_comes_back_as_it_went() {
        for framing in [Framing::Unknown, Framing::Frames, Framing::Segments] {
            let position = FramePosition {
                framing,
                first: 0x85,
                left: 7,
                frame_left: 1 << 20,
                have: 3,
                header: [9; 15],
            };
            assert_eq!(from_kernel(&kernels(&position)), position);
        }
        assert_eq!(from_kernel(&UNKNOWN_POSITION), FramePosition::UNKNOWN);
        assert_eq!(unread(&FlowPosition::UNKNOWN), Err(NoPosition::Handshake));
    }
}
