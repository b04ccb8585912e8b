//! `stats`: rows, bytes, errors and consistency levels by table and kind, and the most frequent
//! statements.

mod containers;
mod counted;
mod row;
mod top;

use std::sync::Arc;

pub use containers::MAX_CONTAINER_SERIES;
pub use counted::Counted;
use cql::{Completed, Details, Fingerprint, Statement};
use flow::Path;
use policy::RuleName;
pub use row::{Row, RowMetrics, RowView};
use serde::Deserialize;
use telemetry::series_of;
use top::{Client, Entry, Top};
pub use top::{MAX_ENTRIES, TopView, Tops};

use super::{Following, Reporter, Services, Whose, asks_for_data};
use crate::statements::{Asker, Series};

/// The number of a flow's recent statements that are kept at hand. Applications ask few distinct
/// things of one connection; when they ask more, the others are looked up again.
const AT_HAND: usize = 32;

/// Counts rows, bytes, errors and consistency levels by table and kind of statement, and lists the most frequent
/// statements (`underpass statements --top`).
#[derive(Clone, Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatsSettings {}

#[derive(Debug)]
struct Stats;

impl StatsSettings {
    pub(super) fn build(self) -> Result<Box<dyn Reporter>, String> {
        Ok(Box::new(Stats))
    }
}

impl Reporter for Stats {
    fn name(&self) -> &'static str {
        "stats"
    }

    fn follow(&self, whose: &Arc<Whose>, services: &Arc<Services>) -> Box<dyn Following> {
        let rule = series_of(whose.rule.clone());
        Box::new(FlowStats {
            top: services.stats.tops.of(rule.as_str()),
            rule,
            asker: Asker::of(&whose.flow),
            client: Client::of(&whose.flow),
            path: whose.flow.path(),
            whose: whose.clone(),
            container: None,
            services: services.clone(),
            at_hand: Vec::new(),
            oldest: 0,
        })
    }
}

/// The part of `stats` in one flow.
struct FlowStats {
    services: Arc<Services>,
    rule: RuleName,
    asker: Asker,
    client: Client,
    path: Path,
    top: Arc<Top>,
    whose: Arc<Whose>,
    /// The series of the client's container. None: no runtime has told of it.
    container: Option<Arc<containers::Series>>,
    at_hand: Vec<Known>,
    /// The index of the entry that is replaced next.
    oldest: usize,
}

/// The counters of a statement.
struct Known {
    statement: Arc<Statement>,
    fingerprint: Option<Arc<Fingerprint>>,
    series: Arc<Series>,
    /// The statement's entry among the most frequent. None: the statement asks for no data.
    entry: Option<Arc<Entry>>,
}

impl Known {
    fn is(&self, statement: &Arc<Statement>, fingerprint: Option<&Arc<Fingerprint>>) -> bool {
        if !Arc::ptr_eq(&self.statement, statement) {
            return false;
        }
        match (&self.fingerprint, fingerprint) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || (a.hash() == b.hash() && a == b),
            (None, None) => true,
            _ => false,
        }
    }

    fn record(&self, rows: &RowMetrics, completed: &Completed<'_>, details: &Details) {
        self.series.row(rows).record(completed, details);
        if let Some(entry) = &self.entry {
            entry.record(completed, details);
        }
    }
}

impl FlowStats {
    /// Counts a response under the client's container.
    fn record_container(&mut self, completed: &Completed<'_>) {
        let all = &self.services.stats.containers;
        if self.container.as_ref().is_none_or(|one| one.is_gone()) {
            let container = self.whose.container();
            self.container = container.map(|container| all.of(&self.rule, container));
        }
        if let Some(series) = &self.container {
            all.record(series, completed);
        }
    }

    /// Looks a statement's counters up.
    fn find(
        &mut self,
        statement: &Arc<Statement>,
        fingerprint: Option<&Arc<Fingerprint>>,
    ) -> Known {
        let entry = || {
            self.top
                .entry(&self.client, self.path, statement, fingerprint)
        };
        Known {
            statement: statement.clone(),
            fingerprint: fingerprint.cloned(),
            series: self
                .services
                .statements
                .series(&self.rule, statement, self.asker),
            entry: asks_for_data(statement.kind).then(entry),
        }
    }
}

impl Following for FlowStats {
    fn completed(&mut self, completed: &Completed<'_>, details: &Details) {
        self.record_container(completed);
        let (statement, fingerprint) = (completed.statement, details.asked.fingerprint.as_ref());
        let mut known = self.at_hand.iter();
        let at = known.position(|known| known.is(statement, fingerprint));
        let found = at.and_then(|at| self.at_hand.get(at));
        let is_gone = |known: &&Known| {
            let entry = known.entry.as_ref();
            known.series.is_gone() || entry.is_some_and(|entry| entry.is_gone())
        };
        if let Some(known) = found.filter(|known| !is_gone(known)) {
            return known.record(&self.services.stats.rows, completed, details);
        }
        let known = self.find(statement, fingerprint);
        known.record(&self.services.stats.rows, completed, details);
        let at = at.unwrap_or_else(|| {
            let oldest = self.oldest;
            self.oldest = (oldest + 1) % AT_HAND;
            oldest
        });
        match self.at_hand.get_mut(at) {
            Some(place) => *place = known,
            None => self.at_hand.push(known),
        }
    }
}
