//! What a comparison stands on: an agent of its own, a cgroup for each path that has one,
//! and a client in each.
//!
//! **Invariant**: nothing outlives the rig: clients go, then the agent, then (they are
//! borrowed) the cgroups that they were in.

mod client;
mod database;
mod rounds;

use std::{
    env,
    net::SocketAddr,
    path::{Path as FilePath, PathBuf},
};

use anyhow::{Context, ensure};
use testkit::sandbox::{Agent, Cgroup};

pub use client::Client;
pub use database::{Database, Given};
pub use rounds::{Round, compare, rotated};

use crate::{
    interrupt,
    order::Hello,
    path::{ByPath, Path},
};

/// The cgroups of a run. The agent is attached to all of it.
pub struct Cgroups {
    // Children first: a cgroup with children cannot be removed.
    bypass: Cgroup,
    enrich: Cgroup,
    all: Cgroup,
}

impl Cgroups {
    /// Makes them. Needs root.
    pub fn new() -> anyhow::Result<Self> {
        let all = Cgroup::new().context("cgroups for the clients (are you root?)")?;
        Ok(Self {
            bypass: all.child(Path::Bypass.as_str())?,
            enrich: all.child(Path::Enrich.as_str())?,
            all,
        })
    }

    /// Where a path's client lives; None: where we do.
    fn of(&self, path: Path) -> Option<&Cgroup> {
        match path {
            Path::Direct => None,
            Path::Bypass => Some(&self.bypass),
            Path::Enrich => Some(&self.enrich),
        }
    }

    /// A rule for each path that has a cgroup; named after it, as is its action.
    fn policy(&self, to: SocketAddr) -> String {
        let rule = |path| {
            let cgroup = self.of(path)?.rule_path();
            Some(format!(
                "[[rule]]\nname = \"{path}\"\nto = [\"{to}\"]\ncgroup = [{cgroup:?}]\n\
                 action = \"{path}\"\n"
            ))
        };
        Path::ALL.into_iter().filter_map(rule).collect()
    }
}

/// An agent, and a client for each path.
pub struct Rig<'a> {
    /// One of each path.
    pub clients: ByPath<Client>,
    /// The agent between them and what they dial.
    pub agent: Agent<'a>,
    cgroups: &'a Cgroups,
    hello: Hello,
}

impl<'a> Rig<'a> {
    /// Starts them; the clients are connected on return.
    pub fn start(cgroups: &'a Cgroups, hello: &Hello) -> anyhow::Result<Self> {
        interrupt::check()?;
        let policy = cgroups.policy(hello.target);
        let agent = Agent::start(&binary("underpass")?, None, &cgroups.all, "", &policy)?;
        let clients = ByPath::try_new(|path| Client::start(path, cgroups.of(path), hello))?;
        Ok(Self {
            clients,
            agent,
            cgroups,
            hello: hello.clone(),
        })
    }

    /// Gives every path a new client. Which thread of the database serves a connection, and
    /// where a process lies in memory, is luck; this way it is another one in every round.
    pub fn reconnect(&mut self, number: usize) -> anyhow::Result<()> {
        for path in rotated(number) {
            let client = Client::start(path, self.cgroups.of(path), &self.hello)?;
            *self.clients.of_mut(path) = client;
        }
        Ok(())
    }

    /// Ends the clients, and stops the agent as an operator does.
    pub fn stop(self) -> anyhow::Result<()> {
        let Self {
            clients, mut agent, ..
        } = self;
        drop(clients);
        let status = agent.stop()?;
        ensure!(
            status.success(),
            "the agent ended with {status}; it said:\n{}",
            agent.log()
        );
        Ok(())
    }
}

/// One of the project's binaries: beside our own.
pub fn binary(name: &str) -> anyhow::Result<PathBuf> {
    let own = env::current_exe().context("where is our own executable?")?;
    let binary = own.parent().unwrap_or(FilePath::new(".")).join(name);
    ensure!(
        binary.is_file(),
        "{} is not there: `cargo xtask` builds it (`cargo xtask demo`, `cargo xtask bench`)",
        binary.display()
    );
    Ok(binary)
}
