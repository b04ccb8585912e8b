//! Cuts one direction's bytes into frames, and keeps back those that somebody wants to see whole.

use std::borrow::Cow;

use crate::output::Output;
use crate::room::{SMALL_BYTES, Taken};
use cql::wire::{HEADER_BYTES, Header};

/// A frame that was kept back leaves its buffer to the next one up to this many bytes; the reason is
/// that of the frame scanner's.
pub(crate) const KEPT_BUFFER_BYTES: usize = 16 << 10;

/// The plan for a frame, by its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// The frame goes on as it comes.
    Pass,
    /// Nothing of it goes on.
    Drop,
    /// The frame goes on when it was seen whole.
    See,
}

/// The action for a frame that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FrameAction {
    Keep,
    Drop,
    Instead(Vec<u8>),
}

impl FrameAction {
    /// Appends what goes on of `frame`.
    pub(crate) fn put(self, frame: &[u8], to: &mut Vec<u8>) {
        match self {
            Self::Keep => to.extend_from_slice(frame),
            Self::Drop => {}
            Self::Instead(frame) => to.extend_from_slice(&frame),
        }
    }
}

/// A frame that is to be seen, whole. It goes back with [`Cutter::put_back`].
#[derive(Debug)]
pub(crate) struct CutFrame<'p> {
    pub(crate) header: Header,
    /// With its header: in the piece, or from earlier pieces.
    pub(crate) bytes: Cow<'p, [u8]>,
}

/// The next thing that is found in a piece.
#[derive(Debug)]
pub(crate) enum Cut<'p> {
    Frame(CutFrame<'p>),
    /// A frame has ended that nobody sees.
    Unseen,
    /// The piece is used up.
    Nothing,
}

/// The receiver of frames, who decides on them. `E`: why frames of this direction cannot be told apart any
/// more.
pub(crate) trait Frames<E> {
    /// A frame begins with this byte, and there is less than a header of it. What nobody takes for a frame is not
    /// waited for: its peer may wait, too.
    fn begins(&mut self, first: u8) -> Result<(), E>;
    /// `first`: the byte that it begins with.
    fn plan(&mut self, first: u8, header: &Header) -> Result<Plan, E>;
    /// Room for so many bytes, if there is any.
    fn room(&mut self, bytes: usize) -> Option<Taken>;
    /// There is none for a frame that was to be seen: it passes, or is dropped.
    fn crowded(&mut self, header: &Header) -> Plan;
    /// No frame begins where one should: its length is impossible.
    fn lost(&mut self, first: u8) -> E;
    /// Shows a whole frame to those who want to see it. `frame`: with its header.
    fn see(&mut self, header: &Header, frame: &[u8]) -> FrameAction;
}

/// Bytes were said to be of a body, and are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotOfABody;

#[derive(Clone, Copy, Debug)]
enum State {
    /// `held` has the beginning of a header, or nothing.
    Header,
    /// `held` has the beginning of a frame of so many bytes.
    Frame {
        header: Header,
        total: usize,
    },
    Passing {
        left: usize,
    },
    Dropping {
        left: usize,
    },
}

/// See the module. **Invariant**: it holds at most one frame, of those that are to be seen.
#[derive(Debug)]
pub(crate) struct Cutter {
    state: State,
    held: Vec<u8>,
    /// For the frame that is held, if that is not small.
    room: Option<Taken>,
}

