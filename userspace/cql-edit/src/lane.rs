//! [`Lane`]: a direction's frames, bare or in segments, and the bytes that go on in their place.

use crate::cutter::{Cut, Cutter, Frames};
use crate::edited::Unreadable;
use crate::output::Output;
use crate::room::Taken;
use crate::segments::{self, Segments};
use crate::terms::Terms;
use cql::Compression;
use cql::wire::TLS_HANDSHAKE;
use cql::wire::{Header, RESPONSE_BIT};

/// The receiver of a lane's frames.
pub(crate) trait Reads: Frames<Unreadable> {
    fn terms(&self) -> &Terms;
    /// Puts what may stand between two frames, if that is where this is.
    fn between(&mut self, lane: &Lane, out: &mut Output<'_>);
    /// Whether the frame that was seen waits, so that so many bytes behind it do, too: the room that they take.
    fn waits(&mut self, behind: usize) -> Option<Taken>;
}

/// The bytes behind a frame that waits. Nothing of them was looked at.
#[derive(Debug, Default)]
struct Behind {
    /// The frames in the rest of its segment.
    frames: Vec<u8>,
    /// The rest of the piece.
    bytes: Vec<u8>,
    taken: Vec<Taken>,
}

/// A direction of a flow.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) cutter: Cutter,
    segments: Option<Segments>,
    behind: Option<Behind>,
}

impl Lane {
    pub(crate) fn new() -> Self {
        Self {
            cutter: Cutter::new(),
            segments: None,
            behind: None,
        }
    }

    /// A direction that goes on between two frames, in segments of this compression if there is one.
    pub(crate) fn within(segments: Option<Compression>) -> Self {
        Self {
            segments: segments.map(Segments::new),
            ..Self::new()
        }
    }

    /// Cuts a piece into frames, bare or in segments, and shows those that are to be seen. Behind one that waits
    /// nothing is looked at ([`Self::go_on`]).
    pub(crate) fn pass(
        &mut self,
        out: &mut Output<'_>,
        frames: &mut impl Reads,
    ) -> Result<(), Unreadable> {
        while self.segments.is_none() {
            if self.cutter.is_idle() && frames.terms().segmented {
                self.segments = Some(Segments::new(frames.terms().compression));
                break;
            }
            frames.between(self, out);
            match self.cutter.next(out, frames)? {
                Cut::Frame(frame) => {
                    let action = frames.see(&frame.header, &frame.bytes);
                    self.cutter.put_back(frame, action, out);
                    if let Some(taken) = frames.waits(out.rest().len()) {
                        self.hold(&[], out, taken);
                        return Ok(());
                    }
                }
                Cut::Unseen => {}
                Cut::Nothing => {
                    frames.between(self, out);
                    return Ok(());
                }
            }
        }
        loop {
            frames.between(self, out);
            let Some(segments) = &mut self.segments else {
                return Ok(());
            };
            let is_first = segments.is_first();
            let segment =
                segments
                    .next(out)
                    .map_err(|_| match is_first && frames.terms().may_be_beta {
                        true => Unreadable::Version,
                        false => Unreadable::Framing,
                    })?;
            let Some(segment) = segment else {
                return Ok(());
            };
            let mut inner = Output::new(segment.payload());
            let waits = self.pass_frames(&mut inner, out.rest().len(), frames)?;
            if segment.self_contained && !self.cutter.is_idle() {
                return Err(Unreadable::Framing);
            }
            let behind = inner.skip_rest().to_vec();
            let instead = inner.finish();
            if let Some(segments) = &mut self.segments {
                segments.put_back(segment, instead, frames.terms().compression, out);
            }
            if let Some(taken) = waits {
                self.hold(&behind, out, taken);
                return Ok(());
            }
        }
    }

    /// So many bytes have passed of which there is no copy: see [`Cutter::skip`]. Segments are copied whole.
    pub(crate) fn skip(&mut self, bytes: usize) -> Result<Option<(Header, Vec<u8>)>, Unreadable> {
        match self.segments {
            Some(_) => Err(Unreadable::Framing),
            None => self.cutter.skip(bytes).map_err(|_| Unreadable::Framing),
        }
    }

