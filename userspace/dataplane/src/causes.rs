//! Errors of aya's in words: alone they name the system call, and not what it has answered.

use std::{error::Error, io};

/// The error and its causes on one line.
pub(crate) fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Some errors say their cause themselves.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// An error of aya's as one of the system's, with its causes.
pub(crate) fn other(error: impl Error + 'static) -> io::Error {
    io::Error::other(causes(&error))
}
