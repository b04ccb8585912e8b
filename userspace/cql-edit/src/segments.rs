//! v5 segments of one direction, whole (`native_protocol_v5.spec` §2).

use std::borrow::Cow;
use std::ops::Range;

use crate::cutter::KEPT_BUFFER_BYTES;
use crate::output::Output;
use cql::Compression;
use cql::wire::segment;
use cql::wire::segment::{Broken, MAX_PAYLOAD_BYTES, SegmentHeader};
use cql::wire::{HEADER_BYTES, Header};

/// A segment's header, and how many bytes it has. `None`: there are not enough of them.
fn header_of(
    bytes: &[u8],
    compression: Compression,
) -> Result<Option<(usize, SegmentHeader)>, Broken> {
    let read = match compression {
        Compression::None => bytes
            .first_chunk()
            .map(|raw| (segment::HEADER_BYTES, SegmentHeader::read(raw))),
        _ => bytes
            .first_chunk()
            .map(|raw| (segment::LZ4_HEADER_BYTES, SegmentHeader::read_lz4(raw))),
    };
    read.map(|(bytes, header)| header.map(|header| (bytes, header)))
        .transpose()
}

fn total((header_bytes, header): &(usize, SegmentHeader)) -> usize {
    header_bytes + header.length + segment::TRAILER_BYTES
}

/// A segment whose checksums are right.
#[derive(Debug)]
pub(crate) struct Segment<'a> {
    /// The whole segment, as it came.
    pub(crate) raw: Cow<'a, [u8]>,
    /// The range of the payload within the segment.
    carried: Range<usize>,
    /// The payload before compression, if it is compressed: so many bytes in front of these.
    expanded: Option<(usize, Vec<u8>)>,
    /// Whether the segment has whole frames; otherwise it has a part of one.
    pub(crate) self_contained: bool,
}

impl Segment<'_> {
    /// The payload, without compression.
    pub(crate) fn payload(&self) -> &[u8] {
        let payload = match &self.expanded {
            Some((length, expanded)) => expanded.get(..*length),
            None => self.raw.get(self.carried.clone()),
        };
        payload.unwrap_or_default()
    }
}

/// Cuts bytes into segments. **Invariant**: it holds less than one.
#[derive(Debug)]
pub(crate) struct Segments {
    pub(crate) compression: Compression,
    held: Vec<u8>,
    /// For what the next one becomes.
    expanded: Vec<u8>,
    /// One has come whose checksums are right.
    begun: bool,
}

impl Segments {
    pub(crate) fn new(compression: Compression) -> Self {
        Self {
            compression,
            held: Vec::new(),
            expanded: Vec::new(),
            begun: false,
        }
    }

    /// None has come yet whose checksums are right.
    pub(crate) fn is_first(&self) -> bool {
        !self.begun
    }

    /// No byte of the next one was seen.
    pub(crate) fn is_idle(&self) -> bool {
        self.held.is_empty()
    }

    /// The next one, none of which has gone on yet; `None` when the bytes are used up.
    pub(crate) fn next<'a>(&mut self, out: &mut Output<'a>) -> Result<Option<Segment<'a>>, Broken> {
        if self.held.is_empty() {
            let rest = out.rest();
            if let Some(header) = header_of(rest, self.compression)?
                && let Some(raw) = rest.get(..total(&header))
            {
                return self.checked(&header, Cow::Borrowed(raw)).map(Some);
            }
        }
        loop {
            let total = match header_of(&self.held, self.compression)? {
                Some(header) if self.held.len() >= total(&header) => {
                    let raw = Cow::Owned(std::mem::take(&mut self.held));
                    return self.checked(&header, raw).map(Some);
                }
                Some(header) => total(&header),
                None => match self.compression {
                    Compression::None => segment::HEADER_BYTES,
                    _ => segment::LZ4_HEADER_BYTES,
                },
            };
            let rest = out.rest();
            if rest.is_empty() {
                return Ok(None);
            }
            let missing = total.saturating_sub(self.held.len()).min(rest.len());
            self.held
                .extend_from_slice(rest.get(..missing).unwrap_or_default());
            out.skip(missing);
        }
    }

    fn checked<'a>(
        &mut self,
        (header_bytes, header): &(usize, SegmentHeader),
        raw: Cow<'a, [u8]>,
    ) -> Result<Segment<'a>, Broken> {
        let behind = raw.get(*header_bytes..).unwrap_or_default();
        let carried = header.carried(behind)?.ok_or(Broken::Crc)?;
        let expanded = match header.plain {
            0 => None,
            length => {
                let mut expanded = std::mem::take(&mut self.expanded);
                header.expand(carried, &mut expanded)?;
                Some((length, expanded))
            }
        };
        self.begun = true;
        Ok(Segment {
            carried: *header_bytes..header_bytes + header.length,
            expanded,
            self_contained: header.self_contained,
            raw,
        })
    }

    /// Takes a segment back, and has it go on with this payload in place of its own.
    pub(crate) fn put_back(
        &mut self,
        segment: Segment<'_>,
        instead: Option<Vec<u8>>,
        compression: Compression,
        out: &mut Output<'_>,
    ) {
        let came = match &segment.raw {
            Cow::Borrowed(raw) => raw.len(),
            Cow::Owned(_) => 0,
        };
        match (instead, &segment.raw) {
            (None, Cow::Borrowed(_)) => out.keep(came),
            (None, Cow::Owned(raw)) => out.put(raw),
            (Some(bytes), _) => {
                out.skip(came);
                out.put(&around(compression, &bytes));
            }
        }
        self.done(segment);
    }

    /// Takes the buffers of a segment back for the next one. The segment has gone on, or other bytes
    /// have in its place.
    pub(crate) fn done(&mut self, segment: Segment<'_>) {
        if let Cow::Owned(mut held) = segment.raw {
            held.clear();
            held.shrink_to(KEPT_BUFFER_BYTES);
            self.held = held;
        }
        if let Some((_, mut expanded)) = segment.expanded {
            expanded.truncate(KEPT_BUFFER_BYTES);
            expanded.shrink_to(KEPT_BUFFER_BYTES);
            self.expanded = expanded;
        }
    }

    /// Gives the bytes that were held back, because nothing more will be decided.
    pub(crate) fn give_up(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

/// Segments around frames, as many whole ones to one as go in. Of the last there may be a part: a peer may cut anywhere, or end.
pub(crate) fn around(compression: Compression, mut frames: &[u8]) -> Vec<u8> {
    let mut segments = Vec::with_capacity(frames.len() + 64);
    while !frames.is_empty() {
        let mut together = 0;
        while let Some(next) = frame_at(frames, together)
            && together + next <= frames.len().min(MAX_PAYLOAD_BYTES)
        {
            together += next;
        }
        if together > 0 {
            let (payload, rest) = frames.split_at(together);
            segment::encode(compression, payload, true, &mut segments);
            frames = rest;
            continue;
        }
        // One that is larger than a segment, or a part of one.
        let whole = frame_at(frames, 0).unwrap_or(frames.len());
        let (frame, rest) = frames.split_at(whole.min(frames.len()));
        for part in frame.chunks(MAX_PAYLOAD_BYTES) {
            segment::encode(compression, part, false, &mut segments);
        }
        frames = rest;
    }
    segments
}

/// How many bytes the frame there has.
fn frame_at(frames: &[u8], at: usize) -> Option<usize> {
    let raw = frames.get(at..)?.first_chunk::<HEADER_BYTES>()?;
    Header::read(*raw).map(|header| header.frame_bytes() as usize)
}
