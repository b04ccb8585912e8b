//! A server that does nothing but answer: for `connect()` alone, and for finding out what the
//! generator itself can do.

use std::{env, process::Command};

use testkit::sandbox::Cgroup;

use crate::server::Server;

/// On a port of the kernel's choice.
pub fn start(home: &Cgroup) -> anyhow::Result<Server> {
    Server::that_says_where(
        Command::new(env::current_exe()?).args(["null", "127.0.0.1:0"]),
        home,
    )
}
