//! A ring of our own, without `unsafe`, which the benchmark compares with `rtrb`, and which lost.
//!
//! A record is a word with its length and as many words as its bytes take. Words are atomics only so that
//! no `unsafe` is needed to share them: they are stored and loaded without an order of their own, which costs
//! what plain ones do. The order comes from two positions: `written` is published behind the words, `read`
//! behind the reader's copies of them. Each side keeps the other's position as it last saw it, and looks
//! again only when that is not enough; each position has a pair of cache lines for itself.

use std::sync::{
    Arc,
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

const WORD_BYTES: usize = 8;

/// Two cache lines: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

#[derive(Debug)]
struct Shared {
    /// The ring's words, a power of two of them.
    words: Box<[AtomicU64]>,
    /// Words that were ever written, and read.
    written: Padded<AtomicU64>,
    read: Padded<AtomicU64>,
}

/// The writing end.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    written: u64,
    /// The reader's position as last seen.
    read: u64,
}

/// The reading end.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    read: u64,
}

/// A ring of at least so many bytes, lengths included.
pub fn ring(bytes: usize) -> (Writer, Reader) {
    let words = bytes.div_ceil(WORD_BYTES).next_power_of_two();
    let shared = Arc::new(Shared {
        words: (0..words).map(|_| AtomicU64::new(0)).collect(),
        written: Padded::default(),
        read: Padded::default(),
    });
    let writer = Writer {
        shared: shared.clone(),
        written: 0,
        read: 0,
    };
    (writer, Reader { shared, read: 0 })
}

impl Shared {
    /// `count` words from this position on: up to the end of the memory, and from its beginning.
    fn at(&self, position: u64, count: usize) -> (&[AtomicU64], &[AtomicU64]) {
        let len = self.words.len();
        let begin = position as usize & (len - 1);
        let first = count.min(len - begin);
        let head = self.words.get(begin..begin + first).unwrap_or_default();
        let tail = self.words.get(..count - first).unwrap_or_default();
        (head, tail)
    }
}

impl Writer {
    /// Writes a record, or nothing of it: there is no room.
    pub fn push(&mut self, record: &[u8]) -> bool {
        let words = 1 + record.len().div_ceil(WORD_BYTES);
        let room = self.shared.words.len();
        if words > room {
            return false;
        }
        if self.used() + words > room {
            self.read = self.shared.read.0.load(Acquire);
            if self.used() + words > room {
                return false;
            }
        }
        let (head, tail) = self.shared.at(self.written, words);
        let mut slots = head.iter().chain(tail);
        if let Some(slot) = slots.next() {
            slot.store(record.len() as u64, Relaxed);
        }
        match tail.is_empty() {
            true => put(record, head.get(1..).unwrap_or_default()),
            false => {
                let in_head = head.len().saturating_sub(1) * WORD_BYTES;
                let (before, behind) = record.split_at_checked(in_head).unwrap_or((record, &[]));
                put(before, head.get(1..).unwrap_or_default());
                put(behind, tail);
            }
        }
        self.written += words as u64;
        self.shared.written.0.store(self.written, Release);
        true
    }

    fn used(&self) -> usize {
        self.written.wrapping_sub(self.read) as usize
    }
}

impl Reader {
    /// Gives everything that is there by now to `each`, in order. How many records that were. Room is given
    /// back by the eighth of a ring: seldom enough that the writer's cache is left alone.
    pub fn drain(&mut self, copy: &mut Vec<u8>, mut each: impl FnMut(&[u8])) -> usize {
        let written = self.shared.written.0.load(Acquire);
        let eighth = self.shared.words.len() as u64 / 8;
        let (mut records, mut given_back) = (0, self.read);
        while self.read < written {
            let (length, _) = self.shared.at(self.read, 1);
            let length = length.first().map_or(0, |word| word.load(Relaxed)) as usize;
            let words = length.div_ceil(WORD_BYTES);
            let (head, tail) = self.shared.at(self.read + 1, words);
            copy.clear();
            copy.reserve(words * WORD_BYTES);
            for word in head.iter().chain(tail) {
                copy.extend_from_slice(&word.load(Relaxed).to_le_bytes());
            }
            copy.truncate(length);
            each(copy);
            self.read += 1 + words as u64;
            records += 1;
            if self.read - given_back >= eighth {
                given_back = self.read;
                self.shared.read.0.store(self.read, Release);
            }
        }
        self.shared.read.0.store(self.read, Release);
        records
    }
}

/// Bytes into as many words as they take.
fn put(bytes: &[u8], slots: &[AtomicU64]) {
    let (whole, rest) = bytes.as_chunks::<WORD_BYTES>();
    for (chunk, slot) in whole.iter().zip(slots) {
        slot.store(u64::from_le_bytes(*chunk), Relaxed);
    }
    if let Some(slot) = slots.get(whole.len())
        && !rest.is_empty()
    {
        let mut word = [0; WORD_BYTES];
        for (to, byte) in word.iter_mut().zip(rest) {
            *to = *byte;
        }
        slot.store(u64::from_le_bytes(word), Relaxed);
    }
}
