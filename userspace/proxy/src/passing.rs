//! The verdict on bytes that were read: which of them pass, or other bytes in their place.

use std::{num::NonZeroUsize, time::Duration};

use flow::CloseReason;

/// The direction in which bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    ToDatabase,
    ToClient,
}

/// The part of a chunk that passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Passing {
    All,
    /// The first bytes of the chunk, as many as this.
    First(usize),
    /// Other bytes, in place of the chunk.
    These(Vec<u8>),
}

impl Passing {
    /// Returns the bytes that pass of this chunk.
    pub(super) fn of<'b>(&'b self, chunk: &'b [u8]) -> &'b [u8] {
        match self {
            Self::All => chunk,
            Self::First(bytes) => chunk.get(..*bytes).unwrap_or(chunk),
            Self::These(bytes) => bytes,
        }
    }
}

/// The verdict on a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub passing: Passing,
    /// The reason for which the flow is closed once those bytes have passed.
    pub close: Option<CloseReason>,
}

impl Verdict {
    /// The verdict that all bytes pass.
    pub(super) const ALL: Self = Self {
        passing: Passing::All,
        close: None,
    };

    /// Makes the verdict that these bytes pass in place of the chunk.
    pub(super) fn these(bytes: Vec<u8>) -> Self {
        Self::ALL.with(bytes)
    }

    /// Returns this verdict with these bytes in place of those that it let pass.
    pub(super) fn with(self, bytes: Vec<u8>) -> Self {
        let passing = Passing::These(bytes);
        Self { passing, ..self }
    }

    /// Turns a verdict on `chunk` into one that brings the bytes with it, for a chunk that is not
    /// the one that was read.
    pub(super) fn bringing(self, mut chunk: Vec<u8>) -> Self {
        match self.passing {
            Passing::These(_) => self,
            Passing::All => self.with(chunk),
            Passing::First(bytes) => {
                chunk.truncate(bytes);
                self.with(chunk)
            }
        }
    }
}

/// The next thing that a direction does. `P`: the bytes that pass, or the verdict that has them.
#[derive(Debug)]
pub(super) enum Turn<P = Verdict> {
    /// Read so many bytes at most. Never none: a read of none looks like the end of the stream.
    Read(NonZeroUsize),
    /// Write these out before anything is read.
    Pass(P),
    /// Read nothing for this long.
    Rest(Duration),
    /// Read nothing until the other direction has moved.
    Wait,
}
