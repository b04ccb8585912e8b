//! What becomes of bytes that were read: they pass, or others do.

use std::time::Duration;

/// Which way bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    ToDatabase,
    ToClient,
}

/// What becomes of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    Forward,
    /// Forward this many bytes, then close the flow for this reason.
    Close {
        keep: usize,
        reason: &'static str,
    },
    /// Forward these instead; then perhaps close the flow.
    Instead {
        bytes: Vec<u8>,
        close: Option<&'static str>,
    },
}

impl Chunk {
    pub(super) fn close(&self) -> Option<&'static str> {
        match self {
            Self::Forward => None,
            Self::Close { reason, .. } => Some(reason),
            Self::Instead { close, .. } => *close,
        }
    }

    /// What of these bytes it lets pass.
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

    /// The same of these bytes, behind others.
    pub(super) fn behind(&self, mut before: Vec<u8>, bytes: &[u8]) -> Self {
        before.extend_from_slice(self.kept(bytes));
        self.instead(before)
    }
}

/// What a direction does next.
#[derive(Debug)]
pub(super) enum Turn {
    Read,
    /// This passes first.
    Pass(Chunk),
    /// Nothing is read for so long.
    Rest(Duration),
    /// Nothing is read until the other direction has moved.
    Wait,
}
