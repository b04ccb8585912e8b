//! Any bytes of a direction, walked over by the kernel and by the decoder's crate.
//!
//! For any input: both are at the same position behind each packet and each message, however they are cut.

use cql::{FramePosition, Framing};
use ebpf::abi;

use super::kernel::{walk_message, walk_packet};

/// One direction, walked over twice.
pub fn position(data: &[u8]) {
    let [first, second, rest @ ..] = data else {
        return;
    };
    let framing = match first % 2 {
        0 => Framing::Frames,
        _ => Framing::Segments,
    };
    let mut ours = FramePosition {
        framing,
        first: *second,
        ..FramePosition::UNKNOWN
    };
    let mut kernels = abi::FramePosition {
        left: 0,
        frame_left: 0,
        framing: as_abi(framing),
        first: *second,
        have: 0,
        header: [0; 15],
        pad: [0; 2],
    };
    let mut rest = rest;
    while let [how, length, behind @ ..] = rest {
        let (bytes, behind) = behind.split_at(behind.len().min(usize::from(*length)));
        rest = behind;
        if bytes.is_empty() {
            continue;
        }
        // The body of a frame, or the payload of a segment, which the input need not have.
        let passing = (ours.left as usize).min(usize::from(*how) * 16);
        let passed = [vec![0; passing], bytes.to_vec()].concat();
        ours.walk(&passed);
        match how % 4 {
            0 => walk_packet(&mut kernels, &passed),
            how => walk_message(&mut kernels, &passed, PIECES[usize::from(how) - 1]),
        }
        assert_eq!(seen(&kernels), of(&ours));
    }
}

/// Lengths of the pieces in which a message lies: of the kernel's own order, and such that every header is cut.
const PIECES: [usize; 3] = [32768, 16, 7];

/// The parts of a position: of a header only the bytes that it has.
type Seen = (u8, u32, u32, Vec<u8>);

fn seen(at: &abi::FramePosition) -> Seen {
    match u32::from(at.framing) {
        abi::FRAME_UNKNOWN => (at.framing, 0, 0, Vec::new()),
        _ => {
            let have = at.header[..usize::from(at.have)].to_vec();
            (at.framing, at.left, at.frame_left, have)
        }
    }
}

fn of(at: &FramePosition) -> Seen {
    let have = at.header[..usize::from(at.have)].to_vec();
    match at.framing {
        Framing::Unknown => (as_abi(at.framing), 0, 0, Vec::new()),
        framing => (as_abi(framing), at.left, at.frame_left, have),
    }
}

fn as_abi(framing: Framing) -> u8 {
    let framing = match framing {
        Framing::Unknown => abi::FRAME_UNKNOWN,
        Framing::Frames => abi::FRAME_FRAMES,
        Framing::Segments => abi::FRAME_SEGMENTS,
    };
    framing as u8
}
