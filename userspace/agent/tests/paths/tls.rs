//! TLS that ends in the agent: what clients and databases see, and what is told of it.

mod ends;

mod clients;
mod databases;
mod lines;
mod node;
mod peers;
mod policy;

use crate::common::frames::{query, ready, startup, void};

const SELECT: &str = "SELECT v FROM shop.orders WHERE id = 1";
