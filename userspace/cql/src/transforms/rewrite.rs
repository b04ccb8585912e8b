//! `rewrite`: drivers that look for the cluster behind a virtual address find that address alone.
//!
//! They learn of nodes from `system.local`, `system.peers` and `system.peers_v2`, and from events.

use std::borrow::Cow;
use std::net::IpAddr;

use serde::Deserialize;

use super::prepared::Prepared;
use crate::edit::{Caller, Outcome, Request, Response, Statement, Transform};
use crate::frame::Opcode;
use crate::lex::Name;
use crate::parse::parse;

/// As in the configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Which addresses drivers find.
    pub addresses: Addresses,
}

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Nobody,
    Own,
    Peers,
}

impl Names {
    fn of(text: &[u8]) -> Self {
        let statement = parse(text, text.len()).statement;
        let stored = |name: Name<'_>| name.bytes().collect::<Vec<u8>>();
        let (keyspace, table) = (statement.keyspace.map(stored), statement.table.map(stored));
        match (keyspace.as_deref(), table.as_deref()) {
            (Some(b"system"), Some(b"local")) => Self::Own,
            (Some(b"system"), Some(b"peers" | b"peers_v2")) => Self::Peers,
            _ => Self::Nobody,
        }
    }
}

/// Numbers of responses: those to a PREPARE count from here on.
const PREPARES: u64 = 2;
const OWN: u64 = 0;
const PEERS: u64 = 1;

#[derive(Debug, Default)]
struct Rewrite {
    prepared: Prepared<Names>,
}

impl Settings {
    pub(super) fn build(self) -> Result<Box<dyn Transform>, String> {
        match self.addresses {
            Addresses::Dialled => Ok(Box::new(Rewrite::default())),
        }
    }
}

impl Transform for Rewrite {
    fn name(&self) -> &'static str {
        "rewrite"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        matches!(opcode, Opcode::Query | Opcode::Prepare | Opcode::Execute)
    }

    fn request(&self, request: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        let names = match request.statements().next() {
            Some(Statement::Text(text)) => Names::of(text),
            Some(Statement::Prepared(id)) => match self.prepared.known(id) {
                Ok(names) => names,
                Err(again) => return again,
            },
            None => Names::Nobody,
        };
        if request.opcode() == Opcode::Prepare {
            request.await_response(PREPARES + self.prepared.goes_out(names));
            return Outcome::Pass;
        }
        let number = match names {
            Names::Nobody => return Outcome::Pass,
            Names::Own => OWN,
            Names::Peers => PEERS,
        };
        request.await_response(number);
        match request.want_metadata() {
            true => Outcome::Changed,
            false => Outcome::Pass,
        }
    }

    fn response(&self, response: &mut Response<'_>, caller: &Caller, number: u64) -> bool {
        match (number, caller.dialled) {
            (PREPARES.., _) => {
                let id = response.prepared_id();
                self.prepared.came_back(number - PREPARES, id);
                false
            }
            (PEERS, _) => response.edit_rows(|_, _| false),
            (_, Some(dialled)) => {
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
            (_, None) => false,
        }
    }

    fn wants_events(&self) -> bool {
        true
    }

    /// What happens to nodes is nobody's business who knows none.
    fn lets_pass(&self, event: &Response<'_>) -> bool {
        !matches!(event.event(), Some("STATUS_CHANGE" | "TOPOLOGY_CHANGE"))
    }
}
