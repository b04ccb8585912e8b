//! The requests of one flow that wait for their responses, by stream.

use crate::flow::event::Anomaly;
use crate::hash::BuildSpread;
use crate::text::statement::{Statement, StatementKind};
use crate::wire::header::StreamId;
use std::collections::HashMap;
use std::sync::Arc;

/// How many requests of a flow are tracked: as many as there are streams from 0 up
/// (`native_protocol_v5.spec` §2.4.1.3).
pub const MAX_IN_FLIGHT: usize = 1 << 15;

/// A table that once held a burst keeps room for this many requests, 80 KiB. The Java driver has at
/// most 1,024 of them on a connection unless told otherwise.
const KEPT_CAPACITY: usize = 2048;

/// A request that waits.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) statement: Arc<Statement>,
    /// The clock when the request's header had passed.
    pub(crate) started_ns: u64,
    /// Header and body.
    pub(crate) request_bytes: u32,
    /// The kind of the statement that a PREPARE prepares, if the PREPARE could be read.
    pub(crate) prepares: Option<StatementKind>,
}

/// Pending requests, by stream.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    by_stream: HashMap<i16, InFlight, BuildSpread>,
}

impl Pending {
    pub(crate) fn len(&self) -> usize {
        self.by_stream.len()
    }

    /// From now on `request` waits on `stream`, unless too many do.
    pub(crate) fn insert(&mut self, stream: StreamId, request: InFlight) -> Result<(), Anomaly> {
        let full = self.len() >= MAX_IN_FLIGHT;
        if full && !self.by_stream.contains_key(&stream.0) {
            return Err(Anomaly::TooManyInFlight);
        }
        match self.by_stream.insert(stream.0, request) {
            Some(_) => Err(Anomaly::DuplicateStream),
            None => Ok(()),
        }
    }

    /// The pending request on `stream`.
    pub(crate) fn get_mut(&mut self, stream: StreamId) -> Option<&mut InFlight> {
        self.by_stream.get_mut(&stream.0)
    }

    /// Nothing waits any longer: what did, the oldest first.
    pub(crate) fn take(&mut self) -> Vec<(StreamId, InFlight)> {
        let waited = std::mem::take(&mut self.by_stream).into_iter();
        let mut waited: Vec<_> = waited.map(|(id, r)| (StreamId(id), r)).collect();
        waited.sort_by_key(|(id, request)| (request.started_ns, id.0));
        waited
    }

    /// Takes the pending request on `stream`.
    #[inline]
    pub(crate) fn remove(&mut self, stream: StreamId) -> Option<InFlight> {
        let request = self.by_stream.remove(&stream.0);
        if self.by_stream.is_empty() && self.by_stream.capacity() > 2 * KEPT_CAPACITY {
            self.by_stream.shrink_to(KEPT_CAPACITY);
        }
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::statement::{StatementRef, Statements};

    fn request(started_ns: u64) -> InFlight {
        InFlight {
            statement: Statements::default().get(StatementRef::bare(StatementKind::Query)),
            started_ns,
            request_bytes: 9,
            prepares: None,
        }
    }

    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<(i16, InFlight)>() <= 32);
    }

    #[test]
    fn the_newer_of_two_is_kept() {
        let mut pending = Pending::default();
        assert_eq!(pending.insert(StreamId(1), request(1)), Ok(()));
        assert_eq!(
            pending.insert(StreamId(1), request(2)),
            Err(Anomaly::DuplicateStream)
        );
        assert_eq!(pending.remove(StreamId(1)).unwrap().started_ns, 2);
        assert!(pending.remove(StreamId(1)).is_none());
    }

    #[test]
    fn bounded_and_shrinks_after_a_burst() {
        let mut pending = Pending::default();
        for id in i16::MIN..0 {
            assert_eq!(pending.insert(StreamId(id), request(0)), Ok(()));
        }
        assert_eq!(
            pending.insert(StreamId(0), request(0)),
            Err(Anomaly::TooManyInFlight)
        );
        assert_eq!(
            pending.insert(StreamId(-1), request(0)),
            Err(Anomaly::DuplicateStream)
        );
        assert_eq!(pending.len(), MAX_IN_FLIGHT);
        for id in i16::MIN..0 {
            assert!(pending.remove(StreamId(id)).is_some());
        }
        assert!(pending.by_stream.capacity() <= 2 * KEPT_CAPACITY);
    }
}
