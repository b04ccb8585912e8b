//! Drivers that look for the cluster behind a virtual address find that address alone.
//!
//! They learn of nodes from `system.local`, `system.peers` and `system.peers_v2`, and from events. What they
//! know a node by is its `host_id`, which would be that of whichever node has answered: it is made of the
//! address, so that it is the same whoever answers, and whichever agent is asked.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;

use crate::Response;
use cql::hash::Fnv;
use cql::text::Name;
use cql::text::parse;

/// Addresses of nodes that drivers find.
#[derive(Clone, Copy, Debug, Deserialize, schemars::JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Addresses {
    /// The one that the driver has dialled, and no other, so that it stays there.
    Dialled,
}

/// Columns of `system.local` that drivers take a node's address from.
const OWN_ADDRESSES: [&str; 4] = [
    "rpc_address",
    "native_address",
    "broadcast_address",
    "listen_address",
];

/// The column by which drivers know a node.
const HOST_ID: &str = "host_id";

/// The types `inet` and `uuid`.
const INET: u16 = 0x10;
const UUID: u16 = 0x0C;

/// The tables that name nodes, by what a statement reads of them.
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

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The host's id behind an address: a UUID of version 8 (RFC 9562 §5.8).
fn host_id(of: SocketAddr) -> [u8; 16] {
    let address = [
        &octets(of.ip().to_canonical())[..],
        &of.port().to_be_bytes(),
    ]
    .concat();
    let half = |salt: u8| {
        address
            .iter()
            .fold(Fnv::default().with(salt), |h, b| h.with(*b))
    };
    let id = u128::from(half(0).0) << 64 | u128::from(half(1).0);
    let versioned = id & !(0xF << 76 | 0x3 << 62) | 0x8 << 76 | 0x2 << 62;
    versioned.to_be_bytes()
}

fn show_own(response: &mut Response<'_>, dialled: SocketAddr) -> bool {
    let (own, id) = (octets(dialled.ip()), host_id(dialled));
    response.edit_rows(|columns, cells| {
        for (column, cell) in columns.iter().zip(cells) {
            if column.kind == INET && OWN_ADDRESSES.contains(&column.name) {
                *cell = Some(Cow::Owned(own.clone()));
            }
            if column.kind == UUID && column.name == HOST_ID {
                *cell = Some(Cow::Owned(id.to_vec()));
            }
        }
        true
    })
}

/// Whether a client is told of an event. Events of nodes are hidden: clients know no nodes.
pub(super) fn lets_pass(event: &Response<'_>) -> bool {
    !matches!(event.event(), Some("STATUS_CHANGE" | "TOPOLOGY_CHANGE"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_host_id() {
        let id = |address: &str| host_id(address.parse().unwrap());
        let all = [
            "10.9.0.10:9042",
            "10.9.0.11:9042",
            "10.9.0.10:9043",
            "[fd00::1]:9042",
        ]
        .map(id);
        for (n, id) in all.iter().enumerate() {
            assert_eq!((id[6] >> 4, id[8] >> 6), (8, 2));
            assert!(!all[..n].contains(id));
        }
        assert_eq!(id("[::ffff:10.9.0.10]:9042"), all[0]);
        // Another agent, and a later version, say the same.
        assert_eq!(
            u128::from_be_bytes(all[0]),
            207_303_620_306_511_610_999_480_779_111_399_312_174
        );
    }
}
