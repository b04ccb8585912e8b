//! [`Plan`]: what of a capture is asked, and why the rest is not.

use std::collections::BTreeMap;

use ::capture::{Missed, Op, Outcome, Record, Unread, Value, has_literals};
use cql::{StatementKind, is_system_keyspace};
use serde::Serialize;

/// Requests to ask, in the order in which the application did.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) jobs: Vec<Job>,
    pub(super) facts: Facts,
}

/// A request to ask.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) record: Record,
    /// Whether it is asked word for word, so that rows can be compared.
    pub(super) is_exact: bool,
}

/// Facts of the file.
#[derive(Debug, Default, Serialize)]
pub(super) struct Facts {
    /// Requests in the file.
    pub(super) requests: u64,
    /// Why requests are not asked, and how many.
    pub(super) left_out: BTreeMap<&'static str, u64>,
    /// Requests that the file does not have, as it says itself.
    pub(super) dropped: u64,
    /// Times that a part of a flow was missed.
    pub(super) gaps: u64,
    /// Whether the file has no end, so that nobody knows what is not in it.
    pub(super) cut_off: bool,
    #[serde(skip)]
    has_values: bool,
    #[serde(skip)]
    writes: bool,
}

impl Plan {
    pub(super) fn new(has_values: bool, writes: bool) -> Self {
        Self {
            jobs: Vec::new(),
            facts: Facts {
                has_values,
                writes,
                ..Facts::default()
            },
        }
    }

    pub(super) fn takes(&mut self, record: Record) {
        self.facts.requests += 1;
        match left_out(&record, self.facts.writes) {
            Some(why) => *self.facts.left_out.entry(why).or_default() += 1,
            None => {
                let is_exact = is_exact(&record, self.facts.has_values);
                self.jobs.push(Job { record, is_exact });
            }
        }
    }

    pub(super) fn misses(&mut self, missed: Missed) {
        self.facts.dropped += missed.dropped;
        self.facts.gaps += missed.gaps;
    }

    pub(super) fn ends(&mut self, cut_off: bool) {
        self.facts.cut_off = cut_off;
        self.jobs.sort_by_key(|job| job.record.at_us);
    }
}

/// Why a request is not asked. None: it is.
fn left_out(record: &Record, writes: bool) -> Option<&'static str> {
    let unread = record.statements.iter().find_map(|one| one.unread);
    if let Some(unread) = record.unread.or(unread) {
        return Some(unread.as_str());
    }
    let texts = record.statements.iter().map(|one| one.text.as_deref());
    let Some(texts) = texts
        .collect::<Option<Vec<&str>>>()
        .filter(|texts| !texts.is_empty())
    else {
        return Some(Unread::Malformed.as_str());
    };
    let kinds = texts
        .iter()
        .map(|text| cql::Statement::of(text.as_bytes()).kind);
    let kinds: Vec<StatementKind> = kinds.collect();
    // The file's own word for it may be anything.
    let only_reads = kinds.iter().all(|kind| {
        matches!(
            kind,
            StatementKind::Select | StatementKind::List | StatementKind::Describe
        )
    });
    let may_write = !only_reads || record.batch.is_some() || record.op == Some(Op::Batch);
    let is_masked = record.statements.iter().any(|one| has_lengths(&one.values));
    match record.op {
        None => Some(Unread::NotKept.as_str()),
        Some(Op::Prepare) => Some("a PREPARE: statements are prepared as they are executed"),
        _ if record.outcome == Outcome::Refused => Some("refused by a step of the agent"),
        _ if kinds.contains(&StatementKind::Use) => {
            Some("a USE: keyspaces are chosen as the file says")
        }
        _ if record.keyspace.as_deref().is_some_and(is_system_keyspace) => {
            Some("of a table that each node has for itself")
        }
        _ if record.later_page => {
            Some("for a later page, which only the database of the capture can continue")
        }
        _ if may_write && !writes => Some("it may change something, and --writes is not given"),
        _ if is_masked && !record.names.is_empty() => {
            Some("values with names, which the file does not have")
        }
        Some(Op::Batch) if record.batch.is_none() => Some(Unread::Malformed.as_str()),
        Some(Op::Query | Op::Execute) if texts.len() != 1 => Some(Unread::Malformed.as_str()),
        Some(_) => None,
    }
}

/// Whether nothing of a request stands in place of what the application has sent. `has_literals_left`: the file says that
/// literals are in it as they were.
fn is_exact(record: &Record, has_literals_left: bool) -> bool {
    record.statements.iter().all(|one| {
        let has_literals = || one.text.as_deref().is_none_or(has_literals);
        !has_lengths(&one.values) && (has_literals_left || !has_literals())
    })
}

fn has_lengths(values: &[Value]) -> bool {
    values.iter().any(|value| matches!(value, Value::Length(_)))
}
