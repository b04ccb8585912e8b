//! The frames that a database sends on a connection that is nobody's flow, and those that are sent to it.

use crate::output::Output;
use crate::response::Response;
use crate::segments::{self, Segments};
use cql::Compression;
use cql::wire::compress;
use cql::wire::{HEADER_BYTES, Header, RESPONSE_BIT};

/// Cuts what a database sends into responses. **Invariant**: it holds what has come and was not taken, so no more
/// than its user lets come.
#[derive(Debug)]
pub struct Incoming {
    version: u8,
    segments: Option<Segments>,
    /// Frames, without segments.
    frames: Vec<u8>,
    at: usize,
    /// So much of a response that is too long has not come.
    skipping: usize,
}

/// A response that has arrived.
#[derive(Debug)]
pub struct Came<'a> {
    /// On which stream.
    pub stream: i16,
    /// The frame's opcode.
    pub opcode: u8,
    /// The frame's flags.
    pub flags: u8,
    /// With its header, as it was sent. `None`: it is too long, and is not kept.
    pub frame: Option<&'a [u8]>,
}

/// The bytes are no response of this version, or no segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotOne;

/// Bytes that are kept of a buffer that was once larger.
const KEPT_BYTES: usize = 128 << 10;

impl Incoming {
    /// Reads a connection that begins in this version.
    pub fn new(version: u8) -> Self {
        Self {
            version,
            segments: None,
            frames: Vec::new(),
            at: 0,
            skipping: 0,
        }
    }

    /// From now on what comes is in segments, in v5; the answer to a STARTUP is the last that is not.
    pub fn accept(&mut self, compression: Compression) {
        if self.version >= 5 && self.segments.is_none() {
            self.segments = Some(Segments::new(compression));
        }
    }

    /// Takes bytes that have come.
    ///
    /// # Errors
    /// They are no segments.
    pub fn comes(&mut self, bytes: &[u8]) -> Result<(), NotOne> {
        self.frames.drain(..self.at);
        self.at = 0;
        if self.frames.is_empty() {
            self.frames.shrink_to(KEPT_BYTES);
        }
        let Some(segments) = &mut self.segments else {
            self.frames.extend_from_slice(bytes);
            return Ok(());
        };
        let mut out = Output::new(bytes);
        while let Some(segment) = segments.next(&mut out).map_err(|_| NotOne)? {
            self.frames.extend_from_slice(segment.payload());
            if let std::borrow::Cow::Borrowed(raw) = segment.raw {
                out.keep(raw.len());
            }
            segments.done(segment);
        }
        Ok(())
    }

    /// The next response; `None` when more has to come. One with more than `max_bytes` is not kept.
    ///
    /// # Errors
    /// What stands there is no response of this version.
    pub fn next(&mut self, max_bytes: usize) -> Result<Option<Came<'_>>, NotOne> {
        let skipped = self.skipping.min(self.frames.len() - self.at);
        self.at += skipped;
        self.skipping -= skipped;
        let rest = self.frames.get(self.at..).unwrap_or_default();
        let Some(raw) = rest.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let header = Header::read(*raw).ok_or(NotOne)?;
        let [first, flags, _, _, opcode, ..] = *raw;
        if first != self.version | RESPONSE_BIT {
            return Err(NotOne);
        }
        let total = header.frame_bytes() as usize;
        let came = |frame| Came {
            stream: header.stream.0,
            opcode,
            flags,
            frame,
        };
        if total > max_bytes {
            self.skipping = total;
            return Ok(Some(came(None)));
        }
        let Some(frame) = rest.get(..total) else {
            return Ok(None);
        };
        self.at += total;
        Ok(Some(came(Some(frame))))
    }

    /// How many bytes have come that were not taken.
    pub fn held_bytes(&self) -> usize {
        self.frames.len() - self.at
    }
}

/// Puts whole frames into v5 segments, as many to a segment as fit.
pub fn in_segments_of(compression: Compression, frames: &[u8]) -> Vec<u8> {
    segments::around(compression, frames)
}

/// The code of an ERROR, a whole frame; `None`: it is none that can be read.
pub fn error_of(compression: Compression, frame: &[u8]) -> Option<i32> {
    plain(compression, frame)?.error()
}

/// A result that sets the keyspace has the name of one, of 48 letters, and what may stand before it.
const MAX_SET_KEYSPACE_BYTES: usize = 4 << 10;

/// Whether this, a whole frame, says that the connection is in another keyspace from now on.
pub fn sets_keyspace(compression: Compression, frame: &[u8]) -> bool {
    frame.len() <= MAX_SET_KEYSPACE_BYTES
        && plain(compression, frame).is_some_and(|response| response.set_keyspace().is_some())
}

/// A response without compression.
fn plain(compression: Compression, frame: &[u8]) -> Option<Response<'_>> {
    let (raw, body) = frame.split_first_chunk::<HEADER_BYTES>()?;
    let header = Header::read(*raw)?;
    let body = match header.is_compressed() {
        true => compress::expand(compression, body)?,
        false => body.into(),
    };
    Some(Response::new(header, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(version: u8, stream: i16, body: &[u8]) -> Vec<u8> {
        let mut frame = vec![version | RESPONSE_BIT, 0];
        frame.extend(stream.to_be_bytes());
        frame.push(8);
        frame.extend((body.len() as u32).to_be_bytes());
        frame.extend(body);
        frame
    }

    fn cut(
        version: u8,
        compression: Compression,
        bytes: &[u8],
        piece: usize,
    ) -> Vec<(i16, Option<usize>)> {
        let mut incoming = Incoming::new(version);
        incoming.accept(compression);
        let mut all = Vec::new();
        for piece in bytes.chunks(piece) {
            incoming.comes(piece).unwrap();
            while let Some(came) = incoming.next(200_000).unwrap() {
                all.push((came.stream, came.frame.map(<[u8]>::len)));
            }
        }
        assert_eq!(incoming.held_bytes(), 0);
        all
    }

    #[test]
    fn frames_are_found_wherever_they_were_cut() {
        let sizes = [0, 1, 100, 190_000, 300_000, 5];
        for (version, compression) in [
            (3, Compression::None),
            (4, Compression::None),
            (5, Compression::None),
            (5, Compression::Lz4),
        ] {
            let mut bytes = Vec::new();
            for (stream, size) in (0..).zip(sizes) {
                bytes.extend(frame(version, stream, &vec![7; size]));
            }
            if version == 5 {
                bytes = in_segments_of(compression, &bytes);
            }
            let expected = (0..).zip(sizes);
            let expected = expected.map(|(n, size)| (n, (size < 200_000).then_some(9 + size)));
            let expected: Vec<_> = expected.collect();
            for piece in [1, 7, 1000, bytes.len()] {
                assert_eq!(cut(version, compression, &bytes, piece), expected);
            }
        }
    }

    #[test]
    fn what_is_no_response_is_not_taken_for_one() {
        for bad in [
            frame(3, 1, &[]),
            vec![4; 9],
            vec![0x84, 0, 0, 0, 8, 0xFF, 0, 0, 0],
        ] {
            let mut incoming = Incoming::new(4);
            incoming.comes(&bad).unwrap();
            assert_eq!(incoming.next(100).err(), Some(NotOne));
        }
        let mut incoming = Incoming::new(5);
        incoming.accept(Compression::None);
        assert_eq!(incoming.comes(&[9; 20]), Err(NotOne));
    }
}
