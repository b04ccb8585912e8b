//! [`Streams`]: which of a client's streams have requests out, and on which nobody can tell whose a response is.

use std::collections::HashMap;

use cql::StreamId;

/// Requests on one stream without a response, beyond which further ones are refused: each may have steps that want
/// to know when it may have been answered.
const MAX_UNPAIRED: u32 = 1_024;

/// A flow's streams, as its client sees them: a request is out until its response has gone on to the client, whoever
/// has made it.
///
/// **Invariant**: a stream on which two requests were out at the same time is unpaired until none is out on it.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// A bit for each stream that has a request out: 8 KiB at most.
    out: Vec<u64>,
    /// The unpaired ones. None of an orderly client's.
    unpaired: HashMap<StreamId, Unpaired>,
}

/// A stream on which several requests were out.
#[derive(Debug, Default)]
struct Unpaired {
    /// Requests that are out.
    out: u32,
    /// The indexes of steps that want to be told of each response, which may be their request's, and the numbers that
    /// they have asked with.
    minded: Vec<(usize, u64)>,
}

impl Streams {
    /// The word and the bit of a stream. Streams from 0 up have the first ones.
    fn bit(stream: StreamId) -> (usize, u64) {
        let index = stream.0 as u16;
        (usize::from(index / 64), 1 << (index % 64))
    }

    /// Whether no request is out.
    pub(crate) fn are_idle(&self) -> bool {
        self.unpaired.is_empty() && self.out.iter().all(|word| *word == 0)
    }

    /// Whether a request is out on this stream.
    #[inline]
    pub(crate) fn is_out(&self, stream: StreamId) -> bool {
        let (word, bit) = Self::bit(stream);
        self.out.get(word).is_some_and(|word| word & bit != 0)
    }

    /// A request goes out on a stream that has none out.
    #[inline]
    pub(crate) fn goes_out(&mut self, stream: StreamId) {
        let (word, bit) = Self::bit(stream);
        if word >= self.out.len() {
            self.out.resize((word + 1).next_power_of_two(), 0);
        }
        if let Some(word) = self.out.get_mut(word) {
            *word |= bit;
        }
    }

    /// A request goes out on a stream that has others out. True: until now it had one.
    pub(crate) fn goes_out_beside(&mut self, stream: StreamId) -> bool {
        let unpaired = self.unpaired.entry(stream).or_default();
        let is_second = unpaired.out == 0;
        unpaired.out = match is_second {
            true => 2,
            false => unpaired.out.saturating_add(1),
        };
        is_second
    }

    /// Whether the stream has as many requests out as it may.
    pub(crate) fn is_full(&self, stream: StreamId) -> bool {
        let unpaired = self.unpaired.get(&stream);
        unpaired.is_some_and(|unpaired| unpaired.out >= MAX_UNPAIRED)
    }

    /// Whether responses on this stream cannot be paired with requests.
    #[inline]
    pub(crate) fn is_unpaired(&self, stream: StreamId) -> bool {
        !self.unpaired.is_empty() && self.unpaired.contains_key(&stream)
    }

    /// Has this step be told of each response that comes on an unpaired stream.
    pub(crate) fn minds(&mut self, stream: StreamId, place: usize, number: u64) {
        if let Some(unpaired) = self.unpaired.get_mut(&stream)
            && !unpaired.minded.contains(&(place, number))
        {
            unpaired.minded.push((place, number));
        }
    }

    /// The indexes of the steps that want to be told of a response on this stream, and their numbers.
    pub(crate) fn minded(&self, stream: StreamId) -> &[(usize, u64)] {
        let unpaired = self.unpaired.get(&stream);
        unpaired.map_or(&[], |unpaired| &unpaired.minded)
    }

    /// A response goes on to the client.
    #[inline]
    pub(crate) fn comes_back(&mut self, stream: StreamId) {
        if !self.unpaired.is_empty() && self.count_back(stream) {
            return;
        }
        let (word, bit) = Self::bit(stream);
        if let Some(word) = self.out.get_mut(word) {
            *word &= !bit;
        }
    }

    /// Counts a response on an unpaired stream. True: others are out on it.
    #[cold]
    fn count_back(&mut self, stream: StreamId) -> bool {
        let Some(unpaired) = self.unpaired.get_mut(&stream) else {
            return false;
        };
        unpaired.out -= 1;
        if unpaired.out == 0 {
            self.unpaired.remove(&stream);
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamId = StreamId(5);
    const B: StreamId = StreamId(-5);

    #[test]
    fn a_stream_is_unpaired_until_none_is_out() {
        let mut streams = Streams::default();
        streams.goes_out(A);
        streams.goes_out(B);
        assert!(streams.goes_out_beside(A));
        assert!(!streams.goes_out_beside(A));
        streams.minds(A, 1, 7);
        streams.minds(A, 1, 7);
        for _ in 0..2 {
            streams.comes_back(A);
            assert!(streams.is_unpaired(A) && streams.is_out(A) && !streams.is_unpaired(B));
            assert_eq!(streams.minded(A), [(1, 7)]);
        }
        streams.comes_back(A);
        assert!(!streams.is_unpaired(A) && !streams.is_out(A) && streams.is_out(B));
        assert_eq!(streams.minded(A), []);
        // Nobody has asked for it.
        streams.comes_back(A);
        streams.goes_out(A);
        assert!(streams.is_out(A) && !streams.is_unpaired(A));
    }

    #[test]
    fn all_streams_take_8_kib() {
        let mut streams = Streams::default();
        for stream in i16::MIN..=i16::MAX {
            assert!(!streams.is_out(StreamId(stream)));
            streams.goes_out(StreamId(stream));
        }
        assert_eq!(streams.out.len() * 8, 8 << 10);
    }

    #[test]
    fn a_stream_is_full_at_its_bound() {
        let mut streams = Streams::default();
        streams.goes_out(A);
        for _ in 1..MAX_UNPAIRED {
            assert!(!streams.is_full(A));
            streams.goes_out_beside(A);
        }
        assert!(streams.is_full(A) && !streams.is_full(B));
    }
}
