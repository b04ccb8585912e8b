//! CQL v4 frames around a stream, so that whoever decodes it sees valid framing.

use super::{
    dice::Dice,
    front::{Front, Message},
    stream::{Direction, Stream},
};

/// How long frames are when they are sent, in bytes, fronts included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sizes {
    /// Frames of any length, with up to so many bytes behind their fronts.
    Random(u64),
    /// All alike.
    Fixed(u64),
}

/// Content of one direction: a stream, and frames around it if it is to be CQL.
#[derive(Debug, Clone)]
pub(super) struct Content {
    stream: Stream,
    frames: Option<Frames>,
}

impl Content {
    pub(super) fn new(stream: Stream, frames: Option<Frames>) -> Self {
        Self { stream, frames }
    }

    /// Place of the word that [`super::stream::origin`] tells, if it is one of this content.
    pub(super) fn place(&mut self, origin: u64) -> Option<u64> {
        let position = self.stream.position(origin)?;
        match &mut self.frames {
            Some(frames) => frames.place(position),
            None => Some(position),
        }
    }

    /// The bytes from place `at` on.
    pub(super) fn fill(&mut self, mut at: u64, out: &mut [u8]) {
        let Some(frames) = &mut self.frames else {
            return self.stream.fill(at, out);
        };
        frames.seek(at);
        let mut rest = out;
        loop {
            let front = frames.front_from(at);
            let out = std::mem::take(&mut rest);
            let (head, after) = out.split_at_mut(front.len().min(out.len()));
            for (place, byte) in head.iter_mut().zip(front) {
                *place = *byte;
            }
            at += head.len() as u64;
            let (body, after) = after.split_at_mut(frames.left_from(at).min(after.len()));
            self.stream.fill(frames.position(at), body);
            at += body.len() as u64;
            rest = after;
            if rest.is_empty() || !frames.advance() {
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
            let expected = frames.front_from(at + done as u64);
            let (head, after) = rest.split_at(expected.len().min(rest.len()));
            if let Some(wrong) = head.iter().zip(expected).position(|(a, b)| a != b) {
                return Some(done + wrong);
            }
            done += head.len();
            let place = at + done as u64;
            let (body, after) = after.split_at(frames.left_from(place).min(after.len()));
            if let Some(wrong) = self.stream.mismatch(frames.position(place), body) {
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
    /// Bytes in all when they are sent.
    total: u64,
    /// Bytes of a front when it is sent.
    least: u64,
    front: Front,
    /// Bytes by which each frame is longer than when it was sent, because it is edited on its way.
    growth: i64,
    number: u64,
    /// Place and length of the frame when it is sent.
    start: u64,
    len: u64,
    /// The frame's front.
    head: Vec<u8>,
}

impl Frames {
    /// `total`: bytes in all, none or at least a header; they end with a frame.
    pub(super) fn new(seed: u64, direction: Direction, sizes: Sizes, total: u64) -> Self {
        let front = Front::new(Message::Bare(direction), false);
        let mut frames = Self {
            seed,
            direction,
            sizes,
            total,
            least: front.bytes(),
            front,
            growth: 0,
            number: 0,
            start: 0,
            len: 0,
            head: Vec::new(),
        };
        frames.measure();
        frames
    }

    /// Gives the frames messages: as these are sent, or as they arrive.
    pub(super) fn with(mut self, message: Message, has_arrived: bool) -> Self {
        let by_client = self.direction == Direction::Up;
        self.least = Front::new(message, by_client).bytes();
        self.front = Front::new(message, by_client != has_arrived);
        if self.total > 0 {
            self.growth = self.front.bytes() as i64 - self.least as i64;
        }
        self.measure();
        self
    }

    /// How many there are, and the bytes of all of them.
    pub(super) fn count(mut self) -> (u64, u64) {
        if self.total == 0 {
            return (0, 0);
        }
        while self.advance() {}
        (self.number + 1, self.ends())
    }

    /// Place at which the frame begins.
    fn begins(&self) -> u64 {
        let growth = self.growth * self.number as i64;
        self.start.saturating_add_signed(growth)
    }

    /// Place behind the frame.
    fn ends(&self) -> u64 {
        (self.start + self.len).saturating_add_signed(self.shift())
    }

    /// How much further the frame's end, and the stream's bytes in it, are than when they were sent.
    fn shift(&self) -> i64 {
        self.growth * (self.number + 1) as i64
    }

    /// Position in the stream of a byte behind the frame's front.
    fn position(&self, at: u64) -> u64 {
        at.saturating_add_signed(-self.shift())
    }

    /// Bytes of the front from this place of the frame on.
    fn front_from(&self, at: u64) -> &[u8] {
        let within = usize::try_from(at.saturating_sub(self.begins()));
        let front = within.ok().and_then(|within| self.head.get(within..));
        front.unwrap_or_default()
    }

    /// Bytes of the frame from this place on.
    fn left_from(&self, at: u64) -> usize {
        usize::try_from(self.ends().saturating_sub(at)).unwrap_or(usize::MAX)
    }

    /// Place of the byte at this position of the stream, if no front is in its place.
    fn place(&mut self, position: u64) -> Option<u64> {
        if self.growth == 0 {
            return Some(position);
        }
        if position < self.start {
            self.rewind();
        }
        while position >= self.start + self.len && self.advance() {}
        let place = position.saturating_add_signed(self.shift());
        let body = self.begins() + self.head.len() as u64..self.ends();
        body.contains(&place).then_some(place)
    }

    fn seek(&mut self, at: u64) {
        if at < self.begins() {
            self.rewind();
        }
        while at >= self.ends() && self.advance() {}
    }

    fn rewind(&mut self) {
        (self.number, self.start) = (0, 0);
        self.measure();
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
        let by_chance = dice.below(1 << 15) as u16;
        let mut dice = Dice::new(&[dice.next(), u64::from(self.direction == Direction::Down)]);
        let len = match self.sizes {
            Sizes::Fixed(len) => len.max(self.least),
            Sizes::Random(max) => self.least + dice.log(max + 1) - 1,
        };
        let left = self.total - self.start;
        // What could not be a frame of its own belongs to the last one.
        self.len = if left < len + self.least { left } else { len };
        let stream_id = self.front.stream_id(self.number).unwrap_or(by_chance);
        let len = self.len.saturating_add_signed(self.growth);
        self.front.write(len, stream_id, &mut self.head);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        front::{CLIENTS_KEYSPACE, QUERY, RESULT, SERVERS_KEYSPACE},
        stream::origin,
    };

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

    const MESSAGES: [(Direction, Message); 3] = [
        (Direction::Up, Message::Query),
        (Direction::Down, Message::Rows),
        (Direction::Down, Message::Event),
    ];

    fn edited(way: (Direction, Message), total: u64, has_arrived: bool) -> (Content, Vec<u8>) {
        let (direction, message) = way;
        let frames = Frames::new(3, direction, Sizes::Random(300), total);
        let frames = frames.with(message, has_arrived);
        let (_, bytes) = frames.clone().count();
        let mut content = Content::new(Stream::new(3, 1, direction), Some(frames));
        let mut whole = vec![0; bytes as usize];
        content.fill(0, &mut whole);
        (content, whole)
    }

    /// An edit of frames: the name that they begin with is another one, and so are the lengths around it.
    fn edit(sent: &[u8], from: &str, to: &str) -> Vec<u8> {
        let (mut at, mut made) = (0, Vec::new());
        let longer = |length: &[u8]| {
            let length = u32::from_be_bytes(length.try_into().unwrap());
            (length + to.len() as u32 - from.len() as u32).to_be_bytes()
        };
        while at < sent.len() {
            let length = u32::from_be_bytes(sent[at + 5..at + 9].try_into().unwrap());
            let frame = &sent[at..at + 9 + length as usize];
            at += frame.len();
            let mut names = frame.windows(from.len());
            let name = names.position(|bytes| bytes == from.as_bytes()).unwrap();
            let behind = &frame[name + from.len()..];
            made.extend([&frame[..5], &longer(&frame[5..9])].concat());
            match frame[4] {
                // Of the text.
                QUERY => made.extend([&longer(&frame[9..13])[..], &frame[13..name]].concat()),
                // Of the name.
                _ => {
                    made.extend(&frame[9..name - 2]);
                    made.extend((to.len() as u16).to_be_bytes());
                }
            }
            made.extend([to.as_bytes(), behind].concat());
        }
        made
    }

    #[test]
    fn what_arrives_is_the_edit_of_what_was_sent() {
        for way in MESSAGES {
            let (from, to) = match way.0 {
                Direction::Up => (CLIENTS_KEYSPACE, SERVERS_KEYSPACE),
                Direction::Down => (SERVERS_KEYSPACE, CLIENTS_KEYSPACE),
            };
            for total in [100, 199, 20_000] {
                let (_, sent) = edited(way, total, false);
                let (mut cursor, arrives) = edited(way, total, true);
                assert_eq!(sent.len() as u64, total);
                assert_ne!(sent.len(), arrives.len());
                assert!(edit(&sent, from, to) == arrives, "{way:?} {total}");
                for at in (0..arrives.len()).rev().step_by(37) {
                    let mut piece = vec![0; (arrives.len() - at).min(300)];
                    cursor.fill(at as u64, &mut piece);
                    assert_eq!(piece, arrives[at..at + piece.len()]);
                    assert_eq!(cursor.mismatch(at as u64, &piece), None);
                    piece[0] ^= 1;
                    assert_eq!(cursor.mismatch(at as u64, &piece), Some(0));
                }
            }
        }
    }

    #[test]
    fn a_word_of_what_arrives_is_found_at_its_place() {
        for way in MESSAGES {
            let (mut cursor, arrives) = edited(way, 20_000, true);
            let words = arrives.windows(8).enumerate();
            let places: Vec<_> = words
                .filter_map(|(at, word)| {
                    let place = cursor.place(origin(word.try_into().unwrap()))?;
                    Some((at as u64, place))
                })
                .collect();
            assert!(places.len() > 500, "{way:?}: {}", places.len());
            assert!(places.iter().all(|(at, place)| at == place), "{way:?}");
        }
    }
}
