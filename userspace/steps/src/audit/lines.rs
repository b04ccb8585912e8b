//! A flow's lines in the journal: a record is handed over, or its flow is held until there is room.

use std::{collections::VecDeque, sync::Arc};

use export::Full;

use super::{
    Told, Whose,
    record::{Outcome, Record},
    text,
};
use crate::{at_hand::AtHand, journal::Journal};

/// The lines of one flow.
pub(super) struct Lines {
    journal: Arc<Journal>,
    /// The number of facts of the flow that were known when `who` was written.
    knows: usize,
    who: String,
    /// The statements, in JSON.
    at_hand: AtHand<String>,
    /// The buffer of a record, kept for reuse.
    record: Vec<u8>,
    /// Records for which there is no room. The flow is held meanwhile, so there are at most as many
    /// as requests were under way.
    waiting: VecDeque<Box<[u8]>>,
}

impl Lines {
    pub(super) fn new(whose: &Whose, journal: Arc<Journal>) -> Self {
        Self {
            journal,
            knows: whose.knows(),
            who: text::who(whose, None),
            at_hand: AtHand::new(),
            record: Vec::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Writes a request. `tried`: the user of a log-in that failed. `shown`: the statement's text, where it may be shown.
    pub(super) fn report(
        &mut self,
        whose: &Whose,
        told: &Told<'_>,
        tried: Option<&str>,
        shown: Option<&str>,
    ) {
        if self.knows != whose.knows() {
            self.knows = whose.knows();
            self.who = text::who(whose, None);
        }
        let (completed, details) = (told.completed, told.details);
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        let parameters = details.asked.parameters.as_ref();
        let tried = tried.map(|name| text::who(whose, Some(name)));
        let shown = shown.map(text::quoted);
        let fingerprint = details.asked.fingerprint.as_ref();
        let what = self
            .at_hand
            .of(completed.statement, fingerprint, text::what);
        Record {
            outcome: Outcome::of(told),
            error: completed.error,
            latency_ns: completed.latency_ns,
            consistency: parameters.map(|p| p.consistency),
            values: parameters.map(|p| p.values),
            rows: details.answered.rows,
            who: tried.as_ref().unwrap_or(&self.who),
            what: what.map_or("", String::as_str),
            statement: shown.as_deref().unwrap_or_default(),
            by: told.by,
        }
        .put(&mut record);
        self.hand_over(&record);
        self.record = record;
    }

    fn hand_over(&mut self, record: &[u8]) {
        let pushed = match self.waiting.is_empty() {
            true => self.journal.push(record),
            false => Err(Full::Now),
        };
        match pushed {
            Ok(()) => {}
            Err(Full::Now) if self.journal.holds() => {
                if self.waiting.is_empty() {
                    self.journal.count_held();
                }
                self.waiting.push_back(record.into());
            }
            Err(why) => self.journal.drops(why),
        }
    }

    /// Whether records wait for room. Writes as many as there is room for.
    pub(super) fn holds(&mut self) -> bool {
        while let Some(record) = self.waiting.front() {
            if self.journal.push(record).is_err() {
                return true;
            }
            self.waiting.pop_front();
        }
        false
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if self.holds() {
            self.journal.take_over_left(self.waiting.drain(..));
        }
    }
}
