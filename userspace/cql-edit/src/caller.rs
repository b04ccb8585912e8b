//! [`Caller`]: whose flow it is.

use std::net::SocketAddr;

use crate::note::Note;
use cql::Database;

/// A flow's client, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// The rule that the flow is under.
    pub rule: String,
    /// The client's address, without its port.
    pub client: String,
    /// The address that the client has dialled.
    pub dialled: Option<SocketAddr>,
    /// The database that answers, as flows tell it from others.
    pub database: Database,
    /// A step of its pipeline changes the texts of statements, so that no id that the database gives follows from what other
    /// steps see.
    pub texts_change: bool,
    /// The carrier's own note of the flow, for steps of the carrier's, which know its type.
    pub flow: Option<Note>,
    /// The keyspace that the flow is in, by the last USE that succeeded: as the client is told.
    pub keyspace: Option<String>,
    /// A USE is out, or more than can be told have been: which keyspace it is in, and whether in one, nobody knows.
    pub keyspace_unclear: bool,
    /// The last USE may have passed before there was a pipeline, so that the name is the database's.
    pub keyspace_before: bool,
    /// The user who has logged in by SASL PLAIN, and whom the database has accepted.
    pub user: Option<String>,
    /// The driver that the client says it is. None: it says nothing, or the beginning of its connection was not seen.
    pub driver: Option<String>,
    /// The client has logged in, as whomever and by whatever means.
    pub logged_in: bool,
    /// The name of its process, if that is on this host.
    pub process: Option<String>,
    /// The cgroup of its process, if that is on this host.
    pub cgroup: Option<String>,
}
