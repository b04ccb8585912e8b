//! The verdict on bytes that were read: they pass, or other bytes do.

use std::time::Duration;

use flow::CloseReason;

/// The direction in which bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    ToDatabase,
    ToClient,
}

/// The verdict on a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    Forward,
    /// Forward this many bytes, then close the flow for this reason.
    Close {
        keep: usize,
        reason: CloseReason,
    },
    /// Forward these instead; then perhaps close the flow.
    Instead {
        bytes: Vec<u8>,
        close: Option<CloseReason>,
    },
}

impl Chunk {
    pub(super) fn close(&self) -> Option<CloseReason> {
        match self {
            Self::Forward => None,
            Self::Close { reason, .. } => Some(*reason),
            Self::Instead { close, .. } => *close,
        }
    }

    /// Returns the part of these bytes that this verdict lets pass.
    pub(super) fn kept<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        match self {
            Self::Close { keep, .. } => bytes.get(..*keep).unwrap_or(bytes),
            _ => bytes,
        }
    }

    pub(super) fn instead(&self, bytes: Vec<u8>) -> Self {
        let close = self.close();
        Self::Instead { bytes, close }
    }

    /// Applies this verdict to `bytes` and puts `before` in front of the result.
    pub(super) fn behind(&self, mut before: Vec<u8>, bytes: &[u8]) -> Self {
        before.extend_from_slice(self.kept(bytes));
        self.instead(before)
    }
}

/// The next thing that a direction does.
#[derive(Debug)]
pub(super) enum Turn {
    Read,
    /// Write out this chunk before anything is read.
    Pass(Chunk),
    /// Read nothing for this long.
    Rest(Duration),
    /// Read nothing until the other direction has moved.
    Wait,
}
