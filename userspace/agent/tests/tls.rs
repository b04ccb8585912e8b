//! TLS that ends in the agent: what clients and databases see, and what is told of it.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests say what they expect by failing, and so do their helpers"
)]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "what it shares with other tests has more than it needs"
)]

mod common;
#[path = "drivers/raw/frames.rs"]
mod frames;
#[path = "session_rules/wire.rs"]
mod wire;

#[path = "tls/certs.rs"]
mod certs;
#[path = "tls/ends.rs"]
mod ends;

#[path = "tls/clients.rs"]
mod clients;
#[path = "tls/databases.rs"]
mod databases;
#[path = "tls/node.rs"]
mod node;
#[path = "marks/operator.rs"]
mod operator;
#[path = "tls/peers.rs"]
mod peers;
#[path = "tls/policy.rs"]
mod policy;

use frames::{query, ready, startup, void};

const SELECT: &str = "SELECT v FROM shop.orders WHERE id = 1";
