//! The recorder: counts the events that a decoder reports, and passes them to the rule's reporters.

use std::sync::Arc;

use cql::{Anomaly, Completed, Details, Frame, Sink, Statement, StreamId};
use flow::Flow;
use policy::RuleName;
use steps::{
    Followed, Refusal,
    statements::{Asker, Series},
    tail::Watched,
};
use telemetry::series_of;

use super::{context::ProxyContext, denied};

/// The number of a flow's most recent statements whose rows are kept at hand. Applications ask few
/// distinct things of one connection; when they ask more, the row is looked up again.
const SERIES_AT_HAND: usize = 32;

/// Counts a flow's events under its rule, and knows the rule's reporters.
pub(super) struct Recorder {
    pub(super) shared: Arc<ProxyContext>,
    rule: RuleName,
    asker: Asker,
    at_hand: Vec<(Arc<Statement>, Arc<Series>)>,
    /// The index of the entry that is replaced next.
    oldest: usize,
    /// The rule's reporters, and those who watch or capture. Details are only read for them.
    pub(super) followed: Option<Box<Followed>>,
    /// Whether the decoder has read details since it was told to forget them.
    has_details: bool,
}

impl Recorder {
    /// Makes the recorder of a flow that no reporter follows yet.
    pub(super) fn new(shared: &Arc<ProxyContext>, flow: &Flow) -> Self {
        Self {
            shared: shared.clone(),
            rule: series_of(flow.rule()),
            asker: Asker::of(flow),
            at_hand: Vec::new(),
            oldest: 0,
            followed: None,
            has_details: false,
        }
    }

    /// Notes whether anybody watches or captures the flow. To be called before bytes are read; while nobody does, it is two
    /// relaxed loads.
    pub(super) fn look_for_watchers(&mut self, flow: &Arc<Flow>) {
        let services = &self.shared.services;
        let watched = services.tails.watched();
        let is_captured = services.captures.is_captured(flow);
        if self.followed.is_none() && (watched != Watched::No || is_captured) {
            self.followed = Some(Box::new(Followed::by_watchers(flow, services)));
        }
        if let Some(followed) = &mut self.followed {
            followed.note_watched(watched, is_captured);
            if followed.is_idle() {
                self.followed = None;
            }
        }
    }

    /// Notes whether bytes are read in detail. Returns whether the decoder has details that nobody wants any more.
    pub(super) fn reads_details(&mut self, reads: bool) -> bool {
        std::mem::replace(&mut self.has_details, reads) && !reads
    }

    /// Counts from here on under the flow's present rule, and reports to that rule's reporters.
    pub(super) fn switch_rule(&mut self, flow: &Arc<Flow>) {
        self.attach_reporters(flow);
        let rule = series_of(flow.rule());
        if self.rule != rule {
            self.rule = rule;
            self.at_hand.clear();
            self.oldest = 0;
        }
    }

    /// Tells the reporters of requests, by their streams, that were refused.
    /// `user`: who has logged in, as far as that is known.
    pub(super) fn note_refusals(
        &mut self,
        flow: &Flow,
        user: Option<&str>,
        refusals: Vec<(StreamId, Refusal)>,
    ) {
        for (_, refusal) in &refusals {
            denied::request(flow, user, &self.shared.metrics, *refusal);
        }
        if let Some(followed) = &mut self.followed {
            followed.note_refusals(refusals);
        }
    }

    pub(super) fn attach_reporters(&mut self, flow: &Arc<Flow>) {
        let rule = flow.rule();
        let pipelines = self.shared.pipelines.borrow();
        let (reporters, about) = (pipelines.reporters_of(&rule), pipelines.about(&rule));
        drop(pipelines);
        flow.comes_to(about);
        let services = &self.shared.services;
        self.followed = reporters.map(|by| Box::new(Followed::by(&by, flow, services)));
    }
}

/// A sink for a flow whose reporters want requests in detail.
pub(super) struct InDetail<'r> {
    pub(super) recorder: &'r mut Recorder,
    pub(super) followed: Box<Followed>,
}

impl Sink for InDetail<'_> {
    const DETAILS: bool = true;
    const FRAMES: bool = true;

    fn completed(&mut self, completed: &Completed<'_>) {
        self.recorder.completed(completed);
    }

    fn detailed(&mut self, completed: &Completed<'_>, details: &Details) {
        self.recorder.completed(completed);
        self.followed.completed(completed, details);
    }

    fn unanswered(&mut self, request: &Completed<'_>, details: &Details) {
        self.followed.unanswered(request, details);
    }

    fn unpaired(&mut self, stream: StreamId) {
        self.followed.unpaired(stream);
    }

    fn anomaly(&mut self, anomaly: Anomaly) {
        self.recorder.anomaly(anomaly);
    }

    fn unknown_prepared(&mut self, id: &[u8]) {
        self.followed.unknown_prepared(id);
    }

    fn frame(&mut self, frame: &Frame<'_>) {
        self.followed.frame(frame);
    }

    fn wants_bodies(&self) -> bool {
        self.followed.wants_bodies()
    }
}

/// A sink for a flow of which nobody is told details: its reporters only want frames.
pub(super) struct InFrames<'r>(pub(super) InDetail<'r>);

impl Sink for InFrames<'_> {
    const FRAMES: bool = true;

    fn completed(&mut self, completed: &Completed<'_>) {
        self.0.recorder.completed(completed);
        self.0.followed.completed_without_details(completed);
    }

    fn anomaly(&mut self, anomaly: Anomaly) {
        self.0.anomaly(anomaly);
    }

    fn unknown_prepared(&mut self, id: &[u8]) {
        self.0.unknown_prepared(id);
    }

    fn frame(&mut self, frame: &Frame<'_>) {
        self.0.frame(frame);
    }

    fn wants_bodies(&self) -> bool {
        self.0.wants_bodies()
    }
}

/// A sink that counts nothing.
pub(super) struct Nobody;

impl Sink for Nobody {
    fn completed(&mut self, _: &Completed<'_>) {}
    fn anomaly(&mut self, _: Anomaly) {}
}

impl Sink for Recorder {
    fn completed(&mut self, completed: &Completed<'_>) {
        let statement = completed.statement;
        let found = self.at_hand.iter().find(|(s, _)| Arc::ptr_eq(s, statement));
        if let Some((_, series)) = found.filter(|(_, series)| !series.is_gone()) {
            return self.shared.services.statements.record(series, completed);
        }
        let statements = &self.shared.services.statements;
        let series = statements.series(&self.rule, statement, self.asker);
        self.shared.services.statements.record(&series, completed);
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
            .flows
            .anomalies
            .with_label_values(&[anomaly.as_str()])
            .inc();
    }
}
