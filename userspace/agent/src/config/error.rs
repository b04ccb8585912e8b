//! Errors that name their place.

use std::{
    fmt, io,
    ops::Range,
    path::{Path, PathBuf},
};

use thiserror::Error;
use trusted::Untrusted;

/// Where in a file; both count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineColumn {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

impl fmt::Display for LineColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Why a configuration file cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// No file.
    #[error("cannot read {path}: {error}: check the path, and that the file is readable text")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// Others could change it.
    #[error("{0}: whoever changes the policy decides for every user of this host")]
    Untrusted(Untrusted),
    /// A bad one.
    #[error("{path}:{at}: {message}")]
    Bad {
        /// The file.
        path: PathBuf,
        /// Where.
        at: LineColumn,
        /// The value that was found, and the one that was expected.
        message: String,
    },
}

impl ConfigError {
    /// Whether there is no such file.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Unreadable { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }

    /// The error of a file that could not be read.
    pub(super) fn unread(path: &Path, error: Untrusted) -> Self {
        match error {
            Untrusted::Io { source, .. } => Self::Unreadable {
                path: path.to_owned(),
                error: source,
            },
            error => Self::Untrusted(error),
        }
    }
}

/// An error with its place in bytes.
#[derive(Debug)]
pub(super) struct Flaw {
    pub span: Range<usize>,
    pub message: String,
    /// Another place that the message speaks of.
    pub other: Option<Range<usize>>,
}

impl Flaw {
    pub(super) fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self {
            span,
            message: message.into(),
            other: None,
        }
    }
}

impl LineColumn {
    /// The place of a byte in a text.
    pub(super) fn of(text: &str, byte: usize) -> Self {
        let before = text.get(..byte).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before.get(line_start..).unwrap_or_default().chars().count() + 1,
        }
    }
}
