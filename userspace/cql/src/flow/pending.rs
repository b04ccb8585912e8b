//! The requests of one flow that wait for their responses, by stream.
//!
//! **Invariant**: a response is paired with a request only if no other request was out on its stream for as long as
//! that one was. Which of several requests a response belongs to, nobody can tell, so none of them is paired: the
//! stream is unpaired until as many responses have come as there were requests.

use crate::flow::by_stream::ByStream;
use crate::flow::event::Completed;
use crate::hash::BuildSpread;
use crate::text::statement::{Statement, StatementKind};
use crate::wire::header::StreamId;
use std::collections::HashMap;
use std::sync::Arc;

/// How many requests of a flow are tracked: as many as there are streams from 0 up
/// (`native_protocol_v5.spec` §2.4.1.3).
pub const MAX_IN_FLIGHT: usize = 1 << 15;

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

impl InFlight {
    /// The request as a sink is told of it that gets no response, or none that can be told from others.
    pub(crate) fn without_response(&self, stream: StreamId, now_ns: u64) -> Completed<'_> {
        Completed {
            statement: &self.statement,
            latency_ns: now_ns.saturating_sub(self.started_ns),
            error: None,
            request_bytes: self.request_bytes.into(),
            response_bytes: 0,
            stream,
        }
    }
}

/// Pending requests, by stream.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    by_stream: ByStream<InFlight>,
    /// How many responses are to come on streams of which no request is paired. 65,536 streams at most, four bytes
    /// each; none of an orderly client's.
    unpaired: HashMap<i16, u16, BuildSpread>,
}

/// The request that a response belongs to.
#[derive(Debug)]
pub(crate) enum Answers {
    This(InFlight),
    /// One of several, and nobody can tell which; or one that was not tracked.
    Unpaired,
    /// The response was not asked for.
    Nobody,
}

/// Why a request is not among those that wait.
#[derive(Debug)]
pub(crate) enum NotPending {
    /// Too many are.
    Full,
    /// Another one is out on its stream, so that neither can be paired. The other, unless it was known before that
    /// it cannot be.
    Duplicate(Option<InFlight>),
}

impl Pending {
    pub(crate) fn len(&self) -> usize {
        self.by_stream.len()
    }

    /// Whether requests are out on a stream that has had two at a time.
    pub(crate) fn has_unpaired(&self) -> bool {
        !self.unpaired.is_empty()
    }