impl Cutter {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Header,
            held: Vec::new(),
            room: None,
        }
    }

    /// No frame has begun, as far as bytes have gone on: what is put here is between two frames.
    pub(crate) fn is_between(&self) -> bool {
        match self.state {
            State::Header | State::Frame { .. } | State::Dropping { .. } => true,
            State::Passing { .. } => false,
        }
    }

    /// No byte of the next frame was seen.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Header) && self.held.is_empty()
    }

    /// Gives the bytes that were held back, because nothing more will be decided.
    pub(crate) fn give_up(&mut self) -> Vec<u8> {
        self.state = State::Header;
        self.room = None;
        std::mem::take(&mut self.held)
    }

    /// So many bytes have passed of which there is no copy. Gives the header, and what there is, of a frame that was to be
    /// seen. `Err`: they are not of a body.
    pub(crate) fn skip(&mut self, bytes: usize) -> Result<Option<(Header, Vec<u8>)>, NotOfABody> {
        let (left, seen) = match self.state {
            State::Header => return Err(NotOfABody),
            State::Frame { header, total } => {
                let held = std::mem::take(&mut self.held);
                self.room = None;
                (total.saturating_sub(held.len()), Some((header, held)))
            }
            State::Passing { left } | State::Dropping { left } => (left, None),
        };
        let left = left.checked_sub(bytes).ok_or(NotOfABody)?;
        self.state = match left {
            0 => State::Header,
            left => State::Passing { left },
        };
        Ok(seen)
    }

    /// Goes on to the next frame that is to be seen, or to the end of one that is not.
    #[inline(always)]
    pub(crate) fn next<'p, E>(
        &mut self,
        out: &mut Output<'p>,
        frames: &mut impl Frames<E>,
    ) -> Result<Cut<'p>, E> {
        loop {
            let rest = out.rest();
            let [first, ..] = rest else {
                return Ok(Cut::Nothing);
            };
            let found = match self.state {
                State::Header if self.held.is_empty() => match rest.first_chunk() {
                    Some(raw) => self.begin(raw, out, frames)?,
                    None => {
                        frames.begins(*first)?;
                        self.hold(out, HEADER_BYTES);
                        return Ok(Cut::Nothing);
                    }
                },
                State::Header => {
                    self.hold(out, HEADER_BYTES);
                    match self.held.first_chunk().copied() {
                        Some(raw) => self.go_on(&raw, out, frames)?,
                        None => return Ok(Cut::Nothing),
                    }
                }
                State::Frame { header, total } => {
                    self.hold(out, total);
                    match self.held.len() < total {
                        true => return Ok(Cut::Nothing),
                        false => Some(self.held_frame(header)),
                    }
                }
                State::Passing { .. } | State::Dropping { .. } => self.go_past(out),
            };
            if let Some(found) = found {
                return Ok(found);
            }
        }
    }

    /// Takes the buffer of a frame that was seen back, and has of it go on what `action` says.
    #[inline(always)]
    pub(crate) fn put_back(
        &mut self,
        frame: CutFrame<'_>,
        action: FrameAction,
        out: &mut Output<'_>,
    ) {
        match frame.bytes {
            Cow::Borrowed(bytes) => match action {
                FrameAction::Keep => out.keep(bytes.len()),
                FrameAction::Drop => out.skip(bytes.len()),
                FrameAction::Instead(instead) => {
                    out.skip(bytes.len());
                    out.put(&instead);
                }
            },
            Cow::Owned(mut held) => {
                match action {
                    FrameAction::Keep => out.put(&held),
                    FrameAction::Drop => {}
                    FrameAction::Instead(instead) => out.put(&instead),
                }
                held.clear();
                held.shrink_to(KEPT_BUFFER_BYTES);
                self.held = held;
                self.room = None;
            }
        }
    }

    /// Has what there is of a frame that nobody sees go on, or not.
    #[inline(always)]
    fn go_past<'p>(&mut self, out: &mut Output<'_>) -> Option<Cut<'p>> {
        let (State::Passing { left } | State::Dropping { left }) = &mut self.state else {
            return None;
        };
        let n = (*left).min(out.rest().len());
        *left -= n;
        let is_whole = *left == 0;
        match self.state {
            State::Passing { .. } => out.keep(n),
            _ => out.skip(n),
        }
        is_whole.then(|| {
            self.state = State::Header;
            Cut::Unseen
        })
    }

    /// Decides on a frame whose header is whole in the piece. `None`: it has not ended there.
    #[inline(always)]
    fn begin<'p, E>(
        &mut self,
        raw: &'p [u8; HEADER_BYTES],
        out: &mut Output<'p>,
        frames: &mut impl Frames<E>,
    ) -> Result<Option<Cut<'p>>, E> {
        let (header, plan) = planned(raw, frames)?;
        let total = header.frame_bytes() as usize;
        let plan = match (plan, out.rest().get(..total)) {
            (Plan::See, Some(frame)) => {
                let bytes = Cow::Borrowed(frame);
                return Ok(Some(Cut::Frame(CutFrame { header, bytes })));
            }
            (Plan::Pass, Some(frame)) => {
                out.keep(frame.len());
                return Ok(Some(Cut::Unseen));
            }
            (Plan::See, None) => self.take_room(&header, total, frames),
            (plan, _) => plan,
        };
        self.state = match plan {
            Plan::Pass => State::Passing { left: total },
            Plan::Drop => State::Dropping { left: total },
            Plan::See => State::Frame { header, total },
        };
        Ok(None)
    }

    /// Whether a frame that comes in pieces is to be seen after all.
    #[inline(never)]
    fn take_room<E>(&mut self, header: &Header, total: usize, frames: &mut impl Frames<E>) -> Plan {
        if total <= SMALL_BYTES {
            return Plan::See;
        }
        self.room = frames.room(total);
        match self.room {
            Some(_) => Plan::See,
            None => frames.crowded(header),
        }
    }

    /// Decides on a frame whose header came in pieces. `None`: there is more of it.
    #[inline(never)]
    fn go_on<'p, E>(
        &mut self,
        raw: &[u8; HEADER_BYTES],
        out: &mut Output<'_>,
        frames: &mut impl Frames<E>,
    ) -> Result<Option<Cut<'p>>, E> {
        let (header, plan) = planned(raw, frames)?;
        let left = header.length as usize;
        let total = header.frame_bytes() as usize;
        let plan = match plan {
            Plan::See => self.take_room(&header, total, frames),
            plan => plan,
        };
        match plan {
            Plan::Pass => {
                out.put(&self.held);
                self.held.clear();
                self.state = State::Passing { left };
            }
            Plan::Drop => {
                self.held.clear();
                self.state = State::Dropping { left };
            }
            Plan::See if left > 0 => self.state = State::Frame { header, total },
            Plan::See => return Ok(Some(self.held_frame(header))),
        }
        if left > 0 {
            return Ok(None);
        }
        self.state = State::Header;
        Ok(Some(Cut::Unseen))
    }

    /// Gives the frame that is held, which is whole.
    #[inline(never)]
    fn held_frame<'p>(&mut self, header: Header) -> Cut<'p> {
        self.state = State::Header;
        let bytes = Cow::Owned(std::mem::take(&mut self.held));
        Cut::Frame(CutFrame { header, bytes })
    }

    /// Holds back what there is, up to `total` bytes in all.
    fn hold(&mut self, out: &mut Output<'_>, total: usize) {
        let rest = out.rest();
        let n = total.saturating_sub(self.held.len()).min(rest.len());
        self.held
            .extend_from_slice(rest.get(..n).unwrap_or_default());
        out.skip(n);
    }
}

#[inline(always)]
fn planned<E>(raw: &[u8; HEADER_BYTES], frames: &mut impl Frames<E>) -> Result<(Header, Plan), E> {
    let [first, ..] = *raw;
    let header = Header::read(*raw).ok_or_else(|| frames.lost(first))?;
    let plan = frames.plan(first, &header)?;
    Ok((header, plan))
}
