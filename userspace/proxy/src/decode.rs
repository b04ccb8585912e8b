//! The decoder's place in the relay: counts the statements that pass, and tells the relay when a
//! flow has to end.
//!
//! While a flow is not decided ([`Gate`]), the bytes that are read are not the bytes that pass: the
//! relay asks each direction's [`Decoder::turn`] first.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cql::{FlowDecoder, NoPlace, Place, Sink, Undecodable, Unread, Verdict};
use flow::{CloseReason, Flow, Path};
use policy::Action;

use super::{
    chunk::{Chunk, Turn, Way},
    context::ProxyContext,
    edit::{self, Editing, Passes},
    reader::Both,
    recorder::{InDetail, InFrames, Nobody, Recorder},
    session::{Gate, Gated, Passing, Question},
};

/// A flow that a reporter holds is looked at again after this time.
const HOLD: Duration = Duration::from_millis(5);

pub(super) struct Decoder {
    reading: Reading,
    /// Reading stops with the next bytes that pass: nobody needs to read the flow any more, but the
    /// position in its frames where reading ends has to be known, to go on from there.
    stops: bool,
    recorder: Recorder,
    /// The zero of the decoder's clock.
    start: Instant,
    flow: Arc<Flow>,
    /// The gate, while the flow is not decided, and then until everything that it held back has
    /// passed.
    gate: Option<Box<Gate>>,
    is_decided: bool,
    /// The editor, which applies the pipeline of the flow's rule. While the rule is not decided it
    /// changes nothing, but follows where frames begin.
    editing: Option<Box<Editing>>,
    /// Bytes that an editor had kept back when it stopped editing.
    left: Both<Vec<u8>>,
    /// Set when bytes that one direction held back may pass now.
    let_go: bool,
}

/// The mode of reading: whether passing bytes are decoded.
#[expect(
    clippy::large_enum_variant,
    reason = "what does not read any more soon goes as a whole"
)]
enum Reading {
    Decodes(FlowDecoder),
    /// Bytes are relayed. The position in the frames is followed where that is possible.
    Walks(Result<Unread, NoPlace>),
}

impl Decoder {
    pub(super) fn new(
        shared: &Arc<ProxyContext>,
        flow: &Arc<Flow>,
        question: Option<Question>,
    ) -> Self {
        let is_decided = question.is_none();
        let gate = |question| Box::new(Gate::new(question, shared, flow));
        let mut decoder = Self {
            reading: Reading::Decodes(FlowDecoder::new(shared.prepared.clone())),
            gate: question.map(gate),
            editing: Editing::begin(shared, flow, is_decided),
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
            reading: Reading::Walks(Err(NoPlace::Handshake)),
            stops: false,
            recorder: Recorder::new(shared, flow),
            start: Instant::now(),
            flow: flow.clone(),
            gate: None,
            is_decided: false,
            editing: None,
            left: Both::default(),
            let_go: false,
        }
    }

    /// Starts to read the flow, which was not read for a while, at its next frames.
    pub(super) fn join(&mut self, unread: Unread) {
        let prepared = self.recorder.shared.prepared.clone();
        self.reading = Reading::Decodes(FlowDecoder::join(prepared, unread));
        self.stops = false;
        self.recorder.switch_rule(&self.flow);
        self.flow.travels(Path::Enrich);
    }

    /// Corrects the frame position of one direction after [`Self::join`]. That position was out of
    /// date, and no byte of this direction has come since. The decoder may have stopped again in
    /// the meantime.
    pub(super) fn begins_at(&mut self, way: Way, place: Place) {
        match (&mut self.reading, way) {
            (Reading::Decodes(decoder), Way::ToDatabase) => decoder.requests_begin_at(place),
            (Reading::Decodes(decoder), Way::ToClient) => decoder.responses_begin_at(place),
            (Reading::Walks(Ok(unread)), Way::ToDatabase) => unread.requests = place,
            (Reading::Walks(Ok(unread)), Way::ToClient) => unread.responses = place,
            (Reading::Walks(Err(_)), _) => {}
        }
    }

    /// Returns the frame positions of the flow, for a reader that goes on without decoding.
    pub(super) fn unread(&self) -> Result<Unread, NoPlace> {
        match &self.reading {
            Reading::Decodes(decoder) => decoder.unread(),
            Reading::Walks(unread) => *unread,
        }
    }

