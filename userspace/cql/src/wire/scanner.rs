//! [`FrameScanner`] cuts bytes that arrive in arbitrary pieces into frames. It shows the beginning
//! of each body, as much of it as `wanted` says, in place when it is whole in the piece at hand.

use crate::wire::compress::enough_for;
use crate::wire::header::{HEADER_BYTES, Header};
use crate::wire::position::FramePosition;

/// A body prefix that was collected from pieces keeps its buffer up to this many bytes from frame
/// to frame: enough for ordinary requests, little enough for ten thousand idle flows.
const KEPT_BUFFER_BYTES: usize = 16 << 10;

/// A step of [`FrameScanner::step`]. One frame gives `First`, `Header`, `Body`, `End`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// A frame begins with this byte, at the current position. It is not consumed yet.
    First(u8),
    /// The header is consumed.
    Header(Header),
    /// The header's length is impossible: frames cannot be told apart any more.
    BadLength,
    /// The first `min(wanted, length)` bytes of the body; of one that is compressed, what is enough
    /// for so many.
    Body(Header, &'a [u8]),
    /// The frame's last byte is consumed.
    End(Header),
    /// All bytes are consumed.
    Starved,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    Header { filled: usize },
    Body { header: Header, wanted: usize },
    Rest { header: Header, left: usize },
}

/// Cuts one direction's bytes into frames. Holds at most one wanted prefix of a body.
#[derive(Debug)]
pub(crate) struct FrameScanner {
    /// How many bytes of a body are worth seeing, once it is not compressed. It bounds the buffer.
    wanted: fn(&Header) -> usize,
    state: State,
    header: [u8; HEADER_BYTES],
    prefix: Vec<u8>,
    first_frame: bool,
}

impl FrameScanner {
    pub(crate) fn new(wanted: fn(&Header) -> usize) -> Self {
        Self {
            wanted,
            state: State::Idle,
            header: [0; HEADER_BYTES],
            prefix: Vec::new(),
            first_frame: true,
        }
    }

    /// From the next frame on, another part of bodies is worth seeing.
    pub(crate) fn want(&mut self, wanted: fn(&Header) -> usize) {
        self.wanted = wanted;
    }

    /// Between two frames.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Bytes that are still to come of the frame that is passing: 0 between two frames. `None`: the
    /// frame's header is not whole.
    pub(crate) fn left(&self) -> Option<u32> {
        match self.state {
            State::Idle => Some(0),
            State::Header { .. } => None,
            State::Body { header, .. } => {
                Some(header.length.saturating_sub(self.prefix.len() as u32))
            }
            State::Rest { left, .. } => Some(left as u32),
        }
    }

    /// The bytes that are to come at least until it is between two frames: 0 there.
    pub(crate) fn missing(&self) -> usize {
        match self.state {
            State::Header { filled } => HEADER_BYTES - filled,
            _ => self.left().unwrap_or_default() as usize,
        }
    }

    /// The position among frames that are not in segments.
    pub(crate) fn position(&self, first: u8) -> FramePosition {
        let mut position = FramePosition::in_frame(first, self.left().unwrap_or_default());
        if let State::Header { filled } = self.state {
            position.walk(self.header.get(..filled).unwrap_or_default());
        }
        position
    }

    /// Another scanner has read the direction's first frame.
    pub(crate) fn begin_behind_first(&mut self) {
        self.first_frame = false;
    }

    /// The direction's very first frame has not ended yet.
    pub(crate) fn in_first_frame(&self) -> bool {
        self.first_frame
    }

    /// Goes on from `input[*at..]` to the next thing worth telling.
    pub(crate) fn step<'a>(&'a mut self, input: &'a [u8], at: &mut usize) -> Step<'a> {
        let rest = input.get(*at..).unwrap_or_default();
        match self.state {
            State::Idle => match rest.first() {
                None => Step::Starved,
                Some(byte) => {
                    self.state = State::Header { filled: 0 };
                    Step::First(*byte)
                }
            },
            State::Header { filled } => {
                let Some(raw) = self.take_header(filled, rest, at) else {
                    return Step::Starved;
                };
                let Some(header) = Header::read(raw) else {
                    return Step::BadLength;
                };
                let wanted = self.prefix_bytes(&header);
                self.state = State::Body { header, wanted };
                Step::Header(header)
            }
            State::Body { header, wanted } => {
                let after = State::Rest {
                    header,
                    left: header.length as usize - wanted,
                };
                if self.prefix.is_empty()
                    && let Some(prefix) = rest.get(..wanted)
                {
                    *at += wanted;
                    self.state = after;
                    return Step::Body(header, prefix);
                }
                let missing = wanted.saturating_sub(self.prefix.len()).min(rest.len());
                self.prefix
                    .extend_from_slice(rest.get(..missing).unwrap_or_default());
                *at += missing;
                if self.prefix.len() < wanted {
                    return Step::Starved;
                }
                self.state = after;
                Step::Body(header, &self.prefix)
            }
            State::Rest { header, left } => {
                self.prefix.clear();
                self.prefix.shrink_to(KEPT_BUFFER_BYTES);
                let passing = left.min(rest.len());
                *at += passing;
                if passing < left {
                    self.state = State::Rest {
                        header,
                        left: left - passing,
                    };
                    return Step::Starved;
                }
                self.state = State::Idle;
                self.first_frame = false;
                Step::End(header)
            }
        }
    }

