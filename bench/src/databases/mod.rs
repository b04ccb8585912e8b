//! The databases of an experiment: started for it and stopped after it, or given.

mod cassandra;
mod redis;

use std::{
    env,
    net::{Ipv4Addr, SocketAddr},
    process::Command,
};

use anyhow::Context;
use load::{
    order::Credentials,
    workload::{self, Topology},
};
use sandbox::{Cgroup, Netns, run_in};

pub use cassandra::Given;

use crate::{
    gateway,
    server::{Home, Server, binary},
};

type Start = fn(Home<'_>) -> anyhow::Result<Server>;

/// Starts a server that does nothing but answer, on a port of the kernel's choice: for `connect()` alone, and to find out the
/// generator's own limit.
fn null(home: Home<'_>) -> anyhow::Result<Server> {
    let mut command = Command::new(env::current_exe()?);
    Server::that_says_where(command.args(["null", &home.any_port()]), home)
}

/// Starts the embedded CQL node, as a process of its own.
fn node(home: Home<'_>) -> anyhow::Result<Server> {
    let mut command = Command::new(binary("cql-node")?);
    Server::that_says_where(command.args(["--listen", &home.any_port()]), home)
}

/// Databases of one kind; those that we started end when this is dropped.
pub struct Databases {
    /// The addresses at which they listen.
    pub addresses: Vec<SocketAddr>,
    /// The role to log in as.
    pub credentials: Option<Credentials>,
    /// The process ids, as far as the databases run on this host.
    pub pids: Vec<u32>,
    /// The name and the version that a result file notes.
    pub version: Option<(String, String)>,
    _servers: Vec<Server>,
    /// The cgroup that they have for themselves, for agents that must see both ends of a flow.
    pub home: Option<Cgroup>,
    /// The network of those behind a gateway; None: this host's.
    pub netns: Option<Netns>,
}

impl Databases {
    /// Starts what an experiment asks, or finds the one that was given.
    ///
    /// # Errors
    /// It is not installed, none was given, or it does not start.
    pub fn of(variant: &workload::Variant, given: &Given) -> anyhow::Result<Self> {
        let (kind, nodes) = (variant.database, variant.nodes);
        if variant.topology == Topology::Gateway {
            let start = match kind {
                workload::Database::Listener => null,
                _ => node,
            };
            return Self::started_in(
                Some(gateway::database_host()?),
                gateway::DATABASE,
                nodes,
                start,
            );
        }
        match kind {
            workload::Database::Node => Self::node(nodes),
            workload::Database::Listener => Self::null(nodes),
            workload::Database::Redis => {
                let version = redis::version()?;
                let mut databases = Self::started(nodes, redis::start)?;
                databases.version = Some(("redis".into(), version));
                Ok(databases)
            }
            workload::Database::Cassandra => Self::given(given),
        }
    }

    /// Finds the Cassandra that was given.
    ///
    /// # Errors
    /// None was given, or it does not answer.
    pub fn given(given: &Given) -> anyhow::Result<Self> {
        cassandra::find(given)
    }

    /// Servers that answer and do nothing.
    ///
    /// # Errors
    /// They do not start.
    pub fn null(nodes: usize) -> anyhow::Result<Self> {
        Self::started(nodes, null)
    }

    /// Embedded CQL nodes.
    ///
    /// # Errors
    /// They do not start.
    pub fn node(nodes: usize) -> anyhow::Result<Self> {
        Self::started(nodes, node)
    }

    /// Runs something where they can be reached.
    ///
    /// # Errors
    /// As `body`.
    pub fn near<T: Send>(
        &self,
        body: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        match &self.netns {
            Some(netns) => run_in(Some(netns), None, body)?,
            None => body(),
        }
    }

    fn started(nodes: usize, start: Start) -> anyhow::Result<Self> {
        Self::started_in(None, Ipv4Addr::LOCALHOST, nodes, start)
    }

    fn started_in(
        netns: Option<Netns>,
        ip: Ipv4Addr,
        nodes: usize,
        start: Start,
    ) -> anyhow::Result<Self> {
        let cgroup = Cgroup::new().context("a cgroup for the databases (are you root?)")?;
        let home = Home {
            cgroup: &cgroup,
            netns: netns.as_ref(),
            ip,
        };
        let servers = (0..nodes).map(|_| start(home));
        let servers: Vec<Server> = servers.collect::<anyhow::Result<_>>()?;
        Ok(Self {
            addresses: servers.iter().map(|server| server.address).collect(),
            credentials: None,
            pids: servers.iter().map(Server::pid).collect(),
            version: None,
            _servers: servers,
            home: Some(cgroup),
            netns,
        })
    }
}