    /// Decides the next step of a direction. Asked before each read.
    pub(super) fn turn(&mut self, way: Way) -> Turn {
        let followed = self.recorder.followed.as_mut();
        if way == Way::ToDatabase && followed.is_some_and(|followed| followed.holds()) {
            return Turn::Rest(HOLD);
        }
        if !self.left.of(way).is_empty() {
            return Turn::Pass(self.decode(way, &[]));
        }
        if let Some(editing) = &mut self.editing {
            match way {
                Way::ToDatabase => {
                    if let Some(bytes) = editing.late() {
                        return Turn::Pass(Chunk::Instead { bytes, close: None });
                    }
                    if editing.is_full() {
                        return Turn::Wait;
                    }
                    if let Some(pause) = editing.pause() {
                        return Turn::Rest(pause);
                    }
                }
                Way::ToClient => {
                    if let Some(bytes) = editing.answers() {
                        // The client may be read again.
                        self.let_go = true;
                        let close = self.read(way, &bytes).close();
                        return Turn::Pass(Chunk::Instead { bytes, close });
                    }
                }
            }
        }
        let Some(gate) = &mut self.gate else {
            return Turn::Read;
        };
        match gate.turn(way) {
            Gated::Read => Turn::Read,
            Gated::Wait => Turn::Wait,
            Gated::Pass(bytes) => Turn::Pass(self.gated(way, bytes)),
        }
    }

    /// Reads a chunk before it is forwarded.
    pub(super) fn chunk(&mut self, way: Way, bytes: &[u8]) -> Chunk {
        let Some(gate) = &mut self.gate else {
            return self.decode(way, bytes);
        };
        match gate.offer(way, bytes) {
            Passing::All => {
                self.look_at_gate();
                self.decode(way, bytes)
            }
            Passing::These(bytes) => self.gated(way, bytes),
        }
    }

    /// Handles the end of a side. Returns the bytes of that side that were held back and are still
    /// to be forwarded.
    pub(super) fn end(&mut self, way: Way) -> Vec<u8> {
        let rest = self.gate.as_mut().map(|gate| gate.end(way));
        let mut rest = rest.unwrap_or_default();
        // The rest is no whole frame: there is nothing in it to close the flow for.
        if let Chunk::Instead { bytes, .. } = self.decode(way, &rest) {
            rest = bytes;
        }
        if let Some(editing) = &mut self.editing {
            let kept = editing.end(way, edit::now_ns());
            self.let_go |= editing.has_words();
            if way == Way::ToClient {
                self.read(way, &kept);
            }
            rest.extend(kept);
        }
        if let Reading::Decodes(decoder) = &mut self.reading {
            match way {
                Way::ToDatabase => decoder.requests_end(&mut self.recorder),
                Way::ToClient => decoder.responses_end(&mut self.recorder),
            }
        }
        rest
    }

    /// Applies the completions of requests and responses that wait. To be called whenever the
    /// flow's task runs.
    pub(super) fn hears(&mut self) {
        let Some(editing) = &mut self.editing else {
            return;
        };
        if !editing.hears(edit::now_ns()) {
            return;
        }
        let refusals = editing.refusals();
        if let Some(followed) = &mut self.recorder.followed {
            followed.note_refusals(refusals);
        }
    }

    /// Returns, once, the last bytes for the client of a denied flow, and the reason why it ends.
    pub(super) fn last_words(&mut self) -> Option<(Vec<u8>, CloseReason)> {
        let editing = self.editing.as_mut();
        if let Some(words) = editing.and_then(|editing| editing.last_words()) {
            return Some(words);
        }
        Some((self.gate.as_mut()?.last_words()?, CloseReason::Denied))
    }

    /// Returns the last bytes for the client when the flow has to end because a request of its was
    /// on a shared connection that is lost.
    pub(super) fn lost(&mut self) -> Option<Vec<u8>> {
        self.editing.as_mut()?.lost()
    }

    /// Takes the sign that both directions have to be polled again, because held-back bytes may
    /// pass now.
    pub(super) fn let_go(&mut self) -> bool {
        std::mem::take(&mut self.let_go)
    }

    /// Turns the bytes that the gate lets pass into a chunk that replaces what was read.
    fn gated(&mut self, way: Way, mut bytes: Vec<u8>) -> Chunk {
        self.look_at_gate();
        let close = match self.decode(way, &bytes) {
            Chunk::Forward => None,
            Chunk::Close { keep, reason } => {
                bytes.truncate(keep);
                Some(reason)
            }
            instead @ Chunk::Instead { .. } => return instead,
        };
        Chunk::Instead { bytes, close }
    }

