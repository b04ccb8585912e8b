//! [`Log`]: who is told what transforms did, and in which words.

use cql::{StreamId, labelled};

/// The receiver of reports of what transforms did.
pub trait Log {
    /// A transform has changed a request, or a response.
    fn changed(&mut self, transform: &'static str);
    /// A transform has refused a request, which will be answered on its stream.
    fn refused(&mut self, stream: StreamId, transform: &'static str, reason: &'static str);
    /// A transform has the client get an error in place of a response: the database has done what was
    /// asked.
    fn withheld(&mut self, transform: &'static str, reason: &'static str) {
        let _ = (transform, reason);
    }
    /// A transform has answered a request in place of the database.
    fn answered(&mut self, transform: &'static str);
    /// A transform would have refused a request, and only says so.
    fn would_refuse(&mut self, transform: &'static str, reason: &'static str);
    /// A transform would have refused a request, and has the client told so with the answer; `is_told`: if it can be told.
    fn warned(&mut self, transform: &'static str, reason: &'static str, is_told: bool) {
        let _ = (transform, reason, is_told);
    }
    /// A transform has slowed a flow down by so many ns.
    fn slowed(&mut self, transform: &'static str, ns: u64);
    /// A request could not be shown to the pipeline; and went on, or was refused.
    fn unseen(&mut self, stream: StreamId, why: Unseen, refused: bool);
    /// A request or a response that a transform suspended, or wanted to, came to this end.
    fn waited(&mut self, transform: &'static str, what: Waited) {
        let _ = (transform, what);
    }
    /// A question for the text of a prepared statement had this outcome.
    fn looked_up(&mut self, what: LookedUp) {
        let _ = what;
    }
    /// A response could not be shown, and its client got an error instead.
    fn unshown(&mut self, why: Unseen) {
        let _ = why;
    }
}

/// Why a request could not be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// More than [`MAX_SEEN_BYTES`](super::MAX_SEEN_BYTES).
    TooLarge,
    /// All flows together hold back as much as they may.
    NoRoom,
    /// The body is not compressed as was negotiated, or declares to be too large.
    Compression,
    /// The body is not what its header says.
    Malformed,
    /// Several requests were out on its stream at once: which response is whose cannot be told.
    Stream,
    /// Not all of it was copied, of a flow that is read from copies.
    NotCopied,
    /// The connection has begun with an extension of the protocol that is not known: its frames may look in any way.
    Extension,
}

labelled!(Unseen {
    TooLarge => "too_large",
    NoRoom => "no_room",
    Compression => "compression",
    Malformed => "malformed",
    Stream => "stream",
    NotCopied => "not_copied",
    Extension => "extension",
});

/// The end of a request or a response that was to be suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Waited {
    /// The frame went on.
    Passed,
    /// The frame went on with another body.
    Changed,
    /// The request went on in a batch with others.
    Merged,
    /// The client got a RESULT.
    Answered,
    /// The client got the database's response, by another connection.
    Relayed,
    /// The carrier of the request was lost, and its flow has ended for that.
    Lost,
    /// The client got an error.
    Refused,
    /// Nobody would have said any more: it became what its step says ([`Transform::given_up`]).
    ///
    /// [`Transform::given_up`]: super::Transform::given_up
    GivenUp,
    /// The frame's flow had ended before.
    Abandoned,
    /// The frame could not be suspended: as many as may be are.
    NoRoom,
}

labelled!(Waited {
    Passed => "passed",
    Changed => "changed",
    Merged => "merged",
    Answered => "answered",
    Relayed => "relayed",
    Lost => "lost",
    Refused => "refused",
    GivenUp => "given_up",
    Abandoned => "abandoned",
    NoRoom => "no_room",
});

/// The outcome of a question, or of a wish to ask one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookedUp {
    /// The text is known now.
    Found,
    /// The database does not have it, either.
    NotFound,
    /// The database has answered by an error, or by something that cannot be read.
    Failed,
    /// The database has answered by a text that does not make this id.
    Mismatch,
    /// No more questions may be out. The id is asked for when it comes again.
    Busy,
}

labelled!(LookedUp {
    Found => "found",
    NotFound => "not_found",
    Failed => "failed",
    Mismatch => "mismatch",
    Busy => "busy",
});
