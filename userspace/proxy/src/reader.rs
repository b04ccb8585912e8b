//! The reader of a flow's bytes: a decoder, or none.
//!
//! The position in its frames is known of a flow that is not decoded, too, as long as that can be
//! known. So it can be decoded from its next frame on ([`Reader::enrich`]). The agent follows the
//! position through the bytes that it relays. The kernel follows it through those that it
//! redirects, from the position that it is given when the flow is handed over
//! ([`Reader::hand_over`]).
//!
//! **How a position comes back**: with the first byte of a direction that is read after a
//! hand-over. The kernel let that byte pass after the last one that it redirected (in the near
//! application's socket, or in the agent's that leads to the far one, under that socket's lock). It
//! redirects no further byte before it is told that this byte was read. So the kernel's position is
//! the one right before this byte, and it is final. It was not final when the order to redirect was
//! withdrawn: a `send()` of the client's that had read the order before may redirect its message
//! later, but not after it has let one pass. A hand-over that follows without a byte in between
//! names the same count of bytes read, by which the kernel knows that its own position is the later
//! one.

use std::{num::NonZeroUsize, sync::Arc};

use cql::{FramePosition, NoPosition, Unread};
use dataplane::{FlowPosition, Redirected, Splice};
use flow::{CloseReason, Flow};
use policy::{Action, RuleName};

use super::{
    context::ProxyContext,
    decode::Decoder,
    frame_position,
    passing::{Direction, Passing, Turn, Verdict},
    question::Question,
    read_on::{NotHanded, ReadOn},
};

/// The reader of a flow's bytes, and what is known of the kernel's part.
pub(super) struct Reader {
    state: State,
    /// The shared state for a decoder that begins later. None: no decoder will.
    shared: Option<Arc<ProxyContext>>,
    /// None before the kernel may carry the flow.
    kernel: Option<Kernel>,
}

/// The state of a reader.
enum State {
    /// Nothing has come. The decoder is made when the first byte comes and not before: thousands of
    /// flows that have nothing to say yet would leave holes in the heap when theirs were dropped.
    Starting(Begins),
    /// The bytes pass through the flow's decoder.
    Decoding(Box<Decoder>),
    /// Nobody needs to see the bytes. The frame positions of the flow are followed as far as they
    /// can be. Such a flow takes no memory for a decoder.
    Relaying(Result<Unread, NoPosition>),
}

/// The parts of a flow's first decoder.
pub(super) struct Begins {
    pub shared: Arc<ProxyContext>,
    pub flow: Arc<Flow>,
    /// The question that the flow's session has to decide.
    pub question: Option<Box<Question>>,
}

/// The kernel's part in a flow that it may carry.
struct Kernel {
    splice: Arc<Splice>,
    /// Whether the kernel may have gone on from the position that the reader has, for each
    /// direction.
    handed_over: Both<bool>,
}

impl Reader {
    /// Makes the reader of a flow that begins. None: the flow will never be decoded.
    pub(super) fn new(begins: Option<Begins>) -> Self {
        Self {
            shared: begins.as_ref().map(|begins| begins.shared.clone()),
            state: begins.map_or(State::Relaying(Err(NoPosition::Handshake)), State::Starting),
            kernel: None,
        }
    }

    /// Has the applications' sockets leave the sockmaps: one of them has ended, so the kernel carries the flow no more.
    pub(super) fn let_out(&self) {
        if let Some(kernel) = &self.kernel {
            kernel.splice.let_out();
        }
    }

    /// Notes that the kernel may carry the flow from now on.
    pub(super) fn set_enrolled(&mut self, splice: Arc<Splice>) {
        let handed_over = Both::default();
        self.kernel = Some(Kernel {
            splice,
            handed_over,
        });
    }

    /// Takes over the frame positions that another process has told the kernel, when it carried the
    /// flow to here. `shared`: set for a flow that may be decoded later.
    pub(super) fn begins_at(
        &mut self,
        positions: &FlowPosition,
        shared: Option<Arc<ProxyContext>>,
    ) {
        self.shared = shared;
        self.state = State::Relaying(frame_position::unread(positions));
        self.note_hand_over();
    }

