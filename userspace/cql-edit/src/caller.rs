//! [`Caller`]: whose flow it is.

use std::net::SocketAddr;

use crate::note::Note;

/// Whose flow it is, as far as that is known.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// The rule that the flow is under.
    pub rule: String,
    /// The client's address, without its port.
    pub client: String,
    /// What the client has dialled.
    pub dialled: Option<SocketAddr>,
    /// What whoever carries the flow knows it as: for steps of theirs, which know what that is.
    pub flow: Option<Note>,
    /// Which keyspace it is in, by the last USE that succeeded: as the client is told.
    pub keyspace: Option<String>,
    /// A USE is out, or more than can be told have been: which keyspace it is in, and whether in one, nobody knows.
    pub keyspace_unclear: bool,
    /// That USE may have passed before there was a pipeline, so that the name is the database's.
    pub keyspace_before: bool,
    /// Who has logged in, where that was by SASL PLAIN; as the database has accepted it.
    pub user: Option<String>,
    /// It has logged in, whoever it is and by whatever means.
    pub logged_in: bool,
    /// The name of its process, if that is on this host.
    pub process: Option<String>,
    /// Its cgroup, likewise.
    pub cgroup: Option<String>,
}
