//! Drivers that look for the cluster behind a virtual address find that address alone.
//!
//! They learn of nodes from `system.local`, `system.peers` and `system.peers_v2`, and from events.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;

use crate::edit::Response;
use crate::lex::Name;
use crate::parse::parse;

/// Which addresses drivers find.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Addresses {
    /// The one that they have dialled, and no other.
    Dialled,
}

/// Columns of `system.local` that drivers take a node's address from.
const OWN_ADDRESSES: [&str; 4] = [
    "rpc_address",
    "native_address",
    "broadcast_address",
    "listen_address",
];

/// The type `inet`.
const INET: u16 = 0x10;

/// What is read of the tables that name nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Nodes {
    #[default]
    Nobody,
    Own,
    Peers,
}

impl Nodes {
    pub(super) fn of(text: &[u8]) -> Self {
        let statement = parse(text, text.len()).statement;
        let stored = |name: Name<'_>| name.bytes().collect::<Vec<u8>>();
        let (keyspace, table) = (statement.keyspace.map(stored), statement.table.map(stored));
        match (keyspace.as_deref(), table.as_deref()) {
            (Some(b"system"), Some(b"local")) => Self::Own,
            (Some(b"system"), Some(b"peers" | b"peers_v2")) => Self::Peers,
            _ => Self::Nobody,
        }
    }

    /// Changes the rows that were read. True: it has.
    pub(super) fn show(self, response: &mut Response<'_>, dialled: Option<SocketAddr>) -> bool {
        match (self, dialled) {
            (Self::Peers, _) => response.edit_rows(|_, _| false),
            (Self::Own, Some(dialled)) => show_own(response, dialled),
            _ => false,
        }
    }
}

fn show_own(response: &mut Response<'_>, dialled: SocketAddr) -> bool {
    let own = match dialled.ip() {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    response.edit_rows(|columns, cells| {
        for (column, cell) in columns.iter().zip(cells) {
            if column.kind == INET && OWN_ADDRESSES.contains(&column.name) {
                *cell = Some(Cow::Owned(own.clone()));
            }
        }
        true
    })
}

/// What happens to nodes is nobody's business who knows none.
pub(super) fn lets_pass(event: &Response<'_>) -> bool {
    !matches!(event.event(), Some("STATUS_CHANGE" | "TOPOLOGY_CHANGE"))
}
