//! Reads what passes: counts statements, and tells the relay when a flow has to end.
//!
//! While a flow is not decided ([`Gate`]), what is read of it is not what passes: the relay asks
//! each direction's [`Decoder::turn`] first.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cql::{FlowDecoder, NoPlace, Place, Sink, Undecodable, Unread, Verdict};
use policy::Action;

use super::{
    Shared,
    chunk::{Chunk, Turn, Way},
    close::DENIED,
    edit::{self, Editing, Passes},
    reader::Both,
    recorder::{InDetail, InFrames, Nobody, Recorder},
    session::{Gate, Gated, Passing, Question},
};
use crate::flows::{Flow, Path};

/// A flow that a reporter holds is looked at again this much later.
const HOLD: Duration = Duration::from_millis(5);

pub(super) struct Decoder {
    reading: Reading,
    /// It stops with what passes next: nobody needs to read the flow any more, but where in its
    /// frames that ends, and how it goes on from there, has to be known.
    stops: bool,
    recorder: Recorder,
    /// Zero of the decoder's clock.
    start: Instant,
    flow: Arc<Flow>,
    /// While the flow is not decided, and then until what it held back has passed.
    gate: Option<Box<Gate>>,
    is_decided: bool,
    /// What its rule does to it. While the rule is not decided: nothing, but where frames begin is
    /// known.
    editing: Option<Box<Editing>>,
    /// What was kept back by one that edits no more.
    left: Both<Vec<u8>>,
    /// What was held back of one direction may pass now.
    let_go: bool,
}

/// Whether what passes is read.
#[expect(
    clippy::large_enum_variant,
    reason = "what does not read any more soon goes as a whole"
)]
enum Reading {
    Decodes(FlowDecoder),
    /// Bytes are relayed; it is known, where that can be, how far they have got.
    Walks(Result<Unread, NoPlace>),
}

impl Decoder {
    pub(super) fn new(shared: &Arc<Shared>, flow: &Arc<Flow>, question: Option<Question>) -> Self {
        let is_decided = question.is_none();
        let gate = |question| Box::new(Gate::new(question, shared, flow));
        let mut decoder = Self {
            reading: Reading::Decodes(FlowDecoder::new(shared.prepared.clone())),
            gate: question.map(gate),
            editing: Editing::begin(shared, flow, is_decided),
            ..Self::idle(shared, flow)
        };
        if decoder.gate.is_none() {
            decoder.recorder.is_followed(flow);
            decoder.edit_by_rule();
        }
        decoder
    }

