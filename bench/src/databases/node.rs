//! The embedded CQL node, as a process of its own.

use std::process::Command;

use testkit::sandbox::Cgroup;

use crate::server::{Server, binary};

/// On a port of the kernel's choice.
pub fn start(home: &Cgroup) -> anyhow::Result<Server> {
    Server::that_says_where(
        Command::new(binary("cql-node")?).args(["--listen", "127.0.0.1:0"]),
        home,
    )
}
