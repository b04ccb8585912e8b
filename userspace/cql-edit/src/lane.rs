//! [`Lane`]: a direction's frames, bare or in segments, and the bytes that go on in their place.

use crate::cutter::{Cut, Cutter, Frames};
use crate::edited::Unreadable;
use crate::output::Output;
use crate::segments::{self, Segments};
use crate::terms::Terms;
use cql::wire::RESPONSE_BIT;
use cql::wire::TLS_HANDSHAKE;

/// The receiver of a lane's frames.
pub(crate) trait Reads: Frames<Unreadable> {
    fn terms(&self) -> &Terms;
    /// Puts what may stand between two frames, if that is where this is.
    fn between(&mut self, lane: &Lane, out: &mut Output<'_>);
}

/// A direction of a flow.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) cutter: Cutter,
    segments: Option<Segments>,
}

impl Lane {
    pub(crate) fn new() -> Self {
        Self {
            cutter: Cutter::new(),
            segments: None,
        }
    }

    /// Cuts a piece into frames, bare or in segments, and shows those that are to be seen.
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
            let segment = segments.next(out).map_err(|_| Unreadable::Framing)?;
            let Some(segment) = segment else {
                return Ok(());
            };
            let mut inner = Output::new(segment.payload());
            loop {
                match self.cutter.next(&mut inner, frames)? {
                    Cut::Frame(frame) => {
                        let action = frames.see(&frame.header, &frame.bytes);
                        self.cutter.put_back(frame, action, &mut inner);
                    }
                    Cut::Unseen => {}
                    Cut::Nothing => break,
                }
            }
            if segment.self_contained && !self.cutter.is_idle() {
                return Err(Unreadable::Framing);
            }
            let instead = inner.finish();
            segments.put_back(segment, instead, frames.terms().compression, out);
        }
    }

    /// Nothing of a frame or a segment is held back.
    pub(crate) fn is_idle(&self) -> bool {
        self.cutter.is_idle()
    }

    pub(crate) fn give_up(&mut self) -> Vec<u8> {
        let mut held = self.cutter.give_up();
        if let Some(segments) = &mut self.segments {
            // A frame that was kept back, of earlier segments.
            held = match held.is_empty() {
                true => Vec::new(),
                false => segments::around(segments.compression, &held),
            };
            held.extend(segments.give_up());
        }
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
