//! The decoder's place in the relay: counts the statements that pass, and tells the relay when a
//! flow has to end.
//!
//! While a flow is not decided ([`Gate`]), the bytes that are read are not the bytes that pass: the
//! relay asks each direction's [`Decoder::turn`] first.
//!
//! `reading` decodes bytes that pass, or follows the frame position through them. `rest`: a flow that another agent goes on with.

mod reading;
mod rest;

use std::{
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use cql::{FlowDecoder, FramePosition, NoPosition, PreparedAt, Undecodable, Unread};
use flow::{CloseReason, Flow, Path};
use policy::Action;

use super::{
    context::ProxyContext,
    edit::{self, Editing},
    passing::{Direction, Passing, Turn, Verdict},
    question::Question,
    reader::Both,
    recorder::{InDetail, Recorder},
    session::Gate,
};

/// A flow that a reporter holds is looked at again after this time.
const HOLD: Duration = Duration::from_millis(5);

/// The parts that see a flow's bytes as long as one of them has to.
pub(super) struct Decoder {
    reading: Reading,
    recorder: Recorder,
    /// The zero of the decoder's clock.
    start: Instant,
    flow: Arc<Flow>,
    /// The gate, while the flow is not decided, and then until everything that it held back has
    /// passed.
    gate: Option<Box<Gate>>,
    edits: Edits,
    /// Set when bytes that one direction held back may pass now.
    repoll: bool,
}

/// The mode of reading: whether passing bytes are decoded.
#[expect(
    clippy::large_enum_variant,
    reason = "what does not read any more soon goes as a whole"
)]
enum Reading {
    Decodes {
        decoder: FlowDecoder,
        /// Reading stops with the next bytes that pass: nobody needs to read the flow any more, but
        /// the position in its frames where reading ends has to be known, to go on from there.
        stops: bool,
    },
    /// Bytes are relayed. The position in the frames is followed where that is possible.
    Walks(Result<Unread, NoPosition>),
}

/// The changes to the bytes that pass.
#[derive(Default)]
enum Edits {
    #[default]
    Nothing,
    /// The editor applies the pipeline of the flow's rule. While the rule is not decided it changes
    /// nothing, but follows where frames begin.
    Editing(Box<Editing>),
    /// Editing has ended. These are the bytes that the editor had kept back, not all of which have
    /// passed.
    Left(Both<Vec<u8>>),
}

impl Edits {
    fn editing(&mut self) -> Option<&mut Editing> {
        match self {
            Self::Editing(editing) => Some(editing),
            Self::Nothing | Self::Left(_) => None,
        }
    }

    /// The bytes that an editor has kept back, which edits no more.
    fn left_by(editing: &mut Editing, now_ns: u64) -> Self {
        let left = Both {
            to_database: editing.end(Direction::ToDatabase, now_ns),
            to_client: editing.end(Direction::ToClient, now_ns),
        };
        match left.to_database.is_empty() && left.to_client.is_empty() {
            true => Self::Nothing,
            false => Self::Left(left),
        }
    }

    fn has_left(&self, direction: Direction) -> bool {
        matches!(self, Self::Left(left) if !left.of(direction).is_empty())
    }

    /// Takes the bytes that an editor had kept back of a direction when editing ended.
    fn take_left(&mut self, direction: Direction) -> Vec<u8> {
        let Self::Left(left) = self else {
            return Vec::new();
        };
        let taken = std::mem::take(left.of_mut(direction));
        if left.to_database.is_empty() && left.to_client.is_empty() {
            *self = Self::Nothing;
        }
        taken
    }
}

impl Decoder {
    pub(super) fn new(
        shared: &Arc<ProxyContext>,
        flow: &Arc<Flow>,
        question: Option<Question>,
    ) -> Self {
        let editing = Editing::begin(shared, flow, question.is_none());
        let gate = |question| Box::new(Gate::new(question, shared, flow));
        let mut decoder = Self {
            reading: Reading::Decodes {
                decoder: FlowDecoder::new(shared.services.prepared.at(steps::database(flow))),
                stops: false,
            },
            gate: question.map(gate),
            edits: editing.map_or(Edits::Nothing, Edits::Editing),
            ..Self::idle(shared, flow)
        };
        if decoder.gate.is_none() {
            decoder.recorder.attach_reporters(flow);
            decoder.edit_by_rule();
        }
        decoder
    }

