//! CQL v4 headers laid over a stream, so that whoever decodes it sees valid framing.

use super::{
    dice::Dice,
    stream::{Direction, Stream},
};

/// Bytes of a frame's header (native_protocol_v4.spec, section 2).
pub(super) const HEADER: u64 = 9;
const QUERY: u8 = 0x07;
const RESULT: u8 = 0x08;

/// How long frames are, in bytes, header included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sizes {
    /// Frames of any length, with bodies of up to so many bytes.
    Random(u64),
    /// All alike.
    Fixed(u64),
}

/// Content of one direction: a stream, and headers over it if it is to be CQL.
#[derive(Debug, Clone)]
pub(super) struct Content {
    stream: Stream,
    frames: Option<Frames>,
}

impl Content {
    pub(super) fn new(stream: Stream, frames: Option<Frames>) -> Self {
        Self { stream, frames }
    }

    /// The stream beneath the headers.
    pub(super) fn stream(&self) -> Stream {
        self.stream
    }

    /// The bytes from position `at` on.
    pub(super) fn fill(&mut self, at: u64, out: &mut [u8]) {
        self.stream.fill(at, out);
        let end = at + out.len() as u64;
        let Some(frames) = &mut self.frames else {
            return;
        };
        frames.seek(at);
        while frames.start < end {
            for (position, byte) in (frames.start..).zip(frames.header()) {
                let within = position
                    .checked_sub(at)
                    .and_then(|within| usize::try_from(within).ok());
                if let Some(place) = within.and_then(|within| out.get_mut(within)) {
                    *place = byte;
                }
            }
            if !frames.advance() {
                return;
            }
        }
    }

    /// First byte of `got` that is wrong, as [`Stream::mismatch`] tells it.
    pub(super) fn mismatch(&mut self, at: u64, got: &[u8]) -> Option<usize> {
        let Some(frames) = &mut self.frames else {
            return self.stream.mismatch(at, got);
        };
        frames.seek(at);
        let (mut done, mut rest) = (0, got);
        loop {
            let position = at + done as u64;
            let within = position - frames.start;
            let header = frames.header();
            let expected = header.get(within as usize..).unwrap_or_default();
            let (head, after) = rest.split_at(expected.len().min(rest.len()));
            if let Some(wrong) = head.iter().zip(expected).position(|(a, b)| a != b) {
                return Some(done + wrong);
            }
            done += head.len();
            let body = frames.start + frames.len - (at + done as u64);
            let body = usize::try_from(body).unwrap_or(usize::MAX);
            let (body, after) = after.split_at(body.min(after.len()));
            if let Some(wrong) = self.stream.mismatch(at + done as u64, body) {
                return Some(done + wrong);
            }
            done += body.len();
            rest = after;
            if rest.is_empty() {
                return None;
            }
            if !frames.advance() {
                return Some(done);
            }
        }
    }
}

/// The frames of one direction, and one of them where the last look was.
#[derive(Debug, Clone)]
pub(super) struct Frames {
    seed: u64,
    direction: Direction,
    sizes: Sizes,
    total: u64,
    number: u64,
    start: u64,
    len: u64,
    stream_id: u16,
}

impl Frames {
    /// `total`: bytes in all, none or at least a header; they end with a frame.
    pub(super) fn new(seed: u64, direction: Direction, sizes: Sizes, total: u64) -> Self {
        let mut frames = Self {
            seed,
            direction,
            sizes,
            total,
            number: 0,
            start: 0,
            len: 0,
            stream_id: 0,
        };
        frames.measure();
        frames
    }

    fn seek(&mut self, at: u64) {
        if at < self.start {
            (self.number, self.start) = (0, 0);
            self.measure();
        }
        while at >= self.start + self.len && self.advance() {}
    }

    /// False at the last frame.
    fn advance(&mut self) -> bool {
        let next = self.start + self.len;
        if next >= self.total {
            return false;
        }
        self.number += 1;
        self.start = next;
        self.measure();
        true
    }

    fn measure(&mut self) {
        // A response has its request's stream id: both dice begin alike.
        let mut dice = Dice::new(&[self.seed, self.number]);
        self.stream_id = dice.below(1 << 15) as u16;
        let mut dice = Dice::new(&[dice.next(), u64::from(self.direction == Direction::Down)]);
        let len = match self.sizes {
            Sizes::Fixed(len) => len.max(HEADER),
            Sizes::Random(max) => HEADER + dice.log(max + 1) - 1,
        };
        let left = self.total - self.start;
        // What could not be a frame of its own belongs to the last one.
        self.len = if left < len + HEADER { left } else { len };
    }

    fn header(&self) -> [u8; HEADER as usize] {
        let (version, opcode) = match self.direction {
            Direction::Up => (0x04, QUERY),
            Direction::Down => (0x84, RESULT),
        };
        let [s0, s1] = self.stream_id.to_be_bytes();
        let body = u32::try_from(self.len.saturating_sub(HEADER)).unwrap_or(u32::MAX);
        let [l0, l1, l2, l3] = body.to_be_bytes();
        [version, 0, s0, s1, opcode, l0, l1, l2, l3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(direction: Direction, sizes: Sizes, total: u64) -> Content {
        Content::new(
            Stream::new(3, 1, direction),
            Some(Frames::new(3, direction, sizes, total)),
        )
    }

    /// Walks the frames as a decoder does; their stream ids.
    fn walk(bytes: &[u8]) -> Vec<u16> {
        let (mut at, mut ids) = (0, Vec::new());
        while at < bytes.len() {
            let header = &bytes[at..at + 9];
            assert!(header[0] & 0x7f == 4 && (header[4] == QUERY || header[4] == RESULT));
            ids.push(u16::from_be_bytes([header[2], header[3]]));
            let body = u32::from_be_bytes(header[5..].try_into().unwrap());
            at += 9 + body as usize;
        }
        assert_eq!(at, bytes.len(), "the last frame ends with the stream");
        ids
    }

    #[test]
    fn the_bytes_are_whole_frames() {
        for total in [9, 17, 18, 1000, 300_000] {
            let mut bytes = vec![0; total as usize];
            content(Direction::Up, Sizes::Random(5000), total).fill(0, &mut bytes);
            walk(&bytes);
        }
    }

    #[test]
    fn requests_and_responses_of_turns_share_stream_ids() {
        let (mut up, mut down) = (vec![0; 1280], vec![0; 2560]);
        content(Direction::Up, Sizes::Fixed(128), 1280).fill(0, &mut up);
        content(Direction::Down, Sizes::Fixed(256), 2560).fill(0, &mut down);
        assert_eq!(walk(&up), walk(&down));
        assert_eq!(walk(&up).len(), 10);
    }

    #[test]
    fn pieces_agree_with_the_whole_at_every_cut() {
        let mut whole = vec![0; 5000];
        content(Direction::Down, Sizes::Random(100), 5000).fill(0, &mut whole);
        let mut cursor = content(Direction::Down, Sizes::Random(100), 5000);
        for at in (0..5000).rev().step_by(37) {
            let mut piece = vec![0; (5000 - at).min(300)];
            cursor.fill(at as u64, &mut piece);
            assert_eq!(piece, whole[at..at + piece.len()]);
            assert_eq!(cursor.mismatch(at as u64, &piece), None);
            piece[0] ^= 1;
            assert_eq!(cursor.mismatch(at as u64, &piece), Some(0));
        }
        for wrong in 0..whole.len() {
            whole[wrong] ^= 1;
            assert_eq!(cursor.mismatch(0, &whole), Some(wrong));
            whole[wrong] ^= 1;
        }
    }
}