    /// Acts on the gate's decision, if there is one. To be called when the gate may have been
    /// decided.
    pub(super) fn look_at_gate(&mut self) {
        let Some(gate) = &mut self.gate else {
            return;
        };
        self.let_go |= gate.holds_what_may_pass();
        let Some(action) = gate.decided() else {
            return;
        };
        if gate.is_empty() {
            self.gate = None;
        }
        if std::mem::replace(&mut self.is_decided, true) {
            return;
        }
        match action {
            Action::Enrich => {
                self.recorder.switch_rule(&self.flow);
                self.edit_by_rule();
            }
            _ => {
                self.edit_no_more();
                self.stops = self.decodes();
            }
        }
    }

    /// Starts to edit by the flow's rule, which is decided now.
    fn edit_by_rule(&mut self) {
        let shared = &self.recorder.shared;
        let Some(editing) = &mut self.editing else {
            return;
        };
        match editing.adopt_rule(shared, &self.flow) && !editing.is_over() {
            // It may be denied at once.
            true => self.let_go |= editing.has_words(),
            false => self.edit_no_more(),
        }
    }

    fn edit_no_more(&mut self) {
        if let Some(mut editing) = self.editing.take() {
            let now_ns = edit::now_ns();
            if !editing.leaves(now_ns) {
                // The question is asked again with the next bytes that pass.
                self.editing = Some(editing);
                self.let_go = true;
                return;
            }
            for way in [Way::ToDatabase, Way::ToClient] {
                *self.left.of_mut(way) = editing.end(way, now_ns);
                self.let_go |= !self.left.of(way).is_empty();
            }
        }
    }

    /// Acts on a mark that has decided the flow: nothing more passes before that holds.
    pub(super) fn apply_mark(&mut self) {
        self.look_at_gate();
        if self.stops {
            self.stop();
        }
    }

    /// Reads and edits a chunk. Requests are read before they are edited, responses after that, so
    /// that reporters see what the client sends and gets.
    fn decode(&mut self, way: Way, bytes: &[u8]) -> Chunk {
        let left = std::mem::take(self.left.of_mut(way));
        let Some(mut editing) = self.editing.take() else {
            return match (left.is_empty(), way) {
                (true, _) => self.read(way, bytes),
                (false, Way::ToDatabase) => self.read(way, bytes).behind(left, bytes),
                (false, Way::ToClient) => {
                    let bytes = [&left[..], bytes].concat();
                    self.read(way, &bytes).behind(Vec::new(), &bytes)
                }
            };
        };
        let now_ns = edit::now_ns();
        let chunk = match way {
            Way::ToDatabase => {
                let read = self.read(way, bytes);
                match editing.chunk(way, now_ns, read.kept(bytes)) {
                    Passes::All => read,
                    Passes::These(bytes) => read.instead(bytes),
                }
            }
            Way::ToClient => match editing.chunk(way, now_ns, bytes) {
                Passes::All => self.read(way, bytes),
                Passes::These(bytes) => {
                    let read = self.read(way, &bytes);
                    read.behind(Vec::new(), &bytes)
                }
            },
        };
        let refusals = editing.refusals();
        if let Some(followed) = &mut self.recorder.followed {
            followed.note_refusals(refusals);
        }
        self.let_go |= editing.has_words();
        let lets_pass = editing.lets_pass();
        match editing.is_over() {
            true => {}
            false => self.editing = Some(editing),
        }
        // Bytes that are not decoded may still be edited, except for segments that nobody can open.
        let is_closed = self.undecodable() == Some(Undecodable::SegmentCompression);
        if !self.decodes() && (self.undecodable().is_none() || is_closed && lets_pass) {
            self.edit_no_more();
        }
        chunk
    }

    fn undecodable(&self) -> Option<Undecodable> {
        match self.reading {
            Reading::Walks(Err(NoPlace::Undecodable(why))) => Some(why),
            _ => None,
        }
    }

