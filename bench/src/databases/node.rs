//! The embedded CQL node, as a process of its own.

use std::process::Command;

use crate::server::{Home, Server, binary};

/// Starts a node on a port of the kernel's choice.
pub fn start(home: Home<'_>) -> anyhow::Result<Server> {
    Server::that_says_where(
        Command::new(binary("cql-node")?).args(["--listen", &home.any_port()]),
        home,
    )
}