    /// Makes a decoder that does not read yet.
    pub(super) fn idle(shared: &Arc<ProxyContext>, flow: &Arc<Flow>) -> Self {
        Self {
            reading: Reading::Walks(Err(NoPosition::Handshake)),
            recorder: Recorder::new(shared, flow),
            start: Instant::now(),
            flow: flow.clone(),
            gate: None,
            edits: Edits::Nothing,
            repoll: false,
        }
    }

    /// Starts to read the flow, which was not read for a while, at its next frames.
    pub(super) fn join(&mut self, unread: Unread) {
        self.decode_by(|prepared| FlowDecoder::join(prepared, unread));
    }

    /// Decodes the flow from here on.
    fn decode_by(&mut self, decoder: impl FnOnce(PreparedAt) -> FlowDecoder) {
        let prepared = self
            .recorder
            .shared
            .services
            .prepared
            .at(steps::database(&self.flow));
        self.reading = Reading::Decodes {
            decoder: decoder(prepared),
            stops: false,
        };
        self.recorder.switch_rule(&self.flow);
        self.flow.travels(Path::Enrich);
    }

    /// Corrects the frame position of one direction after [`Self::join`]. That position was out of
    /// date, and no byte of this direction has come since. The decoder may have stopped again in
    /// the meantime.
    pub(super) fn begins_at(&mut self, direction: Direction, position: FramePosition) {
        match (&mut self.reading, direction) {
            (Reading::Decodes { decoder, .. }, Direction::ToDatabase) => {
                decoder.requests_begin_at(position)
            }
            (Reading::Decodes { decoder, .. }, Direction::ToClient) => {
                decoder.responses_begin_at(position)
            }
            (Reading::Walks(Ok(unread)), Direction::ToDatabase) => unread.requests = position,
            (Reading::Walks(Ok(unread)), Direction::ToClient) => unread.responses = position,
            (Reading::Walks(Err(_)), _) => {}
        }
    }

    /// Returns the frame positions of the flow, for a reader that goes on without decoding.
    pub(super) fn unread(&self) -> Result<Unread, NoPosition> {
        match &self.reading {
            Reading::Decodes { decoder, .. } => decoder.unread(),
            Reading::Walks(unread) => *unread,
        }
    }

    /// Decides the next step of a direction. Asked before each read.
    pub(super) fn turn(&mut self, direction: Direction) -> Turn {
        let followed = self.recorder.followed.as_mut();
        if direction == Direction::ToDatabase && followed.is_some_and(|followed| followed.holds()) {
            return Turn::Rest(HOLD);
        }
        if self.edits.has_left(direction) {
            return Turn::Pass(self.decode(direction, &[]));
        }
        if let Some(turn) = self.editors_turn(direction) {
            return turn;
        }
        // Of one that is held, no more than up to the end of a request.
        let held_at = self
            .held_at()
            .filter(|_| direction == Direction::ToDatabase);
        let Some(most) = NonZeroUsize::new(held_at.unwrap_or(usize::MAX)) else {
            return Turn::Wait;
        };
        let Some(gate) = &mut self.gate else {
            return Turn::Read(most);
        };
        match gate.turn(direction) {
            Turn::Read(most) => Turn::Read(most),
            Turn::Pass(bytes) => {
                self.look_at_gate();
                Turn::Pass(self.decode(direction, &bytes).bringing(bytes))
            }
            Turn::Rest(pause) => Turn::Rest(pause),
            Turn::Wait => Turn::Wait,
        }
    }

    /// Returns the next step of a direction where the editor decides it.
    fn editors_turn(&mut self, direction: Direction) -> Option<Turn> {
        let editing = self.edits.editing()?;
        match direction {
            Direction::ToDatabase => {
                if let Some(bytes) = editing.late() {
                    return Some(Turn::Pass(Verdict::these(bytes)));
                }
                if editing.is_full() {
                    return Some(Turn::Wait);
                }
                if let Some(pause) = editing.pause() {
                    return Some(Turn::Rest(pause));
                }
                editing.has_more().then(|| Turn::Pass(self.go_on()))
            }
            Direction::ToClient => {
                let bytes = editing.answers()?;
                // The client may be read again.
                self.repoll = true;
                let read = self.read(direction, &bytes);
                Some(Turn::Pass(read.with(bytes)))
            }
        }
    }

    /// Lets the gate hold back what may not pass yet of a chunk.
    pub(super) fn admit(&mut self, direction: Direction, bytes: &[u8]) -> Passing {
        let Some(gate) = &mut self.gate else {
            return Passing::All;
        };
        let passing = gate.offer(direction, bytes);
        self.look_at_gate();
        passing
    }

