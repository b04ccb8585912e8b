//! The system tables, by where their rows come from.

/// Source of a system table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SystemTable {
    Local,
    Peers {
        v2: bool,
    },
    Clients,
    Keyspaces {
        of_virtual: bool,
    },
    Tables {
        of_virtual: bool,
    },
    Columns {
        of_virtual: bool,
    },
    /// ScyllaDB's, which say that keyspaces have tablets.
    ScyllaKeyspaces,
    /// Types, functions and the like: there are none.
    Empty,
}