    /// One that does not read yet.
    pub(super) fn idle(shared: &Arc<Shared>, flow: &Arc<Flow>) -> Self {
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

    /// Reads the flow from its next frames on, which it has not done for a while.
    pub(super) fn join(&mut self, unread: Unread) {
        let prepared = self.recorder.shared.prepared.clone();
        self.reading = Reading::Decodes(FlowDecoder::join(prepared, unread));
        self.stops = false;
        self.recorder.is_of(&self.flow);
        self.flow.travels(Path::Enrich);
    }

    /// One that has [joined](Self::join), and may have stopped again, was told an old place of this
    /// direction, of which no byte has come since.
    pub(super) fn begins_at(&mut self, way: Way, place: Place) {
        match (&mut self.reading, way) {
            (Reading::Decodes(decoder), Way::ToDatabase) => decoder.requests_begin_at(place),
            (Reading::Decodes(decoder), Way::ToClient) => decoder.responses_begin_at(place),
            (Reading::Walks(Ok(unread)), Way::ToDatabase) => unread.requests = place,
            (Reading::Walks(Ok(unread)), Way::ToClient) => unread.responses = place,
            (Reading::Walks(Err(_)), _) => {}
        }
    }

    /// Where the flow is, for one who goes on without reading it.
    pub(super) fn unread(&self) -> Result<Unread, NoPlace> {
        match &self.reading {
            Reading::Decodes(decoder) => decoder.unread(),
            Reading::Walks(unread) => *unread,
        }
    }

    /// Whether to read; asked before each read.
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

    /// A side has ended; what of it was held back is to be forwarded yet.
    pub(super) fn end(&mut self, way: Way) -> Vec<u8> {
        let rest = self.gate.as_mut().map(|gate| gate.end(way));
        let mut rest = rest.unwrap_or_default();
        // It is no whole frame: there is nothing in it to close the flow for.
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

    /// Does what was said of requests and responses that wait; to be called whenever the flow's task runs.
    pub(super) fn hears(&mut self) {
        let Some(editing) = &mut self.editing else {
            return;
        };
        if !editing.hears(edit::now_ns()) {
            return;
        }
        let refusals = editing.refusals();
        if let Some(followed) = &mut self.recorder.followed {
            followed.are_refused(refusals);
        }
    }

    /// Once, when the flow is denied: what the client is still told, and why it ends.
    pub(super) fn last_words(&mut self) -> Option<(Vec<u8>, &'static str)> {
        let editing = self.editing.as_mut();
        if let Some(words) = editing.and_then(|editing| editing.last_words()) {
            return Some(words);
        }
        Some((self.gate.as_mut()?.last_words()?, DENIED))
    }

    /// What the client is still told, where the flow has to end because what was asked by another connection is lost.
    pub(super) fn lost(&mut self) -> Option<Vec<u8>> {
        self.editing.as_mut()?.lost()
    }

    /// Both directions are to be polled again: what one held back may pass now.
    pub(super) fn let_go(&mut self) -> bool {
        std::mem::take(&mut self.let_go)
    }

    /// What passes in place of what was read.
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

    /// To be called when the gate may have been decided.
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
                self.recorder.is_of(&self.flow);
                self.edit_by_rule();
            }
            _ => {
                self.edit_no_more();
                self.stops = self.decodes();
            }
        }
    }

    /// The rule is decided.
    fn edit_by_rule(&mut self) {
        let shared = &self.recorder.shared;
        let Some(editing) = &mut self.editing else {
            return;
        };
        match editing.is_of_its_rule(shared, &self.flow) && !editing.is_over() {
            // It may be denied at once.
            true => self.let_go |= editing.has_words(),
            false => self.edit_no_more(),
        }
    }

    fn edit_no_more(&mut self) {
        if let Some(mut editing) = self.editing.take() {
            let now_ns = edit::now_ns();
            if !editing.leaves(now_ns) {
                // Asked again with what passes next.
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

    /// A mark has decided: nothing more passes before that holds.
    pub(super) fn is_marked(&mut self) {
        self.look_at_gate();
        if self.stops {
            self.stop();
        }
    }

    /// Reads what the client has sent, and what it is sent; and edits it, before or after that.
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
            followed.are_refused(refusals);
        }
        self.let_go |= editing.has_words();
        let lets_pass = editing.lets_pass();
        match editing.is_over() {
            true => {}
            false => self.editing = Some(editing),
        }
        // What is not decoded may be edited all the same, but for segments that nobody can open.
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

    /// What these bytes tell, on the client's side.
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
                // They may have nowhere to put what the last responses have them say, and are asked again only
                // before the client is read.
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
                self.flow.is_undecodable(reason.as_str());
                self.flow.travels(Path::Relay);
                self.reading = Reading::Walks(Err(NoPlace::Undecodable(reason)));
                Chunk::Forward
            }
            Verdict::Close { keep, reason } => Chunk::Close {
                keep,
                reason: reason.as_str(),
            },
        }
    }

    /// What these bytes say is nobody's business.
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

    /// Whether it is read.
    pub(super) fn decodes(&self) -> bool {
        matches!(self.reading, Reading::Decodes(_))
    }

    /// The flow was denied, or its database has ended before it was decided.
    pub(super) fn is_ending(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.is_ending())
    }

    /// The flow has ended.
    pub(super) fn is_gone(&mut self) {
        if let Some(editing) = &mut self.editing {
            editing.is_gone();
        }
        self.is_over();
    }

    /// The flow has ended, or is not read any more: reporters hear of what was not answered.
    pub(super) fn is_over(&mut self) {
        let now_ns = self.start.elapsed().as_nanos() as u64;
        let recorder = &mut self.recorder;
        if let (Reading::Decodes(decoder), Some(followed)) =
            (&mut self.reading, recorder.followed.take())
            && followed.wants_requests()
        {
            let mut followed = InDetail { recorder, followed };
            decoder.is_over(now_ns, &mut followed);
        }
    }

    /// Nobody needs to read it any more.
    pub(super) fn stop(&mut self) {
        self.is_over();
        self.stops = false;
        if self.decodes() {
            self.reading = Reading::Walks(self.unread());
            self.flow.travels(Path::Relay);
        }
        self.edit_no_more();
    }

    /// The gate of a flow that is not decided.
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
