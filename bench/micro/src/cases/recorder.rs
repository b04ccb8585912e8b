//! The agent's use of what the decoder reports: the sink of `proxy/recorder.rs`, which is private
//! to the agent, around the agent's own [`Statements`].

use std::sync::Arc;

use cql::{Anomaly, Completed, Details, Sink, Statement};
use dataplane::{ClientAddr, OrigDst, Process};
use flow::Flow;
use policy::RuleName;
use prometheus::Registry;
use steps::{
    Followed, Reporters, Services,
    pipelines::PipelineMetrics,
    reporters::ReporterSettings,
    statements::{Asker, Series},
};
use telemetry::Metrics;

use super::Tally;

/// The number of series at hand, as in `proxy/recorder.rs`.
const SERIES_AT_HAND: usize = 32;

pub(super) struct Recorder {
    services: Arc<Services>,
    rule: RuleName,
    at_hand: Vec<(Arc<Statement>, Arc<Series>)>,
    oldest: usize,
    /// The tally since it was last taken.
    pub(super) tally: Tally,
}

impl Recorder {
    pub(super) fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let own = Metrics::register(&registry, &[])?;
        let pipelines = PipelineMetrics::register(&registry)?;
        Ok(Self {
            services: Arc::new(Services::register(&registry, &own, &pipelines, &[])?),
            rule: RuleName::new("bench"),
            at_hand: Vec::new(),
            oldest: 0,
            tally: Tally::default(),
        })
    }

    /// Returns what `/statements` would show.
    #[cfg(test)]
    pub(super) fn rows(&self) -> serde_json::Value {
        serde_json::to_value(self.services.statements.views()).unwrap()
    }
}

impl Sink for Recorder {
    fn completed(&mut self, completed: &Completed<'_>) {
        self.tally.elements += 1;
        self.tally.bytes += completed.request_bytes + completed.response_bytes;
        let statement = completed.statement;
        let found = self.at_hand.iter().find(|(s, _)| Arc::ptr_eq(s, statement));
        if let Some((_, series)) = found {
            return self.services.statements.record(series, completed);
        }
        let series = self
            .services
            .statements
            .series(&self.rule, statement, Asker::User(0));
        self.services.statements.record(&series, completed);
        let entry = (statement.clone(), series);
        match self.at_hand.get_mut(self.oldest) {
            Some(oldest) => *oldest = entry,
            None => self.at_hand.push(entry),
        }
        self.oldest = (self.oldest + 1) % SERIES_AT_HAND;
    }

    fn anomaly(&mut self, _: Anomaly) {
        self.tally.odd += 1;
    }
}

/// The agent's `InDetail`, with `stats`.
pub(super) struct WithStats {
    recorder: Recorder,
    followed: Followed,
}

impl WithStats {
    pub(super) fn new() -> anyhow::Result<Self> {
        let recorder = Recorder::new()?;
        let stats = ReporterSettings::Stats(Default::default());
        let stats = stats.build().map_err(anyhow::Error::msg)?;
        let reporters = Reporters::from(vec![stats]);
        let flow = Flow::begin(
            1,
            ClientAddr::new(([127, 0, 0, 1], 4000).into()),
            Process::elsewhere(),
            OrigDst::new(([127, 0, 0, 1], 9042).into()),
            recorder.rule.clone(),
        );
        let followed = Followed::by(&reporters, &Arc::new(flow), &recorder.services);
        Ok(Self { recorder, followed })
    }
}

impl Sink for WithStats {
    const DETAILS: bool = true;

    fn completed(&mut self, completed: &Completed<'_>) {
        self.recorder.completed(completed);
    }

    fn detailed(&mut self, completed: &Completed<'_>, details: &Details) {
        self.recorder.completed(completed);
        self.followed.completed(completed, details);
    }

    fn anomaly(&mut self, anomaly: Anomaly) {
        self.recorder.anomaly(anomaly);
    }
}

impl AsMut<Recorder> for Recorder {
    fn as_mut(&mut self) -> &mut Recorder {
        self
    }
}

impl AsMut<Recorder> for WithStats {
    fn as_mut(&mut self) -> &mut Recorder {
        &mut self.recorder
    }
}