    /// A frame that begins and ends in `rest`, and the part of its body that is worth seeing. Most do,
    /// and need no steps; `step` is for all others.
    #[inline]
    pub(crate) fn whole<'a>(&self, rest: &'a [u8]) -> Option<(Header, &'a [u8])> {
        if !self.is_idle() {
            return None;
        }
        let (raw, behind) = rest.split_first_chunk()?;
        let header = Header::read(*raw)?;
        let body = behind.get(..header.length as usize)?;
        Some((header, body.get(..self.prefix_bytes(&header))?))
    }

    /// Goes past a frame that [`whole`](Self::whole) has found.
    pub(crate) fn pass_whole(&mut self) {
        self.first_frame = false;
    }

    /// So much of a frame's body is worth seeing, as it is carried.
    #[inline]
    fn prefix_bytes(&self, header: &Header) -> usize {
        let length = header.length as usize;
        let wanted = (self.wanted)(header);
        let wanted = match header.is_compressed() {
            true => enough_for(wanted, length),
            false => wanted,
        };
        wanted.min(length)
    }

    /// Goes past bytes that nobody has: of a body, behind the part of it that is worth seeing. False:
    /// they are not that, and nothing has changed.
    pub(crate) fn skip(&mut self, bytes: usize) -> bool {
        match &mut self.state {
            State::Rest { left, .. } if bytes <= *left => {
                *left -= bytes;
                true
            }
            _ => false,
        }
    }

    /// The nine bytes, from `rest` at once or collected; `None` while some are missing.
    fn take_header(
        &mut self,
        filled: usize,
        rest: &[u8],
        at: &mut usize,
    ) -> Option<[u8; HEADER_BYTES]> {
        if filled == 0
            && let Some(raw) = rest.first_chunk()
        {
            *at += HEADER_BYTES;
            return Some(*raw);
        }
        let mut filled = filled;
        for (to, from) in self.header.iter_mut().skip(filled).zip(rest) {
            *to = *from;
            filled += 1;
            *at += 1;
        }
        self.state = State::Header { filled };
        (filled == HEADER_BYTES).then_some(self.header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `pieces` through a scanner that wants `wanted` bytes and notes what it tells.
    fn scan(wanted: fn(&Header) -> usize, pieces: &[&[u8]]) -> (Vec<String>, FrameScanner) {
        let mut scanner = FrameScanner::new(wanted);
        let mut told = Vec::new();
        for piece in pieces {
            let mut at = 0;
            loop {
                match scanner.step(piece, &mut at) {
                    Step::Starved => break,
                    Step::BadLength => return (vec!["bad length".into()], scanner),
                    Step::First(byte) => told.push(format!("first {byte:#x}")),
                    Step::Header(h) => told.push(format!("header {} {}", h.stream.0, h.length)),
                    Step::Body(_, prefix) => told.push(format!("body {prefix:?}")),
                    Step::End(h) => told.push(format!("end {}", h.stream.0)),
                }
            }
            assert_eq!(at, piece.len());
        }
        (told, scanner)
    }

    const FRAMES: &[u8] = &[
        4, 0, 0, 7, 7, 0, 0, 0, 3, 1, 2, 3, 4, 0, 0, 8, 5, 0, 0, 0, 0, 4, 0, 0, 9, 7, 0, 0, 0, 1, 5,
    ];

    #[test]
    fn every_cut_tells_the_same() {
        let (whole, _) = scan(|_| 2, &[FRAMES]);
        assert_eq!(
            whole,
            [
                "first 0x4",
                "header 7 3",
                "body [1, 2]",
                "end 7", //
                "first 0x4",
                "header 8 0",
                "body []",
                "end 8", //
                "first 0x4",
                "header 9 1",
                "body [5]",
                "end 9",
            ]
        );
        for cut in 0..=FRAMES.len() {
            let (a, b) = FRAMES.split_at(cut);
            assert_eq!(scan(|_| 2, &[a, b]).0, whole, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = FRAMES.chunks(1).collect();
        assert_eq!(scan(|_| 2, &bytes).0, whole);
    }

    #[test]
    fn lengths_are_checked() {
        for length in [-1, i32::MIN, (256 << 20) + 1] {
            let mut frame = vec![4, 0, 0, 0, 7];
            frame.extend(length.to_be_bytes());
            assert_eq!(scan(|_| 0, &[&frame]).0, ["bad length"]);
        }
        let largest = [4, 0, 0, 0, 7, 0x10, 0, 0, 0];
        assert_eq!(scan(|_| 0, &[&largest]).0.len(), 3, "256 MiB is allowed");
    }

    #[test]
    fn a_large_body_does_not_stay_in_memory() {
        let mut frame = vec![4, 0, 0, 0, 7, 0x10, 0, 0, 0];
        frame.resize(100_000, 0);
        let pieces: Vec<&[u8]> = frame.chunks(1000).collect();
        let (_, scanner) = scan(|_| 64 << 10, &pieces);
        assert!(scanner.prefix.capacity() <= KEPT_BUFFER_BYTES);
        assert!(!scanner.is_idle());
    }
}
