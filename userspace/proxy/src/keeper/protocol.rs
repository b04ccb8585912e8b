//! The protocol between the agent and the keeper.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use serde::{Deserialize, Serialize};

use super::snapshot::FlowSnapshot;

/// A message. `Hello`, `Ask`, `State`, `End` and `Busy` are understood by every version.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// From either side: the first message.
    Hello { version: String },
    /// To an agent: another agent has this keeper.
    Busy,
    /// From either side: an engine, with its descriptors.
    Engine { engine: u32 },
    /// To the keeper: the agent's shortcut, with its descriptors.
    Shortcut,
    /// To the keeper: hold these two sockets, the accepted one and the dialled one. To the agent:
    /// carry this flow.
    Keep(Box<FlowSnapshot>),
    /// To the keeper: the flow has ended.
    Drop { id: u64 },
    /// To the keeper: the agent does not take it.
    Return { id: u64 },
    /// To the agent: the keeper does not hold it.
    Refused { id: u64, why: String },
    /// To the agent: the engine's last flow has ended.
    Gone { engine: u32 },
    /// To the keeper: close every flow, and end.
    End,
    /// To the keeper: describe yourself.
    Ask,
    /// To the one that asked: the keeper's description.
    State {
        version: String,
        pid: u32,
        flows: usize,
        has_agent: bool,
    },
}

/// A message with its descriptors.
pub(super) type Parcel = (Message, Vec<OwnedFd>);

/// An end of a connection between the agent and the keeper.
pub(super) type Link = crate::link::Link<Message>;

/// Makes descriptors of the same files.
pub(super) fn cloned(fds: &[impl AsFd]) -> io::Result<Vec<OwnedFd>> {
    fds.iter()
        .map(|fd| fd.as_fd().try_clone_to_owned())
        .collect()
}
