//! The outcome of a request, for those who watch and those who capture.

use super::Refusal;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The database has answered.
    Answered,
    /// A step has answered in its place.
    Refused(Refusal),
    /// No answer has come, or none that can be told from others.
    Unanswered,
}
