//! Reads what passes: counts statements, and tells the relay when a flow has to end.
//!
//! While a flow is not decided ([`Gate`]), what is read of it is not what passes: the relay asks
//! each direction's [`Decoder::turn`] first.

use std::{sync::Arc, time::Instant};

use cql::{Anomaly, Completed, FlowDecoder, Sink, Statement, Verdict};
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
    /// None: bytes are relayed.
    decoder: Option<FlowDecoder>,
    recorder: Recorder,
    /// Zero of the decoder's clock.
    start: Instant,
    flow: Arc<Flow>,
    /// While the flow is not decided.
    gate: Option<Box<Gate>>,
    /// What was held back of one direction may pass now.
    let_go: bool,
}

impl Decoder {
    pub(super) fn new(shared: &Arc<Shared>, flow: &Arc<Flow>, question: Option<Question>) -> Self {
        let gate = |question| Box::new(Gate::new(question, shared, flow));
        Self {
            decoder: Some(FlowDecoder::new(shared.prepared.clone())),
            recorder: Recorder {
                shared: shared.clone(),
                rule: marks::series_of(flow.rule()),
                at_hand: Vec::new(),
                oldest: 0,
            },
            start: Instant::now(),
            flow: flow.clone(),
            gate: question.map(gate),
            let_go: false,
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
        if let Some(decoder) = &mut self.decoder {
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
        let decodes = action == Action::Enrich;
        if decodes {
            self.recorder.is_of(self.flow.rule());
        }
        if gate.is_empty() {
            self.gate = None;
        }
        if !decodes {
            self.stop();
        }
    }

    fn decode(&mut self, way: Way, bytes: &[u8]) -> Chunk {
        let Some(decoder) = &mut self.decoder else {
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
                self.decoder = None;
                Chunk::Forward
            }
            Verdict::Close { keep, reason } => Chunk::Close {
                keep,
                reason: reason.as_str(),
            },
        }
    }

    /// Whether it is read.
    pub(super) fn decodes(&self) -> bool {
        self.decoder.is_some()
    }

    /// The flow was denied, or its database has ended before it was decided.
    pub(super) fn is_ending(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.is_ending())
    }

    /// Nobody needs to read it any more.
    pub(super) fn stop(&mut self) {
        if self.decoder.take().is_some() {
            self.flow.travels(Path::Relay);
        }
    }

    /// The gate of a flow that is not decided.
    pub(super) fn open_gate(&mut self) -> Option<&mut Gate> {
        self.gate.as_deref_mut().filter(|gate| gate.is_open())
    }

    /// Whether nobody needs to see the flow's bytes any more, and none is held back.
    pub(super) fn is_off(&self) -> bool {
        self.decoder.is_none() && self.gate.is_none()
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
