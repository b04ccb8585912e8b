//! The bytes of one direction of one connection: random, and known at every position.
//!
//! Eight bytes at a multiple of eight are a word, a mix of the stream's key and the word's
//! number. The mix can be undone: from eight bytes that arrived it follows, without a search,
//! at which position of which stream they belong.

/// Odd, so that it has an inverse; its multiples are spread evenly.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
/// Odd, so that it has an inverse (from splitmix64).
const FACTOR: u64 = 0xBF58_476D_1CE4_E5B9;
const STEP_INVERSE: u64 = inverse(STEP);
const FACTOR_INVERSE: u64 = inverse(FACTOR);
/// Bytes of a word.
pub(super) const WORD: usize = 8;
/// Bytes that are made or compared at once.
const BLOCK: usize = 64;
/// No stream is longer; what seems to lie beyond is chance.
const LONGEST: u64 = 1 << 44;

/// Direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From client to server.
    Up,
    /// From server to client.
    Down,
}

/// One direction of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stream {
    key: u64,
}

impl Stream {
    pub(super) fn new(seed: u64, connection: u64, direction: Direction) -> Self {
        let way = connection * 2 + u64::from(direction == Direction::Down);
        Self {
            key: mix(seed ^ mix(way.wrapping_add(1))),
        }
    }

    #[inline(always)]
    fn word(self, number: u64) -> u64 {
        mix(self.key.wrapping_add(number.wrapping_mul(STEP)))
    }

    #[inline(always)]
    fn block(self, number: u64) -> [[u8; WORD]; BLOCK / WORD] {
        [
            self.word(number).to_le_bytes(),
            self.word(number + 1).to_le_bytes(),
            self.word(number + 2).to_le_bytes(),
            self.word(number + 3).to_le_bytes(),
            self.word(number + 4).to_le_bytes(),
            self.word(number + 5).to_le_bytes(),
            self.word(number + 6).to_le_bytes(),
            self.word(number + 7).to_le_bytes(),
        ]
    }

    fn byte(self, at: u64) -> u8 {
        let [byte, ..] = (self.word(at / 8) >> (at % 8 * 8)).to_le_bytes();
        byte
    }

    /// The bytes from position `at` on.
    pub(super) fn fill(self, mut at: u64, out: &mut [u8]) {
        let (head, rest) = out.split_at_mut(to_word(at).min(out.len()));
        for byte in head {
            *byte = self.byte(at);
            at += 1;
        }
        let (blocks, tail) = rest.as_chunks_mut::<BLOCK>();
        for block in blocks {
            block.copy_from_slice(self.block(at / 8).as_flattened());
            at += BLOCK as u64;
        }
        for byte in tail {
            *byte = self.byte(at);
            at += 1;
        }
    }

    /// How many bytes of `got` are those from position `at` on, before one is not; `None`: all.
    pub(super) fn mismatch(self, at: u64, got: &[u8]) -> Option<usize> {
        let (head, rest) = got.split_at_checked(to_word(at)).unwrap_or((got, &[]));
        let (blocks, tail) = rest.as_chunks::<BLOCK>();
        if let Some(found) = self.bytewise(at, head) {
            return Some(found);
        }
        let mut done = head.len();
        for block in blocks {
            let expected = self.block((at + done as u64) / 8);
            if block.as_slice() != expected.as_flattened() {
                return self
                    .bytewise(at + done as u64, block)
                    .map(|within| done + within);
            }
            done += BLOCK;
        }
        self.bytewise(at + done as u64, tail)
            .map(|within| done + within)
    }

    fn bytewise(self, at: u64, got: &[u8]) -> Option<usize> {
        got.iter()
            .zip(at..)
            .position(|(&byte, position)| byte != self.byte(position))
    }

    /// Position in this stream of the word whose [`origin`] is `origin`.
    pub(super) fn position(self, origin: u64) -> Option<u64> {
        let number = origin.wrapping_sub(self.key).wrapping_mul(STEP_INVERSE);
        (number < LONGEST / WORD as u64).then(|| number * WORD as u64)
    }
}

/// Undoes the mix of the word in these eight bytes.
pub(super) fn origin(bytes: [u8; WORD]) -> u64 {
    let y = u64::from_le_bytes(bytes);
    let x = (y ^ (y >> 29) ^ (y >> 58)).wrapping_mul(FACTOR_INVERSE);
    x ^ (x >> 32)
}

#[inline(always)]
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 32)).wrapping_mul(FACTOR);
    x ^ (x >> 29)
}

/// Bytes from position `at` to the next word.
fn to_word(at: u64) -> usize {
    usize::from((at % 8) as u8).wrapping_neg() % WORD
}

/// The number whose product with the odd `n` is 1, by Newton's iteration.
const fn inverse(n: u64) -> u64 {
    let mut x = n;
    let mut i = 0;
    // Each turn doubles the correct bits; n itself is right in three.
    while i < 5 {
        x = x.wrapping_mul(2u64.wrapping_sub(n.wrapping_mul(x)));
        i += 1;
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_piece_is_the_same_as_in_the_whole() {
        let stream = Stream::new(1, 2, Direction::Up);
        let mut whole = vec![0; 1000];
        stream.fill(0, &mut whole);
        for (at, len) in [
            (0, 1),
            (1, 3),
            (7, 9),
            (8, 64),
            (3, 500),
            (13, 987),
            (999, 1),
        ] {
            let mut piece = vec![0; len];
            stream.fill(at as u64, &mut piece);
            assert_eq!(piece, whole[at..at + len]);
            assert_eq!(stream.mismatch(at as u64, &piece), None);
        }
    }

    #[test]
    fn the_first_wrong_byte_is_found_wherever_it_is() {
        let stream = Stream::new(1, 2, Direction::Down);
        let mut bytes = vec![0; 300];
        stream.fill(5, &mut bytes);
        for wrong in 0..bytes.len() {
            bytes[wrong] ^= 0x40;
            assert_eq!(stream.mismatch(5, &bytes), Some(wrong));
            bytes[wrong] ^= 0x40;
        }
    }

    #[test]
    fn a_word_tells_its_position_and_its_stream() {
        let (own, other) = (
            Stream::new(9, 4, Direction::Up),
            Stream::new(9, 5, Direction::Up),
        );
        for number in [0u64, 1, 77, 1 << 30] {
            let mut word = [0; WORD];
            own.fill(number * 8, &mut word);
            assert_eq!(own.position(origin(word)), Some(number * 8));
            assert_eq!(other.position(origin(word)), None);
        }
    }
}
