//! `count`: the number of frames of each opcode that pass. No statement is looked at, so this step
//! costs the least of all.

use std::sync::Arc;

use cql::{Completed, Details, Frame, Opcode};
use policy::RuleName;
use prometheus::IntCounter;
use serde::Deserialize;

use super::{Following, Reporter, Services, Whose, frames::FrameMetrics};

/// Counts frames by opcode (`underpass_frames_total`). Looks at no statement, so it costs the least of all steps.
#[derive(Clone, Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CountSettings {}

#[derive(Debug)]
struct Count;

impl CountSettings {
    pub(super) fn build(self) -> Result<Box<dyn Reporter>, String> {
        Ok(Box::new(Count))
    }
}

impl Reporter for Count {
    fn name(&self) -> &'static str {
        "count"
    }

    fn wants_requests(&self) -> bool {
        false
    }

    fn wants_frames(&self) -> bool {
        true
    }

    fn follow(&self, whose: &Arc<Whose>, services: &Arc<Services>) -> Box<dyn Following> {
        Box::new(FlowCount {
            rule: services.frames.label(&whose.rule),
            metrics: services.frames.clone(),
            counters: std::array::from_fn(|_| None),
        })
    }
}

/// The number of counters: one for each opcode, of which each has one direction, and one for
/// unknown opcodes of each direction.
const COUNTERS: usize = Opcode::ALL.len() + 2;

struct FlowCount {
    rule: RuleName,
    metrics: FrameMetrics,
    /// The counters, looked up when there is something to count.
    counters: [Option<IntCounter>; COUNTERS],
}

impl Following for FlowCount {
    fn completed(&mut self, _: &Completed<'_>, _: &Details) {}

    fn frame(&mut self, frame: &Frame<'_>) {
        let at = match frame.opcode {
            Some(opcode) => opcode as usize,
            None => Opcode::ALL.len() + usize::from(frame.is_request),
        };
        let Some(counter) = self.counters.get_mut(at) else {
            return;
        };
        let (metrics, rule) = (&self.metrics, self.rule.as_str());
        let find = || metrics.passed(rule, frame.is_request, frame.opcode);
        counter.get_or_insert_with(find).inc();
    }
}
