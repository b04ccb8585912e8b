//! A log of editors that nobody reads.

use cql::StreamId;
use cql_edit::{Log, Unseen};

/// A log that nobody reads.
pub(crate) struct Ignore;

impl Log for Ignore {
    fn changed(&mut self, _: &'static str) {}
    fn refused(&mut self, _: StreamId, _: &'static str, _: &'static str) {}
    fn answered(&mut self, _: &'static str) {}
    fn would_refuse(&mut self, _: &'static str, _: &'static str) {}
    fn slowed(&mut self, _: &'static str, _: u64) {}
    fn unseen(&mut self, _: StreamId, _: Unseen, _: bool) {}
}
