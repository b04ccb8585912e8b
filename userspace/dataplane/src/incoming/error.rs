//! Reasons why incoming connections cannot be steered.

use std::{io, path::PathBuf};

use thiserror::Error;

/// Why a namespace's incoming connections cannot be steered.
#[derive(Debug, Error)]
pub enum IncomingError {
    /// The namespace cannot be entered.
    #[error(
        "[[incoming]] netns = {netns:?}: {source}; it has to be a network namespace, such as `/run/netns/NAME`"
    )]
    Namespace {
        /// Path of the namespace.
        netns: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Two entries are the same namespace under two names.
    #[error("[[incoming]]: two of them are the same network namespace")]
    Twice,
    /// Listeners.
    #[error("cannot open the agent's sockets for incoming connections: {0}")]
    Sockets(io::Error),
}