    /// Shows the frames of a payload, as far as none of them waits. `behind`: how many bytes are behind it, at most.
    #[inline(always)]
    fn pass_frames(
        &mut self,
        inner: &mut Output<'_>,
        behind: usize,
        frames: &mut impl Reads,
    ) -> Result<Option<Taken>, Unreadable> {
        loop {
            match self.cutter.next(inner, frames)? {
                Cut::Frame(frame) => {
                    let action = frames.see(&frame.header, &frame.bytes);
                    self.cutter.put_back(frame, action, inner);
                    if let Some(taken) = frames.waits(inner.rest().len() + behind) {
                        return Ok(Some(taken));
                    }
                }
                Cut::Unseen => {}
                Cut::Nothing => return Ok(None),
            }
        }
    }

    /// Keeps what is behind a frame that waits: these frames, and the rest of the piece.
    #[cold]
    pub(crate) fn hold(&mut self, frames: &[u8], out: &mut Output<'_>, taken: Taken) {
        let bytes = out.skip_rest();
        let behind = self.behind.get_or_insert_default();
        behind.frames.extend_from_slice(frames);
        behind.bytes.extend_from_slice(bytes);
        behind.taken.push(taken);
    }

    /// Whether something is behind a frame that waits, or has waited.
    pub(crate) fn has_more(&self) -> bool {
        self.behind.is_some()
    }

    /// Takes what is behind a frame that has waited: frames of a segment, and bytes.
    pub(crate) fn take_behind(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let Behind { frames, bytes, .. } = self.behind.take()?;
        Some((frames, bytes))
    }

    /// Passes what was [behind](Self::take_behind) a frame: these frames, then the piece.
    pub(crate) fn pass_behind(
        &mut self,
        payload: &[u8],
        out: &mut Output<'_>,
        frames: &mut impl Reads,
    ) -> Result<(), Unreadable> {
        frames.between(self, out);
        if !payload.is_empty() {
            let mut inner = Output::new(payload);
            let waits = self.pass_frames(&mut inner, out.rest().len(), frames)?;
            if !self.cutter.is_idle() {
                return Err(Unreadable::Framing);
            }
            let behind = inner.skip_rest().to_vec();
            let passed = inner.finish();
            out.put(&in_segments(self, passed.as_deref().unwrap_or(payload)));
            if let Some(taken) = waits {
                self.hold(&behind, out, taken);
                return Ok(());
            }
        }
        self.pass(out, frames)
    }

    /// Nothing of a frame or a segment is held back.
    pub(crate) fn is_idle(&self) -> bool {
        self.cutter.is_idle()
    }

    /// Nothing is held back, and no frame and no segment has begun.
    pub(crate) fn is_at_rest(&self) -> bool {
        let segments = self.segments.as_ref();
        self.is_idle() && self.behind.is_none() && segments.is_none_or(Segments::is_idle)
    }

    pub(crate) fn give_up(&mut self) -> Vec<u8> {
        let mut held = self.cutter.give_up();
        let (frames, behind) = self.take_behind().unwrap_or_default();
        held.extend(frames);
        if let Some(segments) = &mut self.segments {
            // A frame that was kept back, of earlier segments.
            held = match held.is_empty() {
                true => Vec::new(),
                false => segments::around(segments.compression, &held),
            };
            held.extend(segments.give_up());
        }
        held.extend(behind);
        held
    }
}

/// Puts frames into a direction's segments, if it has segments.
pub(crate) fn in_segments(lane: &Lane, frames: &[u8]) -> Vec<u8> {
    match &lane.segments {
        Some(segments) => segments::around(segments.compression, frames),
        None => frames.to_vec(),
    }
}

/// Whether a frame may begin with this byte.
pub(crate) fn may_begin(first: u8, bit: u8, begun: bool, terms: &Terms) -> Result<(), Unreadable> {
    let version = first & !RESPONSE_BIT;
    match begun {
        false if first == TLS_HANDSHAKE => Err(Unreadable::Tls),
        false if first & RESPONSE_BIT != bit => Err(Unreadable::NotCql),
        true if first & RESPONSE_BIT != bit => Err(Unreadable::Framing),
        _ if terms.accepted && version != terms.version => Err(Unreadable::Framing),
        _ if !(3..=5).contains(&version) => Err(match version {
            // As in `lane`: Cassandra's own, past and to come, and DataStax Enterprise's.
            1 | 2 | 6..=0x0F | 0x41 | 0x42 => Unreadable::Version,
            _ if begun => Unreadable::Framing,
            _ => Unreadable::NotCql,
        }),
        _ => Ok(()),
    }
}
