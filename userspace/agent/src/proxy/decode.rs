//! Reads what passes: counts statements, and tells the relay when a flow has to end.

use std::{sync::Arc, time::Instant};

use cql::{Anomaly, Completed, FlowDecoder, Sink, Statement, Verdict};
use dataplane::policy::RuleName;

use super::Shared;
use crate::{
    flows::{Flow, Path},
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    Forward,
    /// Forward this many bytes, then close the flow for this reason.
    Close {
        keep: usize,
        reason: &'static str,
    },
}

pub(super) struct Decoder {
    decoder: FlowDecoder,
    recorder: Recorder,
    /// Zero of the decoder's clock.
    start: Instant,
    flow: Arc<Flow>,
    decoding: bool,
}

impl Decoder {
    pub(super) fn new(shared: &Arc<Shared>, flow: &Arc<Flow>) -> Self {
        Self {
            decoder: FlowDecoder::new(shared.prepared.clone()),
            recorder: Recorder {
                shared: shared.clone(),
                rule: flow.rule.clone(),
                at_hand: Vec::new(),
                oldest: 0,
            },
            start: Instant::now(),
            flow: flow.clone(),
            decoding: true,
        }
    }

    /// Reads a chunk before it is forwarded.
    pub(super) fn chunk(&mut self, way: Way, bytes: &[u8]) -> Chunk {
        if !self.decoding {
            return Chunk::Forward;
        }
        let now_ns = self.start.elapsed().as_nanos() as u64;
        let verdict = match way {
            Way::ToDatabase => self.decoder.requests(now_ns, bytes, &mut self.recorder),
            Way::ToClient => self.decoder.responses(now_ns, bytes, &mut self.recorder),
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
                self.flow.travels(Path::Relay);
                self.decoding = false;
                Chunk::Forward
            }
            Verdict::Close { keep, reason } => Chunk::Close {
                keep,
                reason: reason.as_str(),
            },
        }
    }

    /// Whether nobody needs to see the flow's bytes any more.
    pub(super) fn is_off(&self) -> bool {
        !self.decoding
    }

    /// A side has ended.
    pub(super) fn end(&mut self, way: Way) {
        match way {
            _ if !self.decoding => {}
            Way::ToDatabase => self.decoder.requests_end(&mut self.recorder),
            Way::ToClient => self.decoder.responses_end(&mut self.recorder),
        }
    }
}

struct Recorder {
    shared: Arc<Shared>,
    rule: RuleName,
    at_hand: Vec<(Arc<Statement>, Arc<Series>)>,
    /// The next one to be replaced.
    oldest: usize,
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