    /// From now on `request` waits on `stream`, if its response can be told from others.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        stream: StreamId,
        request: InFlight,
    ) -> Result<(), (NotPending, InFlight)> {
        if !self.unpaired.is_empty() || self.len() >= MAX_IN_FLIGHT {
            return self.insert_unpaired(stream, request);
        }
        let inserted = self.by_stream.insert_new(stream, request);
        inserted.or_else(|request| self.insert_unpaired(stream, request))
    }

    /// Inserts a request while some stream is unpaired, all are taken, or its own is.
    #[cold]
    #[inline(never)]
    fn insert_unpaired(
        &mut self,
        stream: StreamId,
        request: InFlight,
    ) -> Result<(), (NotPending, InFlight)> {
        if let Some(out) = self.unpaired.get_mut(&stream.0) {
            *out = out.saturating_add(1);
            return Err((NotPending::Duplicate(None), request));
        }
        if let Some(other) = self.by_stream.remove(stream) {
            self.unpaired.insert(stream.0, 2);
            return Err((NotPending::Duplicate(Some(other)), request));
        }
        if self.len() >= MAX_IN_FLIGHT {
            self.unpaired.insert(stream.0, 1);
            return Err((NotPending::Full, request));
        }
        self.by_stream.insert(stream, request);
        Ok(())
    }

    /// The pending request on `stream`.
    pub(crate) fn get_mut(&mut self, stream: StreamId) -> Option<&mut InFlight> {
        self.by_stream.get_mut(stream)
    }

    /// Nothing waits any longer: what did, the oldest first.
    pub(crate) fn take(&mut self) -> Vec<(StreamId, InFlight)> {
        let mut waited: Vec<_> = self.by_stream.take().collect();
        waited.sort_by_key(|(id, request)| (request.started_ns, id.0));
        waited
    }

    /// Takes the request that a response on `stream` belongs to.
    #[inline]
    pub(crate) fn answer(&mut self, stream: StreamId) -> Answers {
        match self.by_stream.remove(stream) {
            Some(request) => Answers::This(request),
            None if self.unpaired.is_empty() => Answers::Nobody,
            None => self.answer_unpaired(stream),
        }
    }

    #[cold]
    #[inline(never)]
    fn answer_unpaired(&mut self, stream: StreamId) -> Answers {
        let Some(out) = self.unpaired.get_mut(&stream.0) else {
            return Answers::Nobody;
        };
        // So many that they were not counted any more are never known to have come.
        if *out != u16::MAX {
            *out -= 1;
        }
        if *out == 0 {
            self.unpaired.remove(&stream.0);
        }
        Answers::Unpaired
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::by_stream::KEPT_CAPACITY;
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

    fn is_this(answers: &Answers, started_ns: u64) -> bool {
        matches!(answers, Answers::This(request) if request.started_ns == started_ns)
    }

    #[test]
    fn neither_of_two_is_paired_until_both_responses_have_come() {
        let mut pending = Pending::default();
        assert!(pending.insert(StreamId(1), request(1)).is_ok());
        let Err((NotPending::Duplicate(Some(first)), second)) =
            pending.insert(StreamId(1), request(2))
        else {
            panic!("two are out");
        };
        assert_eq!((first.started_ns, second.started_ns), (1, 2));
        assert!(matches!(pending.answer(StreamId(1)), Answers::Unpaired));
        // One is still to come, so a third is not paired, either.
        assert!(matches!(
            pending.insert(StreamId(1), request(3)),
            Err((NotPending::Duplicate(None), _))
        ));
        assert!(pending.insert(StreamId(2), request(9)).is_ok());
        assert!(matches!(pending.answer(StreamId(1)), Answers::Unpaired));
        assert!(is_this(&pending.answer(StreamId(2)), 9));
        assert!(matches!(pending.answer(StreamId(1)), Answers::Unpaired));
        assert!(matches!(pending.answer(StreamId(1)), Answers::Nobody));
        assert!(pending.insert(StreamId(1), request(4)).is_ok());
        assert!(is_this(&pending.answer(StreamId(1)), 4));
    }

    #[test]
    fn bounded_and_shrinks_after_a_burst() {
        let mut pending = Pending::default();
        for id in i16::MIN..0 {
            assert!(pending.insert(StreamId(id), request(0)).is_ok());
        }
        assert!(matches!(
            pending.insert(StreamId(0), request(0)),
            Err((NotPending::Full, _))
        ));
        assert!(matches!(
            pending.insert(StreamId(-1), request(0)),
            Err((NotPending::Duplicate(Some(_)), _))
        ));
        assert_eq!(pending.len(), MAX_IN_FLIGHT - 1);
        for id in i16::MIN..-1 {
            assert!(is_this(&pending.answer(StreamId(id)), 0));
        }
        assert!(pending.by_stream.capacity() <= 2 * KEPT_CAPACITY);
        // One that was not tracked has its response to come, too.
        assert!(matches!(
            pending.insert(StreamId(0), request(1)),
            Err((NotPending::Duplicate(None), _))
        ));
        for stream in [0, 0, -1, -1] {
            assert!(matches!(
                pending.answer(StreamId(stream)),
                Answers::Unpaired
            ));
        }
        for stream in [0, -1] {
            assert!(matches!(pending.answer(StreamId(stream)), Answers::Nobody));
        }
    }
}
