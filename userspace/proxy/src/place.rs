//! Conversion of a position in a frame between the protocol's type (`cql`) and the kernel's
//! (`dataplane`).

use cql::{Framing, NoPlace, Place, Unread};
use dataplane::{FlowPosition, UNKNOWN_POSITION, framing};

/// Converts the flow's positions for the kernel, which goes on from there.
pub(super) fn to_kernel(unread: &Unread) -> FlowPosition {
    FlowPosition {
        to_database: kernels(&unread.requests),
        to_client: kernels(&unread.responses),
    }
}

fn kernels(place: &Place) -> dataplane::FramePosition {
    dataplane::FramePosition {
        left: place.left,
        frame_left: place.frame_left,
        framing: match place.framing {
            Framing::Unknown => framing::UNKNOWN,
            Framing::Frames => framing::FRAMES,
            Framing::Segments => framing::SEGMENTS,
        },
        first: place.first,
        have: place.have,
        header: place.header,
        ..UNKNOWN_POSITION
    }
}

/// Converts the positions that the kernel was told when a flow was handed over.
pub(super) fn unread(places: &FlowPosition) -> Result<Unread, NoPlace> {
    let FlowPosition {
        to_database,
        to_client,
    } = places;
    Unread::at(from_kernel(to_database), from_kernel(to_client))
}

/// Converts the position that the kernel has got to.
pub(super) fn from_kernel(place: &dataplane::FramePosition) -> Place {
    Place {
        left: place.left,
        frame_left: place.frame_left,
        framing: match place.framing {
            framing::FRAMES => Framing::Frames,
            framing::SEGMENTS => Framing::Segments,
            _ => Framing::Unknown,
        },
        first: place.first,
        have: place.have,
        header: place.header,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_comes_back_as_it_went() {
        for framing in [Framing::Unknown, Framing::Frames, Framing::Segments] {
            let place = Place {
                framing,
                first: 0x85,
                left: 7,
                frame_left: 1 << 20,
                have: 3,
                header: [9; 15],
            };
            assert_eq!(from_kernel(&kernels(&place)), place);
        }
        assert_eq!(from_kernel(&UNKNOWN_POSITION), Place::UNKNOWN);
        assert_eq!(unread(&FlowPosition::UNKNOWN), Err(NoPlace::Handshake));
    }
}