    /// Handles the end of a side. Returns the bytes of that side that were held back and are still
    /// to be forwarded.
    pub(super) fn end(&mut self, direction: Direction) -> Vec<u8> {
        let rest = self.gate.as_mut().map(|gate| gate.end(direction));
        let mut rest = rest.unwrap_or_default();
        // The rest is no whole frame: there is nothing in it to close the flow for.
        if let Passing::These(bytes) = self.decode(direction, &rest).passing {
            rest = bytes;
        }
        if let Some(editing) = self.edits.editing() {
            let kept = editing.end(direction, edit::now_ns());
            self.repoll |= editing.has_words();
            if direction == Direction::ToClient {
                self.read(direction, &kept);
            }
            rest.extend(kept);
        }
        if let Reading::Decodes { decoder, .. } = &mut self.reading {
            match direction {
                Direction::ToDatabase => decoder.requests_end(&mut self.recorder),
                Direction::ToClient => decoder.responses_end(&mut self.recorder),
            }
        }
        rest
    }

    /// Applies the completions of requests and responses that wait. To be called whenever the
    /// flow's task runs.
    pub(super) fn apply_completions(&mut self) {
        let Some(editing) = self.edits.editing() else {
            return;
        };
        if editing.apply_completions(edit::now_ns()) {
            let refusals = editing.refusals();
            self.recorder
                .note_refusals(&self.flow, editing.user(), refusals);
        }
    }

    /// Returns, once, the last bytes for the client of a denied flow, and the reason why it ends.
    pub(super) fn last_words(&mut self) -> Option<(Vec<u8>, CloseReason)> {
        let editing = self.edits.editing();
        if let Some(words) = editing.and_then(Editing::last_words) {
            return Some(words);
        }
        self.gate.as_mut()?.last_words()
    }

    /// Returns the last bytes for the client when the flow has to end because a request of its was
    /// on a shared connection that is lost.
    pub(super) fn lost(&mut self) -> Option<Vec<u8>> {
        self.edits.editing()?.lost()
    }

    /// Takes the sign that both directions have to be polled again, because held-back bytes may
    /// pass now.
    pub(super) fn take_repoll(&mut self) -> bool {
        std::mem::take(&mut self.repoll)
    }

    /// Acts on the gate's decision, if there is one. To be called when the gate may have been
    /// decided.
    fn look_at_gate(&mut self) {
        let Some(gate) = &mut self.gate else {
            return;
        };
        self.repoll |= gate.holds_what_may_pass();
        let decision = gate.take_decision();
        if gate.is_over() {
            self.gate = None;
        }
        match decision {
            None => {}
            Some(Action::Enrich) => {
                self.recorder.switch_rule(&self.flow);
                self.edit_by_rule();
            }
            Some(_) => {
                self.edit_no_more();
                if let Reading::Decodes { stops, .. } = &mut self.reading {
                    *stops = true;
                }
            }
        }
    }

    /// Starts to edit by the flow's rule, which is decided now.
    fn edit_by_rule(&mut self) {
        let shared = &self.recorder.shared;
        let Some(editing) = self.edits.editing() else {
            return;
        };
        match editing.adopt_rule(shared, &self.flow) && !editing.is_over() {
            // It may be denied at once.
            true => self.repoll |= editing.has_words(),
            false => self.edit_no_more(),
        }
    }

    fn edit_no_more(&mut self) {
        let Some(editing) = self.edits.editing() else {
            return;
        };
        let now_ns = edit::now_ns();
        if !editing.leaves(now_ns) {
            // The question is asked again with the next bytes that pass.
            self.repoll = true;
            return;
        }
        self.edits = Edits::left_by(editing, now_ns);
        self.repoll |= matches!(self.edits, Edits::Left(_));
    }

    /// Acts on a mark that has decided the flow: nothing more passes before that holds.
    pub(super) fn apply_mark(&mut self) {
        self.look_at_gate();
        if let Reading::Decodes { stops: true, .. } = self.reading {
            self.stop();
        }
    }

    /// Reads and edits a chunk. Requests are read before they are edited, responses after that, so
    /// that reporters see what the client sends and gets.
    pub(super) fn decode(&mut self, direction: Direction, bytes: &[u8]) -> Verdict {
        test_hooks::get().may_panic(bytes);
        let mut editing = match std::mem::take(&mut self.edits) {
            Edits::Editing(editing) => editing,
            Edits::Nothing => return self.read(direction, bytes),
            left @ Edits::Left(_) => {
                self.edits = left;
                return self.read_behind_left(direction, bytes);
            }
        };
        let now_ns = edit::now_ns();
        let verdict = match direction {
            Direction::ToDatabase => {
                let read = self.read(direction, bytes);
                editing.set_time();
                let requests = read.passing.of(bytes);
                let log = &mut editing.counting;
                match editing.editor.requests(now_ns, requests, log).instead {
                    None => read,
                    Some(bytes) => read.with(bytes),
                }
            }
            Direction::ToClient => {
                let log = &mut editing.counting;
                match editing.editor.responses(bytes, log).instead {
                    None => self.read(direction, bytes),
                    Some(bytes) => self.read(direction, &bytes).bringing(bytes),
                }
            }
        };
        self.go_on_editing(editing);
        verdict
    }