    /// Decodes these bytes as the client's side sees them.
    fn read(&mut self, way: Way, bytes: &[u8]) -> Chunk {
        if self.stops {
            self.pass_unread(way, bytes);
            self.stop();
            return Chunk::Forward;
        }
        let Reading::Decodes(decoder) = &mut self.reading else {
            self.pass_unread(way, bytes);
            return Chunk::Forward;
        };
        let now_ns = self.start.elapsed().as_nanos() as u64;
        let recorder = &mut self.recorder;
        let verdict = match recorder.followed.take() {
            None => feed(decoder, way, now_ns, bytes, recorder),
            Some(followed) if !followed.wants_requests() => {
                let mut frames = InFrames(InDetail { recorder, followed });
                let verdict = feed(decoder, way, now_ns, bytes, &mut frames);
                self.recorder.followed = Some(frames.0.followed);
                verdict
            }
            Some(followed) => {
                decoder.wants_texts(followed.wants_texts());
                decoder.wants_contexts(followed.wants_contexts());
                let mut followed = InDetail { recorder, followed };
                let verdict = feed(decoder, way, now_ns, bytes, &mut followed);
                let mut followed = followed.followed;
                // The reporters may have no room for what the last responses made them write, and
                // are asked again only before the client is read.
                self.let_go |= way == Way::ToClient && followed.holds();
                self.recorder.followed = Some(followed);
                verdict
            }
        };
        match verdict {
            Verdict::Continue => Chunk::Forward,
            Verdict::Undecodable(reason) => {
                let metrics = &self.recorder.shared.metrics;
                metrics
                    .undecodable
                    .with_label_values(&[reason.as_str()])
                    .inc();
                tracing::info!(flow = ?self.flow.id, %reason, "relayed from here on");
                self.flow.set_undecodable(reason.as_str());
                self.flow.travels(Path::Relay);
                self.reading = Reading::Walks(Err(NoPlace::Undecodable(reason)));
                Chunk::Forward
            }
            Verdict::Close { keep, reason } => Chunk::Close {
                keep,
                reason: CloseReason::Decoder(reason),
            },
        }
    }

    /// Follows the frame position through these bytes; nobody is told of what they say.
    fn pass_unread(&mut self, way: Way, bytes: &[u8]) {
        match (&mut self.reading, way) {
            (Reading::Decodes(decoder), Way::ToDatabase) => {
                decoder.requests(0, bytes, &mut Nobody);
            }
            (Reading::Decodes(decoder), Way::ToClient) => {
                decoder.responses(0, bytes, &mut Nobody);
            }
            (Reading::Walks(Ok(unread)), Way::ToDatabase) => unread.requests.walk(bytes),
            (Reading::Walks(Ok(unread)), Way::ToClient) => unread.responses.walk(bytes),
            (Reading::Walks(Err(_)), _) => {}
        }
    }

    /// Whether the flow is decoded.
    pub(super) fn decodes(&self) -> bool {
        matches!(self.reading, Reading::Decodes(_))
    }

    /// Whether the flow was denied, or its database has ended before the flow was decided.
    pub(super) fn is_ending(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.is_ending())
    }

    /// Tells the editor and the reporters that the flow has ended.
    pub(super) fn finish(&mut self) {
        if let Some(editing) = &mut self.editing {
            editing.abandon();
        }
        self.report_unanswered();
    }

    /// Tells the reporters of requests that were not answered. To be called when the flow has
    /// ended, or is not read any more.
    pub(super) fn report_unanswered(&mut self) {
        let now_ns = self.start.elapsed().as_nanos() as u64;
        let recorder = &mut self.recorder;
        if let (Reading::Decodes(decoder), Some(followed)) =
            (&mut self.reading, recorder.followed.take())
            && followed.wants_requests()
        {
            let mut followed = InDetail { recorder, followed };
            decoder.finish(now_ns, &mut followed);
        }
    }

    /// Stops reading: nobody needs to read the flow any more.
    pub(super) fn stop(&mut self) {
        self.report_unanswered();
        self.stops = false;
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
        let is_left = |way| !self.left.of(way).is_empty();
        !self.decodes()
            && self.gate.is_none()
            && self.editing.is_none()
            && !is_left(Way::ToDatabase)
            && !is_left(Way::ToClient)
    }
}

fn feed(
    decoder: &mut FlowDecoder,
    way: Way,
    now_ns: u64,
    bytes: &[u8],
    sink: &mut impl Sink,
) -> Verdict {
    match way {
        Way::ToDatabase => decoder.requests(now_ns, bytes, sink),
        Way::ToClient => decoder.responses(now_ns, bytes, sink),
    }
}
