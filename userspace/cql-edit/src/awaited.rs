//! [`Awaited`]: who wants to see which responses.

use std::collections::HashMap;

use crate::note::Note;
use cql::StreamId;

/// The responses that somebody wants to see, by stream, with those who do. The one that saw the request last comes last.
///
/// Bounded: a stream has one request at a time, and there are 65,536 with the negative ones, which no driver uses.
pub(crate) type Awaited = HashMap<StreamId, Vec<Awaits>>;

/// An entry of [`Awaited`]: somebody who wants to see a response.
#[derive(Debug)]
pub(crate) struct Awaits {
    pub(crate) who: Awaiter,
    /// The number that a step has asked for the response with.
    pub(crate) number: u64,
    /// The note that a step keeps until then.
    pub(crate) note: Option<Note>,
}

impl Awaits {
    /// The editor itself, or requests that ride with this one.
    pub(crate) fn own(who: Awaiter) -> Self {
        Self {
            who,
            number: 0,
            note: None,
        }
    }
}

/// Somebody who wants to see a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaiter {
    /// The step at this index of the pipeline.
    Step(usize),
    /// Requests that ride with this one in a batch: they are told what it is told.
    Riders,
    /// The editor: the answer to a USE.
    Keyspace,
    /// The editor: an answer that may set the keyspace, though no USE was seen.
    MayUse,
}

impl Awaiter {
    /// The index of a step.
    pub(crate) fn step(self) -> Option<usize> {
        match self {
            Self::Step(index) => Some(index),
            Self::Riders | Self::Keyspace | Self::MayUse => None,
        }
    }
}

/// Whether `awaited` is that of a batch that others ride with.
pub(crate) fn leads(awaited: &[Awaits]) -> bool {
    awaited.iter().any(|awaits| awaits.who == Awaiter::Riders)
}
