//! The reasons why a runtime has not answered.

use std::{
    error::Error,
    io::{self, ErrorKind},
};

use thiserror::Error as ThisError;

/// The reason why a runtime has not answered. Its earlier answers still hold.
#[derive(Debug, ThisError)]
pub enum Failure {
    /// Nobody listens at the socket.
    #[error("nobody listens there")]
    Absent,
    /// The socket may not be opened.
    #[error("it may not be opened: permission denied")]
    Forbidden,
    /// The answer took too long.
    #[error("no answer in time")]
    Late,
    /// The answer is longer than any that is meant.
    #[error("its answer is longer than {0} bytes")]
    TooLong(usize),
    /// The runtime ended before its answer did.
    #[error("it has gone while it answered")]
    Cut,
    /// The answer does not fit the question.
    #[error("its answer makes no sense: {0}")]
    Garbage(String),
    /// The runtime says that it cannot.
    #[error("it refuses: {0}")]
    Refused(String),
    /// The agent does not know processes by the numbers that runtimes do.
    #[error("the agent is in a pid namespace of its own")]
    Blind,
}

impl Failure {
    /// The labels in metrics.
    pub const LABELS: [&str; 8] = [
        "absent",
        "forbidden",
        "late",
        "too_long",
        "cut",
        "garbage",
        "refused",
        "blind",
    ];

    /// Returns the label, one of [`Self::LABELS`].
    pub fn label(&self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Forbidden => "forbidden",
            Self::Late => "late",
            Self::TooLong(_) => "too_long",
            Self::Cut => "cut",
            Self::Garbage(_) => "garbage",
            Self::Refused(_) => "refused",
            Self::Blind => "blind",
        }
    }

    pub(super) fn garbage(error: impl ToString) -> Self {
        Self::Garbage(error.to_string())
    }
}

impl From<hyper::Error> for Failure {
    fn from(error: hyper::Error) -> Self {
        let is_cut = error.is_incomplete_message()
            || error.is_canceled()
            || error.is_closed()
            || error.source().is_some_and(is_an_end);
        match is_cut {
            true => Self::Cut,
            false => Self::garbage(error),
        }
    }
}

/// Whether the error means that the connection has ended.
fn is_an_end(error: &(dyn Error + 'static)) -> bool {
    let kind = error.downcast_ref().map(io::Error::kind);
    [
        Some(ErrorKind::UnexpectedEof),
        Some(ErrorKind::ConnectionReset),
        Some(ErrorKind::BrokenPipe),
    ]
    .contains(&kind)
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Self::Absent,
            ErrorKind::PermissionDenied => Self::Forbidden,
            _ => Self::garbage(error),
        }
    }
}
