//! [`Edited`]: what goes on in place of a chunk; [`Unreadable`]: why nothing more can be changed.

use cql::labelled;

/// The bytes that go on in place of a chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edited {
    /// Bytes in place of the chunk; `None`: the chunk as it is.
    pub instead: Option<Vec<u8>>,
    /// The flow cannot be read from here on, so that nothing can be changed any more. With
    /// [`Unreadable::Framing`], and with a strict pipeline, the flow has to end after this, and nothing
    /// of the rest goes on; otherwise everything does.
    pub unreadable: Option<Unreadable>,
}

/// Why a flow cannot be edited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unreadable {
    /// The flow is encrypted.
    Tls,
    /// The flow does not begin as CQL does.
    NotCql,
    /// A protocol version other than v3, v4 and v5.
    Version,
    /// Frames cannot be told apart any more.
    Framing,
    /// With a strict pipeline: bytes came behind a STARTUP that is not answered. Nobody can know which
    /// of them the database reads as segments.
    Early,
}

labelled!(Unreadable {
    Tls => "tls",
    NotCql => "not_cql",
    Version => "version",
    Framing => "framing",
    Early => "early",
});

impl Unreadable {
    /// Whether a flow has to end for it.
    pub(crate) fn denies(self, strict: bool) -> bool {
        strict || self == Self::Framing
    }

    pub(crate) fn edited(self, strict: bool) -> Edited {
        Edited {
            instead: self.denies(strict).then(Vec::new),
            unreadable: Some(self),
        }
    }
}