    /// Returns the decoder, which is made where it has yet to be.
    pub(super) fn decoder(&mut self) -> Option<&mut Decoder> {
        if let State::Starting(begins) = &mut self.state {
            let question = begins.question.take().map(|question| *question);
            let decoder = Decoder::new(&begins.shared, &begins.flow, question);
            self.state = State::Decoding(Box::new(decoder));
        }
        self.running_decoder()
    }

    /// Returns the decoder, if it has been made.
    fn running_decoder(&mut self) -> Option<&mut Decoder> {
        match &mut self.state {
            State::Decoding(decoder) => Some(decoder),
            State::Starting(_) | State::Relaying(_) => None,
        }
    }

    /// Whether nobody needs to see the bytes that come.
    pub(super) fn is_off(&self) -> bool {
        matches!(self.state, State::Relaying(_))
    }

    /// Whether the flow is decided, and its bytes are read for good, as far as is known.
    pub(super) fn is_settled(&self) -> bool {
        matches!(&self.state, State::Decoding(decoder) if decoder.is_settled())
    }

    /// Decides the next step of a direction.
    pub(super) fn turn(&mut self, direction: Direction) -> Turn {
        match self.running_decoder() {
            Some(decoder) => decoder.turn(direction),
            None => Turn::Read(NonZeroUsize::MAX),
        }
    }

    /// Reads a chunk before it is forwarded. `read`: the number of bytes of its direction that were
    /// read before it, counted as for the kernel ([`dataplane::AgentMoved`]).
    pub(super) fn chunk(&mut self, direction: Direction, read: u64, bytes: &[u8]) -> Verdict {
        self.catch_up(direction, read);
        if let Some(decoder) = self.decoder() {
            return match decoder.admit(direction, bytes) {
                Passing::These(bytes) => decoder.decode(direction, &bytes).bringing(bytes),
                Passing::All | Passing::First(_) => decoder.decode(direction, bytes),
            };
        }
        if let State::Relaying(Ok(unread)) = &mut self.state {
            position_of(unread, direction).walk(bytes);
        }
        Verdict::ALL
    }

    /// Handles the end of a side. Returns the bytes of that side that were held back and are still
    /// to be forwarded.
    pub(super) fn end(&mut self, direction: Direction) -> Vec<u8> {
        match self.decoder() {
            Some(decoder) => decoder.end(direction),
            None => Vec::new(),
        }
    }

    /// Applies the completions of requests and responses that wait.
    pub(super) fn apply_completions(&mut self) {
        if let Some(decoder) = self.running_decoder() {
            decoder.apply_completions();
        }
    }

    /// Tells the decoder that the flow has ended.
    pub(super) fn finish(&mut self) {
        if let Some(decoder) = self.running_decoder() {
            decoder.finish();
        }
    }

    pub(super) fn last_words(&mut self) -> Option<(Vec<u8>, CloseReason)> {
        self.running_decoder()?.last_words()
    }

    /// Returns the last bytes for the client when a connection that the flow shares is lost.
    pub(super) fn lost(&mut self) -> Option<Vec<u8>> {
        self.running_decoder()?.lost()
    }

    /// Takes the sign that both directions have to be polled again, because held-back bytes may
    /// pass now. Drops a decoder that has nothing more to learn.
    pub(super) fn take_repoll(&mut self) -> bool {
        let Some(decoder) = self.running_decoder() else {
            return false;
        };
        let repoll = decoder.take_repoll();
        let is_off = decoder.is_off();
        if is_off {
            self.state = State::Relaying(decoder.unread());
        }
        repoll || is_off
    }

    /// Returns the flow's frame positions for the kernel, which is told to carry it.
    pub(super) fn hand_over(&mut self) -> FlowPosition {
        self.note_hand_over();
        match &self.state {
            State::Relaying(Ok(unread)) => frame_position::to_kernel(unread),
            _ => FlowPosition::UNKNOWN,
        }
    }

