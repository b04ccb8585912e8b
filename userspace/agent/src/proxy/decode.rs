//! Reads what passes: counts statements, and tells the relay when a flow has to end.
//!
//! While a flow is not decided ([`Gate`]), what is read of it is not what passes: the relay asks
//! each direction's [`Decoder::turn`] first.

use std::{sync::Arc, time::Instant};

use cql::{Anomaly, Completed, FlowDecoder, NoPlace, Place, Sink, Statement, Unread, Verdict};
use dataplane::policy::{Action, RuleName};

use super::{
    Shared,
    session::{Gate, Gated, Passing, Question},
};
use crate::{
    flows::{Flow, Path},
    marks,
    statements::Series,
};

/// A flow's most recent statements and their rows. Applications ask few distinct things of
/// one connection; when they ask more, the row is looked up again.
const SERIES_AT_HAND: usize = 32;

/// Which way bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    ToDatabase,
    ToClient,
}

/// What becomes of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    Forward,
    /// Forward this many bytes, then close the flow for this reason.
    Close {
        keep: usize,
        reason: &'static str,
    },
    /// Forward these instead; then perhaps close the flow.
    Instead {
        bytes: Vec<u8>,
        close: Option<&'static str>,
    },
}

/// What a direction does next.
#[derive(Debug)]
pub(super) enum Turn {
    Read,
    /// This passes first.
    Pass(Chunk),
    /// Nothing is read until the other direction has moved.
    Wait,
}

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
        let gate = |question| Box::new(Gate::new(question, shared, flow));
        Self {
            reading: Reading::Decodes(FlowDecoder::new(shared.prepared.clone())),
            gate: question.map(gate),
            ..Self::idle(shared, flow)
        }
    }

    /// One that does not read yet.
    pub(super) fn idle(shared: &Arc<Shared>, flow: &Arc<Flow>) -> Self {
        Self {
            reading: Reading::Walks(Err(NoPlace::Handshake)),
            stops: false,
            recorder: Recorder {
                shared: shared.clone(),
                rule: marks::series_of(flow.rule()),
                at_hand: Vec::new(),
                oldest: 0,
            },
            start: Instant::now(),
            flow: flow.clone(),
            gate: None,
            is_decided: false,
            let_go: false,
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.recorder.shared
    }

    /// Reads the flow from its next frames on, which it has not done for a while.
    pub(super) fn join(&mut self, unread: Unread) {
        let prepared = self.recorder.shared.prepared.clone();
        self.reading = Reading::Decodes(FlowDecoder::join(prepared, unread));
        self.stops = false;
        self.recorder.is_of(self.flow.rule());
        self.flow.travels(Path::Enrich);
    }

    /// One that has just [joined](Self::join) was told an old place of this direction.
    pub(super) fn begins_at(&mut self, way: Way, place: Place) {
        if let Reading::Decodes(decoder) = &mut self.reading {
            match way {
                Way::ToDatabase => decoder.requests_begin_at(place),
                Way::ToClient => decoder.responses_begin_at(place),
            }
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
        let rest = rest.unwrap_or_default();
        if !rest.is_empty() {
            // It is no whole frame: there is nothing in it to close the flow for.
            self.decode(way, &rest);
        }
        if let Reading::Decodes(decoder) = &mut self.reading {
            match way {
                Way::ToDatabase => decoder.requests_end(&mut self.recorder),
                Way::ToClient => decoder.responses_end(&mut self.recorder),
            }
        }
        rest
    }

    /// Once, when the flow is denied: what the client is still told.
    pub(super) fn last_words(&mut self) -> Option<Vec<u8>> {
        self.gate.as_mut()?.last_words()
    }

    /// Both directions are to be polled again: what one held back may pass now.
    pub(super) fn let_go(&mut self) -> bool {
        std::mem::take(&mut self.let_go)
    }

    /// What passes in place of what was read.
    fn gated(&mut self, way: Way, mut bytes: Vec<u8>) -> Chunk {
        self.look_at_gate();
        let close = match self.decode(way, &bytes) {
            Chunk::Close { keep, reason } => {
                bytes.truncate(keep);
                Some(reason)
            }
            _ => None,
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
            Action::Enrich => self.recorder.is_of(self.flow.rule()),
            _ => self.stops = self.decodes(),
        }
    }

    /// A mark has decided: nothing more passes before that holds.
    pub(super) fn is_marked(&mut self) {
        self.look_at_gate();
        if self.stops {
            self.stop();
        }
    }

    fn decode(&mut self, way: Way, bytes: &[u8]) -> Chunk {
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
        let verdict = match way {
            Way::ToDatabase => decoder.requests(now_ns, bytes, &mut self.recorder),
            Way::ToClient => decoder.responses(now_ns, bytes, &mut self.recorder),
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

    /// Nobody needs to read it any more.
    pub(super) fn stop(&mut self) {
        self.stops = false;
        if self.decodes() {
            self.reading = Reading::Walks(self.unread());
            self.flow.travels(Path::Relay);
        }
    }

    /// The gate of a flow that is not decided.
    pub(super) fn open_gate(&mut self) -> Option<&mut Gate> {
        self.gate.as_deref_mut().filter(|gate| gate.is_open())
    }

    /// Whether nobody needs to see the flow's bytes any more, and none is held back.
    pub(super) fn is_off(&self) -> bool {
        !self.decodes() && self.gate.is_none()
    }
}

struct Recorder {
    shared: Arc<Shared>,
    rule: RuleName,
    at_hand: Vec<(Arc<Statement>, Arc<Series>)>,
    /// The next one to be replaced.
    oldest: usize,
}

impl Recorder {
    /// What comes from here on counts under this rule.
    fn is_of(&mut self, rule: RuleName) {
        let rule = marks::series_of(rule);
        if self.rule != rule {
            self.rule = rule;
            self.at_hand.clear();
            self.oldest = 0;
        }
    }
}

/// Counts nothing.
struct Nobody;

impl Sink for Nobody {
    fn completed(&mut self, _: &Completed<'_>) {}
    fn anomaly(&mut self, _: Anomaly) {}
}

impl Sink for Recorder {
    fn completed(&mut self, completed: &Completed<'_>) {
        let statement = completed.statement;
        let found = self.at_hand.iter().find(|(s, _)| Arc::ptr_eq(s, statement));
        if let Some((_, series)) = found {
            return self.shared.statements.record(series, completed);
        }
        let series = self.shared.statements.series(&self.rule, statement);
        self.shared.statements.record(&series, completed);
        let entry = (statement.clone(), series);
        match self.at_hand.get_mut(self.oldest) {
            Some(oldest) => *oldest = entry,
            None => self.at_hand.push(entry),
        }
        self.oldest = (self.oldest + 1) % SERIES_AT_HAND;
    }

    fn anomaly(&mut self, anomaly: Anomaly) {
        self.shared
            .metrics
            .anomalies
            .with_label_values(&[anomaly.as_str()])
            .inc();
    }
}
