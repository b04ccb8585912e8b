//! A server that does nothing but answer: for `connect()` alone, and to find out the generator's
//! own limit.

use std::{env, process::Command};

use crate::server::{Home, Server};

/// Starts the server on a port of the kernel's choice.
pub fn start(home: Home<'_>) -> anyhow::Result<Server> {
    Server::that_says_where(
        Command::new(env::current_exe()?).args(["null", &home.any_port()]),
        home,
    )
}
