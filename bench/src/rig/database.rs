//! The database: one that runs, or the embedded node as a process of its own, so that its
//! CPU is not ours.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::binary;
use crate::{interrupt, order::Credentials};

/// After SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Which database to use.
#[derive(Clone, Debug, clap::Args)]
pub struct Given {
    /// A running Cassandra
    #[arg(long, value_name = "ADDR:PORT")]
    pub cassandra: Option<SocketAddr>,
    /// The role to log in as
    #[arg(long, requires_all = ["cassandra", "password"])]
    pub user: Option<String>,
    /// Its password
    #[arg(long, requires_all = ["cassandra", "user"])]
    pub password: Option<String>,
}

/// A database. The embedded one ends when this is dropped.
pub struct Database {
    /// Where it listens.
    pub address: SocketAddr,
    /// Who to log in as.
    pub credentials: Option<Credentials>,
    node: Option<Child>,
}

impl Given {
    /// The running Cassandra, if one was given.
    pub fn database(&self) -> Option<Database> {
        let credentials = self.user.clone().zip(self.password.clone());
        self.cassandra.map(|address| Database {
            address,
            credentials: credentials.map(|(user, password)| Credentials { user, password }),
            node: None,
        })
    }
}

impl Database {
    /// Starts the embedded node on a port of the kernel's choice.
    pub fn embedded() -> anyhow::Result<Self> {
        let mut command = Command::new(binary("cql-node")?);
        command
            .args(["--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0);
        let mut node = command.spawn().context("cannot start the embedded node")?;
        let stdout = node.stdout.take().context("no stdout")?;
        // From here on dropping ends it.
        let mut database = Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            credentials: None,
            node: Some(node),
        };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on ");
        match address.and_then(|address| address.parse().ok()) {
            Some(address) => database.address = address,
            None => bail!("the embedded node did not start; it said {line:?}"),
        }
        Ok(database)
    }

    /// Which one this is.
    pub fn name(&self) -> &'static str {
        match self.node {
            Some(_) => "the embedded CQL node",
            None => "Cassandra",
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let Some(node) = &mut self.node else { return };
        if let Ok(pid) = i32::try_from(node.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let deadline = Instant::now() + END_LIMIT;
        while matches!(node.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = node.kill();
                let _ = node.wait();
                return;
            }
            thread::sleep(interrupt::LOOK_EVERY);
        }
    }
}
