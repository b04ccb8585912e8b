//! What the agent does with what the decoder tells: the sink of `proxy/decode.rs`, which is
//! private to the agent, around the agent's own [`Statements`].

use std::sync::Arc;

use agent::statements::{Series, Statements};
use cql::{Anomaly, Completed, Sink, Statement};
use dataplane::policy::RuleName;
use prometheus::Registry;

use super::Tally;

/// As in `proxy/decode.rs`.
const SERIES_AT_HAND: usize = 32;

pub(super) struct Recorder {
    statements: Statements,
    rule: RuleName,
    at_hand: Vec<(Arc<Statement>, Arc<Series>)>,
    oldest: usize,
    /// Since it was last taken.
    pub(super) tally: Tally,
}

impl Recorder {
    pub(super) fn new() -> prometheus::Result<Self> {
        Ok(Self {
            statements: Statements::register(&Registry::new())?,
            rule: RuleName::new("bench"),
            at_hand: Vec::new(),
            oldest: 0,
            tally: Tally::default(),
        })
    }

    /// What `/statements` would show.
    #[cfg(test)]
    pub(super) fn rows(&self) -> serde_json::Value {
        serde_json::to_value(self.statements.views()).unwrap()
    }
}

impl Sink for Recorder {
    fn completed(&mut self, completed: &Completed<'_>) {
        self.tally.elements += 1;
        self.tally.bytes += completed.request_bytes + completed.response_bytes;
        let statement = completed.statement;
        let found = self.at_hand.iter().find(|(s, _)| Arc::ptr_eq(s, statement));
        if let Some((_, series)) = found {
            return self.statements.record(series, completed);
        }
        let series = self.statements.series(&self.rule, statement);
        self.statements.record(&series, completed);
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
