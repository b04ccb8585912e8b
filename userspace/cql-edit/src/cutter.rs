//! Cuts one direction's bytes into frames, and keeps back those that somebody wants to see whole.

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
    /// `frame`: with its header.
    fn see(&mut self, header: &Header, frame: &[u8]) -> FrameAction;
}

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

    /// Goes on to the end of the next frame. False when the piece is used up before that.
    pub(crate) fn step<E>(
        &mut self,
        out: &mut Output<'_>,
        frames: &mut impl Frames<E>,
    ) -> Result<bool, E> {
        loop {
            if out.rest().is_empty() {
                return Ok(false);
            }
            match self.state {
                State::Header if self.held.is_empty() => {
                    let Some(raw) = out.rest().first_chunk::<HEADER_BYTES>() else {
                        if let [first, ..] = out.rest() {
                            frames.begins(*first)?;
                        }
                        self.hold(out, HEADER_BYTES);
                        return Ok(false);
                    };
                    if self.begin(raw, out, frames)? {
                        return Ok(true);
                    }
                }
                State::Header => {
                    self.hold(out, HEADER_BYTES);
                    let Some(raw) = self.held.first_chunk::<HEADER_BYTES>().copied() else {
                        return Ok(false);
                    };
                    if self.go_on(&raw, out, frames)? {
                        return Ok(true);
                    }
                }
                State::Frame { header, total } => {
                    self.hold(out, total);
                    if self.held.len() < total {
                        return Ok(false);
                    }
                    self.seen(&header, out, frames);
                    return Ok(true);
                }
                State::Passing { left } | State::Dropping { left } => {
                    let n = left.min(out.rest().len());
                    let left = left - n;
                    self.state = match self.state {
                        State::Passing { .. } => {
                            out.keep(n);
                            State::Passing { left }
                        }
                        _ => {
                            out.skip(n);
                            State::Dropping { left }
                        }
                    };
                    if left == 0 {
                        self.state = State::Header;
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// A frame whose header is whole in the piece. True when all of it was.
    fn begin<E>(
        &mut self,
        raw: &[u8; HEADER_BYTES],
        out: &mut Output<'_>,
        frames: &mut impl Frames<E>,
    ) -> Result<bool, E> {
        let (header, plan) = planned(raw, frames)?;
        let total = header.frame_bytes() as usize;
        match plan {
            Plan::Pass => self.state = State::Passing { left: total },
            Plan::Drop => self.state = State::Dropping { left: total },
            Plan::See => match out.rest().get(..total) {
                Some(frame) => {
                    match frames.see(&header, frame) {
                        FrameAction::Keep => out.keep(total),
                        FrameAction::Drop => out.skip(total),
                        FrameAction::Instead(bytes) => {
                            out.skip(total);
                            out.put(&bytes);
                        }
                    }
                    return Ok(true);
                }
                None => match self.take_room(&header, total, frames) {
                    Plan::Pass => self.state = State::Passing { left: total },
                    Plan::Drop => self.state = State::Dropping { left: total },
                    Plan::See => self.state = State::Frame { header, total },
                },
            },
        }
        Ok(false)
    }

    /// Whether a frame that comes in pieces is to be seen after all.
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

    /// A frame whose header came in pieces. True when there is no more of it.
    fn go_on<E>(
        &mut self,
        raw: &[u8; HEADER_BYTES],
        out: &mut Output<'_>,
        frames: &mut impl Frames<E>,
    ) -> Result<bool, E> {
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
            Plan::See if left > 0 => {
                self.state = State::Frame { header, total };
                return Ok(false);
            }
            Plan::See => {
                self.seen(&header, out, frames);
                return Ok(true);
            }
        }
        if left == 0 {
            self.state = State::Header;
        }
        Ok(left == 0)
    }

    /// The frame that is held is whole.
    fn seen<E>(&mut self, header: &Header, out: &mut Output<'_>, frames: &mut impl Frames<E>) {
        match frames.see(header, &self.held) {
            FrameAction::Keep => out.put(&self.held),
            FrameAction::Drop => {}
            FrameAction::Instead(bytes) => out.put(&bytes),
        }
        self.held.clear();
        self.held.shrink_to(KEPT_BUFFER_BYTES);
        self.room = None;
        self.state = State::Header;
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

fn planned<E>(raw: &[u8; HEADER_BYTES], frames: &mut impl Frames<E>) -> Result<(Header, Plan), E> {
    let [first, ..] = *raw;
    let header = Header::read(*raw).ok_or_else(|| frames.lost(first))?;
    let plan = frames.plan(first, &header)?;
    Ok((header, plan))
}
