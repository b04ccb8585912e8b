//! A flow's part of what goes to a collector: its requests, put together from parts that are there already.

use std::sync::Arc;

use cql::{Completed, Details};

use super::{
    collectors::Collector,
    parts,
    record::{Identity, Kind, Record},
};
use crate::{Refusal, Whose, at_hand::AtHand};

/// The requests of one flow, as spans or as log records.
pub(crate) struct Telling {
    collector: Arc<Collector>,
    kind: Kind,
    whose: Arc<Whose>,
    /// The flow's part of each, with the number of facts that were known when it was made.
    who: Option<(usize, Vec<u8>)>,
    at_hand: AtHand<Vec<u8>>,
    /// The buffer of a record, kept for reuse.
    record: Vec<u8>,
}

/// A request, and what became of it.
pub(crate) struct Told<'t> {
    pub(crate) completed: &'t Completed<'t>,
    pub(crate) details: &'t Details,
    pub(crate) is_answered: bool,
    pub(crate) by: Option<Refusal>,
}

impl<'t> Told<'t> {
    /// Makes a request that was answered by the database.
    pub(crate) fn answered(completed: &'t Completed<'t>, details: &'t Details) -> Self {
        Self {
            completed,
            details,
            is_answered: true,
            by: None,
        }
    }

    /// Makes a request that a step has answered.
    pub(crate) fn refused(by: Refusal, completed: &'t Completed<'t>, details: &'t Details) -> Self {
        Self {
            by: Some(by),
            ..Self::answered(completed, details)
        }
    }

    /// Makes a request that will have no answer.
    pub(crate) fn unanswered(request: &'t Completed<'t>, details: &'t Details) -> Self {
        Self {
            is_answered: false,
            ..Self::answered(request, details)
        }
    }
}

impl Telling {
    pub(crate) fn new(collector: &Arc<Collector>, kind: Kind, whose: &Arc<Whose>) -> Self {
        Self {
            collector: collector.clone(),
            kind,
            whose: whose.clone(),
            who: None,
            at_hand: AtHand::new(),
            record: Vec::new(),
        }
    }

    pub(crate) fn collector(&self) -> &Collector {
        &self.collector
    }

    /// Tells of a request as a span, or as a log record.
    pub(crate) fn tell(&mut self, told: &Told<'_>, identity: Identity) {
        self.tell_of(told, identity, None, "");
    }

    /// Tells of a request as a log record, of the client's span if there is one. `tried`: the user of a log-in that failed.
    /// `statement`: its text, where it may be shown.
    pub(crate) fn log(&mut self, told: &Told<'_>, tried: Option<&str>, statement: &str) {
        let identity = match told.details.context {
            Some(Ok(context)) => Identity {
                trace_id: context.trace_id,
                span_id: context.parent_id,
                parent_id: None,
                flags: context.flags.into(),
            },
            _ => Identity::default(),
        };
        self.tell_of(told, identity, tried, statement);
    }

    fn tell_of(
        &mut self,
        told: &Told<'_>,
        identity: Identity,
        tried: Option<&str>,
        statement: &str,
    ) {
        let knows = self.whose.knows();
        let made = self.who.take().filter(|(knew, _)| *knew == knows);
        let own = made.unwrap_or_else(|| (knows, parts::who(self.kind, &self.whose, None)));
        let other = tried.map(|name| parts::who(self.kind, &self.whose, Some(name)));
        let fingerprint = told.details.asked.fingerprint.as_ref();
        let what = self
            .at_hand
            .of(told.completed.statement, fingerprint, |statement, text| {
                parts::what(self.kind, statement, text)
            });
        self.record.clear();
        Record {
            kind: self.kind,
            identity,
            completed: told.completed,
            details: told.details,
            is_answered: told.is_answered,
            by: told.by,
            statement,
            who: other.as_ref().unwrap_or(&own.1),
            what: what.map_or(&[], Vec::as_slice),
        }
        .put(&mut self.record);
        self.collector.push(&self.record);
        self.who = Some(own);
    }
}