    fn note_hand_over(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.handed_over = Both {
                to_database: true,
                to_client: true,
            };
        }
    }

    /// Starts to decode the flow from its next frames on, as a mark says. The kernel does not carry
    /// the flow now. `read`: as for [`Self::chunk`], in each direction.
    pub(super) fn enrich(
        &mut self,
        flow: &Arc<Flow>,
        by: &RuleName,
        read: Both<u64>,
    ) -> Result<(), NoPosition> {
        let mut unread = match &self.state {
            State::Starting(_) => return Err(NoPosition::Handshake),
            State::Decoding(decoder) => decoder.unread()?,
            State::Relaying(unread) => (*unread)?,
        };
        for direction in [Direction::ToDatabase, Direction::ToClient] {
            // The kernel's position may not be final, but a position that is lost is lost for good.
            let kernel = self.kernel.as_ref();
            let kernels =
                kernel.and_then(|kernel| kernel.redirected(direction, *read.of(direction)));
            let position = kernels.unwrap_or(*position_of(&mut unread, direction));
            if !position.is_known() {
                return Err(NoPosition::Framing);
            }
        }
        let shared = self.shared.as_ref().ok_or(NoPosition::Handshake)?;
        flow.set_action(by, Action::Enrich);
        if let State::Starting(_) | State::Relaying(_) = self.state {
            self.state = State::Decoding(Box::new(Decoder::idle(shared, flow)));
        }
        if let Some(decoder) = self.running_decoder() {
            decoder.join(unread);
        }
        Ok(())
    }

    /// Returns how another agent reads the flow on from here.
    ///
    /// # Errors
    /// Only this one can, for this reason.
    pub(super) fn read_on(&self) -> Result<ReadOn, NotHanded> {
        match &self.state {
            // It has said nothing yet.
            State::Starting(_) => Err(NotHanded::NotYet),
            State::Decoding(decoder) => decoder.read_on(),
            State::Relaying(unread) => Ok(ReadOn::unread(*unread)),
        }
    }

    /// Goes on with a flow that another agent has read to here.
    pub(super) fn begin_on(
        &mut self,
        shared: &Arc<ProxyContext>,
        flow: &Arc<Flow>,
        reading: ReadOn,
    ) {
        self.shared = Some(shared.clone());
        self.state = match (reading.is_decoded(), reading.positions()) {
            (true, Ok(unread)) => {
                let mut decoder = Decoder::idle(shared, flow);
                decoder.join_in(unread, reading);
                State::Decoding(Box::new(decoder))
            }
            (_, positions) => State::Relaying(positions),
        };
    }

    /// Takes over the kernel's position where the kernel has gone on since the flow was handed
    /// over.
    fn catch_up(&mut self, direction: Direction, read: u64) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        let position = kernel.redirected(direction, read);
        *kernel.handed_over.of_mut(direction) = false;
        let Some(position) = position else {
            return;
        };
        match &mut self.state {
            State::Decoding(decoder) => decoder.begins_at(direction, position),
            State::Relaying(Ok(unread)) => *position_of(unread, direction) = position,
            State::Starting(_) | State::Relaying(Err(_)) => {}
        }
    }
}

impl Kernel {
    /// Returns the kernel's position, if the kernel has redirected anything since `read` bytes were
    /// read.
    fn redirected(&self, direction: Direction, read: u64) -> Option<FramePosition> {
        if !self.handed_over.of(direction) {
            return None;
        }
        match self.splice.redirected() {
            Ok([to_database, to_client]) => {
                let kernels = Both {
                    to_database,
                    to_client,
                };
                let Redirected { since, position } = kernels.of(direction);
                (*since == read).then(|| frame_position::from_kernel(position))
            }
            Err(error) => {
                tracing::warn!(%error, "the kernel does not say where in a frame a flow is");
                Some(FramePosition::UNKNOWN)
            }
        }
    }
}

/// A value for each direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Both<T> {
    pub to_database: T,
    pub to_client: T,
}

impl<T> Both<T> {
    pub(super) fn of(&self, direction: Direction) -> &T {
        match direction {
            Direction::ToDatabase => &self.to_database,
            Direction::ToClient => &self.to_client,
        }
    }

    pub(super) fn of_mut(&mut self, direction: Direction) -> &mut T {
        match direction {
            Direction::ToDatabase => &mut self.to_database,
            Direction::ToClient => &mut self.to_client,
        }
    }
}

fn position_of(unread: &mut Unread, direction: Direction) -> &mut FramePosition {
    match direction {
        Direction::ToDatabase => &mut unread.requests,
        Direction::ToClient => &mut unread.responses,
    }
}
