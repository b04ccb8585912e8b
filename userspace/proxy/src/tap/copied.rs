//! [`CopiedSteps`]: the transforms and effects of a tapped flow's rule that only read.

use std::sync::Arc;

use cql_edit::{Caller, Editor, Pipeline};
use flow::Flow;
use steps::pipelines::{Counting, PipelineMetrics, Pipelines};
use tap::{Beside, Direction, Happened};

use crate::caller::{ROOM, caller};

/// The steps of one flow, which are shown what has passed. Nothing of what they say goes anywhere, but to their own
/// counters, and to a mirror.
pub(super) struct CopiedSteps {
    editor: Editor,
    counting: Counting,
    /// Whether it was counted that the flow cannot be read.
    is_over: bool,
}

impl CopiedSteps {
    /// Makes the steps of a flow that begins. None: no rule that the flow may come under has any. `is_decided`: it is under
    /// its rule.
    pub(super) fn begin(
        pipelines: &Pipelines,
        metrics: &PipelineMetrics,
        flow: &Arc<Flow>,
        is_decided: bool,
    ) -> Option<Box<Self>> {
        if !pipelines.edit() {
            return None;
        }
        let editor = Editor::new(Pipeline::default(), Caller::default());
        let mut steps = Box::new(Self {
            editor: editor.within(&ROOM).of_copies(),
            counting: metrics.of(&flow.rule()),
            is_over: false,
        });
        match is_decided {
            true => steps.adopt_rule(pipelines, metrics, flow).then_some(steps),
            false => Some(steps),
        }
    }

    /// Takes over the steps of the flow's rule, which is decided now. False: it has none.
    pub(super) fn adopt_rule(
        &mut self,
        pipelines: &Pipelines,
        metrics: &PipelineMetrics,
        flow: &Arc<Flow>,
    ) -> bool {
        let Some(pipeline) = pipelines.edits_of(&flow.rule()) else {
            return false;
        };
        // The rule may have other steps since it tapped: they would have nothing to change.
        if pipeline.iter().any(|step| step.copies().is_none()) {
            return false;
        }
        self.counting = metrics.of(&flow.rule());
        self.editor.becomes(pipeline, caller(flow));
        true
    }

    /// Counts, once, that the flow cannot be read.
    fn look(&mut self) {
        if let Some(why) = self.editor.unreadable().filter(|_| !self.is_over) {
            self.is_over = true;
            self.counting.unreadable(why, false);
        }
    }
}

impl Beside for CopiedSteps {
    fn bytes(&mut self, direction: Direction, at_ns: u64, bytes: &[u8]) {
        let log = &mut self.counting;
        match direction {
            Direction::Requests => drop(self.editor.requests(at_ns, bytes, log)),
            Direction::Responses => drop(self.editor.responses(bytes, log)),
        }
        self.look();
    }

    fn skipped(&mut self, direction: Direction, bytes: usize) {
        let to_database = direction == Direction::Requests;
        self.editor.skip(to_database, bytes, &mut self.counting);
        self.look();
    }

    fn happened(&mut self, what: Happened) {
        match what {
            Happened::Missed(direction) => self.editor.miss(direction == Direction::Requests),
            Happened::Joined { version, segments } => {
                self.editor.joins(version, segments);
                self.is_over = false;
            }
        }
    }
}
