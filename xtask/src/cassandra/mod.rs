//! One Apache Cassandra node for tests, on 127.0.0.1, from the jars on Maven Central.
//!
//! Everything it owns is under target/cassandra: `lib` (the jars), `conf` (written at each
//! start), `data` (kept between starts), `system.log`, `pid` and `lock`. The node outlives
//! the command that started it; `down` ends only the process that the pid file names.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    process::ExitCode,
};

use anyhow::{Result, ensure};
use clap::Subcommand;
use serde_json::json;

use crate::setup::{self, Part};

mod cgroup;
mod home;
mod install;
mod node;
mod ready;
mod start;

pub use install::{COPY_JARS, ensure, find_java};

/// The role that a new node has.
pub const USER: &str = "cassandra";
/// The role's password.
pub const PASSWORD: &str = "cassandra";
/// CQL's registered port.
const DEFAULT_PORT: u16 = 9042;

/// Start, stop, look.
#[derive(Subcommand)]
pub enum Verb {
    /// Start the node, unless it runs, and wait until it answers CQL and lets us log in
    Up {
        /// The CQL port on 127.0.0.1 [default: 9042, or where it already runs]
        #[arg(long)]
        port: Option<u16>,
    },
    /// Stop the node that `up` started; its data stays
    Down,
    /// Say whether the node runs and answers; exits 1 when it does not
    Status {
        /// One JSON object: up, ready, pid, address, log
        #[arg(long)]
        json: bool,
    },
}

/// The outcome of [`up`].
pub struct Up {
    /// The address at which the node speaks CQL.
    pub address: SocketAddrV4,
    /// The node's process id.
    pub pid: i32,
    /// Whether this call started the node; if not it ran before.
    pub started: bool,
}

impl Up {
    /// Returns the environment variables that tell the tests of the node.
    pub fn variables(&self) -> [(&'static str, String); 4] {
        [
            ("UNDERPASS_CASSANDRA", self.address.to_string()),
            ("UNDERPASS_CASSANDRA_PID", self.pid.to_string()),
            ("UNDERPASS_CASSANDRA_USER", USER.to_owned()),
            ("UNDERPASS_CASSANDRA_PASSWORD", PASSWORD.to_owned()),
        ]
    }

    /// Stops the node, if it was started for this.
    ///
    /// # Errors
    /// The node does not end.
    pub fn finish(&self) -> Result<()> {
        match self.started {
            true => down(),
            false => Ok(()),
        }
    }
}

/// Runs the command.
pub fn run(verb: &Verb) -> Result<ExitCode> {
    match verb {
        Verb::Up { port } => {
            let up = up(*port)?;
            let how = if up.started { "up" } else { "already up" };
            println!(
                "Cassandra is {how} at {} (user {USER}, password {PASSWORD})",
                up.address
            );
        }
        Verb::Down => down()?,
        Verb::Status { json } => return Ok(status(*json)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the node unless it runs, and waits until it is ready.
///
/// An error when it runs on another port than the one asked for, when somebody else has the
/// port, when it dies or is not ready in time. Nothing started here is left behind then.
pub fn up(port: Option<u16>) -> Result<Up> {
    let _lock = home::lock()?;
    if let Some(node) = node::find() {
        ensure!(
            port.is_none_or(|port| port == node.port),
            "Cassandra is already up on port {}: run `cargo xtask cassandra down` first",
            node.port
        );
        ready::wait(&node)?;
        return Ok(Up {
            address: address(node.port),
            pid: node.pid,
            started: false,
        });
    }
    // The entry of a node that ended by itself.
    node::forget()?;
    let port = port.unwrap_or(DEFAULT_PORT);
    start::check_free(port)?;
    setup::ensure(&[Part::Cassandra])?;
    ensure()?;
    let node = start::start(port)?;
    Ok(Up {
        address: address(port),
        pid: node.pid,
        started: true,
    })
}

/// Ends the node if one runs.
pub fn down() -> Result<()> {
    let _lock = home::lock()?;
    match node::find() {
        Some(node) => {
            node::stop(&node)?;
            println!("Cassandra (process {}) is down", node.pid);
        }
        None => println!("Cassandra is not running"),
    }
    node::forget()
}

fn status(as_json: bool) -> ExitCode {
    let node = node::find();
    let answer = node.as_ref().map(|node| ready::probe(node.port));
    let is_ready = matches!(answer, Some(Ok(())));
    if as_json {
        let status = json!({
            "up": node.is_some(),
            "ready": is_ready,
            "pid": node.as_ref().map(|node| node.pid),
            "address": node.as_ref().map(|node| address(node.port).to_string()),
            "log": home::log(),
        });
        println!("{status}");
    } else {
        match (&node, &answer) {
            (Some(node), Some(Err(error))) => println!(
                "process {} runs, but does not answer on {}: {error:#}; log: {}",
                node.pid,
                address(node.port),
                home::log().display()
            ),
            (Some(node), _) => println!("up at {}, process {}", address(node.port), node.pid),
            (None, _) => println!("down"),
        }
    }
    if is_ready {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn address(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}
