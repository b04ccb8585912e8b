//! A ring of bytes: one writer, one reader, whole records, in memory that is there from the
//! beginning.
//!
//! The ring is `rtrb`'s: its positions are in cache lines of their own, and each side keeps the
//! other's position as it last saw it. A record is behind its length and is published with it, so
//! that a reader finds whole records only. It is copied in as one piece, and given out in place
//! unless it goes over the ring's end.

use rtrb::{Consumer, Producer, RingBuffer};

/// The longest record. One that does not fit into a fraction of a ring would wait for an empty one.
pub const MAX_RECORD_BYTES: usize = 64 << 10;

/// The size of a record's length, which is before the record.
const LENGTH_BYTES: usize = size_of::<u32>();

/// The reason why a record was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// There is no room now.
    Now,
    /// There never will be room: the record is longer than [`MAX_RECORD_BYTES`], or than the ring.
    TooLong,
}

/// The writing end.
#[derive(Debug)]
pub struct Writer {
    to: Producer<u8>,
    /// A record behind its length.
    whole: Vec<u8>,
}

/// The reading end.
#[derive(Debug)]
pub struct Reader {
    from: Consumer<u8>,
    /// A record that goes over the end.
    copy: Vec<u8>,
}

/// A ring of so many bytes, lengths included.
pub fn ring(bytes: usize) -> (Writer, Reader) {
    let (to, from) = RingBuffer::new(bytes);
    let whole = Vec::new();
    let copy = Vec::new();
    (Writer { to, whole }, Reader { from, copy })
}

impl Writer {
    /// Writes a record, or nothing of it.
    ///
    /// # Errors
    /// There is no room.
    pub fn push(&mut self, record: &[u8]) -> Result<(), Full> {
        let room = self.to.buffer().capacity();
        if record.len() > MAX_RECORD_BYTES || LENGTH_BYTES + record.len() > room {
            return Err(Full::TooLong);
        }
        self.whole.clear();
        self.whole.extend((record.len() as u32).to_le_bytes());
        self.whole.extend_from_slice(record);
        let pushed = self.to.push_entire_slice(&self.whole);
        pushed.map_err(|_| Full::Now)
    }

    /// Whether more than half of it is taken. The reader's position is only looked at when it may be.
    pub fn is_half_full(&self) -> bool {
        let half = self.to.buffer().capacity() / 2;
        self.to.cached_slots() < half && self.to.slots() < half
    }
}

impl Reader {
    /// Gives everything that is there by now to `each`, in order. How many records that were. Room is given
    /// back by the eighth of a ring: seldom enough that the writer's cache is left alone.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) -> usize {
        let eighth = self.from.buffer().capacity() / 8;
        let (mut records, mut left) = (0, self.from.slots());
        while left > 0 {
            let Ok(chunk) = self.from.read_chunk(left) else {
                break; // There are as many as there were.
            };
            let mut rest = chunk.as_slices();
            let mut taken = 0;
            while taken < eighth.max(1) {
                let Some(length) = take(&mut rest, LENGTH_BYTES, &mut self.copy) else {
                    break;
                };
                let length = length.try_into().map_or(0, u32::from_le_bytes) as usize;
                let Some(record) = take(&mut rest, length, &mut self.copy) else {
                    break;
                };
                each(record);
                taken += LENGTH_BYTES + length;
                records += 1;
            }
            if taken == 0 {
                break; // A writer publishes whole records.
            }
            chunk.commit(taken);
            left -= taken;
        }
        records
    }

    /// Whether there is nothing now.
    pub fn is_empty(&self) -> bool {
        self.from.is_empty()
    }

    /// The writer is gone; what it has written may still be there.
    pub fn is_ended(&self) -> bool {
        self.from.is_abandoned()
    }
}

/// The next bytes of two pieces that follow one another: in place, or, if they are in both, copied.
fn take<'c, 'b: 'c>(
    from: &mut (&'b [u8], &'b [u8]),
    bytes: usize,
    copy: &'c mut Vec<u8>,
) -> Option<&'c [u8]> {
    let (head, tail) = from;
    if head.is_empty() {
        *head = std::mem::take(tail);
    }
    if let Some((taken, rest)) = head.split_at_checked(bytes) {
        *head = rest;
        return Some(taken);
    }
    let (behind, rest) = tail.split_at_checked(bytes - head.len())?;
    copy.clear();
    copy.extend_from_slice(head);
    copy.extend_from_slice(behind);
    (*head, *tail) = (rest, &[]);
    Some(copy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(reader: &mut Reader) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        reader.drain(|record| found.push(record.to_vec()));
        found
    }

    #[test]
    fn what_does_not_fit_is_refused_whole() {
        let (mut writer, mut reader) = ring(64);
        assert_eq!(writer.push(&[7; 61]), Err(Full::TooLong));
        assert_eq!(writer.push(&[1; 28]), Ok(()));
        assert_eq!(writer.push(&[2; 29]), Err(Full::Now));
        assert!(!writer.is_half_full());
        assert_eq!(writer.push(&[3; 28]), Ok(()));
        assert!(writer.is_half_full());
        assert_eq!(all(&mut reader), [vec![1; 28], vec![3; 28]]);
        assert!(!writer.is_half_full());
        assert_eq!(writer.push(&[]), Ok(()));
        assert_eq!(all(&mut reader), [Vec::<u8>::new()]);
        let (mut large, _reader) = ring(1 << 20);
        assert_eq!(large.push(&[0; MAX_RECORD_BYTES]), Ok(()));
        assert_eq!(large.push(&[0; MAX_RECORD_BYTES + 1]), Err(Full::TooLong));
    }

    #[test]
    fn a_writer_that_goes_leaves_what_it_has_written() {
        let (mut writer, mut reader) = ring(64);
        writer.push(b"last").unwrap();
        assert!(!reader.is_ended());
        drop(writer);
        assert!(reader.is_ended() && !reader.is_empty());
        assert_eq!(all(&mut reader), [b"last"]);
        assert!(reader.is_empty());
    }

    proptest! {
        /// Every accepted record comes out, in order, whatever is written and whenever it is read.
        #[test]
        fn nothing_is_lost_or_changed(
            steps in prop::collection::vec(
                prop_oneof![
                    4 => prop::collection::vec(any::<u8>(), 0..70).prop_map(Some),
                    1 => Just(None),
                ],
                0..200,
            ),
        ) {
            let (mut writer, mut reader) = ring(250);
            let mut waiting: Vec<Vec<u8>> = Vec::new();
            for step in steps {
                match step {
                    Some(record) => {
                        let used: usize = waiting.iter().map(|w| LENGTH_BYTES + w.len()).sum();
                        let fits = used + LENGTH_BYTES + record.len() <= 250;
                        prop_assert_eq!(writer.push(&record).is_ok(), fits);
                        if fits {
                            waiting.push(record);
                        }
                    }
                    None => {
                        prop_assert_eq!(&all(&mut reader), &waiting);
                        waiting.clear();
                    }
                }
            }
        }
    }

    #[test]
    fn two_threads_agree() {
        const RECORDS: u64 = 200_000;
        let (mut writer, mut reader) = ring(4096);
        let writing = std::thread::spawn(move || {
            for n in 0..RECORDS {
                let record = vec![n as u8; 8 + n as usize % 50];
                while writer.push(&record).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < RECORDS {
            let found = reader.drain(|record| {
                assert_eq!(record, vec![next as u8; 8 + next as usize % 50]);
                next += 1;
            });
            if found == 0 {
                std::thread::yield_now();
            }
        }
        writing.join().unwrap();
        assert!(reader.is_ended() && reader.is_empty());
    }
}