    /// Goes on with requests that a step has slowed down, after their pause. They have been read.
    fn go_on(&mut self) -> Verdict {
        let Edits::Editing(mut editing) = std::mem::take(&mut self.edits) else {
            return Verdict::ALL;
        };
        let bytes = editing.go_on();
        self.go_on_editing(editing);
        Verdict::these(bytes)
    }

    /// Reads a chunk behind the bytes that an editor had kept back.
    fn read_behind_left(&mut self, direction: Direction, bytes: &[u8]) -> Verdict {
        let mut left = self.edits.take_left(direction);
        match (left.is_empty(), direction) {
            (true, _) => self.read(direction, bytes),
            // They have been read before they were kept back.
            (false, Direction::ToDatabase) => {
                let read = self.read(direction, bytes);
                left.extend_from_slice(read.passing.of(bytes));
                read.with(left)
            }
            (false, Direction::ToClient) => {
                left.extend_from_slice(bytes);
                self.read(direction, &left).bringing(left)
            }
        }
    }

    /// Takes the editor back behind a chunk, unless it has come to its end.
    fn go_on_editing(&mut self, mut editing: Box<Editing>) {
        editing.note_chunk();
        let refusals = editing.refusals();
        self.recorder
            .note_refusals(&self.flow, editing.user(), refusals);
        self.repoll |= editing.has_words();
        let lets_pass = editing.lets_pass();
        self.edits = match editing.is_over() {
            false => Edits::Editing(editing),
            true => Edits::left_by(&mut editing, edit::now_ns()),
        };
        self.repoll |= matches!(self.edits, Edits::Left(_));
        // Bytes that are not decoded may still be edited, except for segments that nobody can open.
        let is_closed = self.undecodable() == Some(Undecodable::SegmentCompression);
        if !self.decodes() && (self.undecodable().is_none() || is_closed && lets_pass) {
            self.edit_no_more();
        }
    }

    fn undecodable(&self) -> Option<Undecodable> {
        match self.reading {
            Reading::Walks(Err(NoPosition::Undecodable(why))) => Some(why),
            _ => None,
        }
    }

    /// Whether the flow is decoded.
    pub(super) fn decodes(&self) -> bool {
        matches!(self.reading, Reading::Decodes { .. })
    }

    /// Whether the flow is decided and decoded.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.reading, Reading::Decodes { stops: false, .. }) && self.gate.is_none()
    }

    /// Whether the flow was denied, or its database has ended before the flow was decided.
    pub(super) fn is_ending(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.is_ending())
    }

    /// Tells the editor and the reporters that the flow has ended.
    pub(super) fn finish(&mut self) {
        if let Some(editing) = self.edits.editing() {
            editing.abandon();
        }
        self.report_unanswered();
    }

    /// Tells the reporters of requests that were not answered. To be called when the flow has
    /// ended, or is not read any more.
    pub(super) fn report_unanswered(&mut self) {
        let now_ns = self.start.elapsed().as_nanos() as u64;
        let recorder = &mut self.recorder;
        if let (Reading::Decodes { decoder, .. }, Some(followed)) =
            (&mut self.reading, recorder.followed.take())
            && followed.wants_details()
        {
            let mut followed = InDetail { recorder, followed };
            decoder.finish(now_ns, &mut followed);
        }
    }

    /// Stops reading: nobody needs to read the flow any more.
    pub(super) fn stop(&mut self) {
        self.report_unanswered();
        if self.decodes() {
            self.reading = Reading::Walks(self.unread());
            self.flow.travels(Path::Relay);
        }
        self.edit_no_more();
    }

    /// Returns the gate of a flow that is not decided.
    pub(super) fn open_gate(&mut self) -> Option<&mut Gate> {
        self.gate.as_deref_mut().filter(|gate| gate.is_open())
    }

    /// Whether nobody needs to see the flow's bytes any more, and none is held back.
    pub(super) fn is_off(&self) -> bool {
        !self.decodes() && self.gate.is_none() && matches!(self.edits, Edits::Nothing)
    }
}
