//! A Cassandra that runs already. `cargo xtask` starts one, because it knows how to install it.

use std::net::SocketAddr;

use anyhow::Context;
use load::order::Credentials;
use sandbox::Cgroup;

use super::Databases;
use crate::account;

/// The Cassandra to use.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Given {
    /// A running Cassandra
    #[arg(long, value_name = "ADDR:PORT")]
    pub cassandra: Option<SocketAddr>,
    /// The role to log in as
    #[arg(long, requires_all = ["cassandra", "password"])]
    pub user: Option<String>,
    /// The role's password
    #[arg(long, requires_all = ["cassandra", "user"])]
    pub password: Option<String>,
}

impl Given {
    /// Returns the role to log in as.
    pub fn credentials(&self) -> Option<Credentials> {
        let both = self.user.clone().zip(self.password.clone());
        both.map(|(user, password)| Credentials { user, password })
    }
}

/// Finds the Cassandra that was given.
pub fn find(given: &Given) -> anyhow::Result<Databases> {
    let address = given.cassandra.context(
        "no Cassandra was given (--cassandra ADDR:PORT; `cargo xtask bench` starts one)",
    )?;
    let credentials = given.credentials();
    let version = load::version_of_cassandra(address, credentials.as_ref())?;
    let pid = account::listener(address);
    Ok(Databases {
        addresses: vec![address],
        credentials,
        pids: pid.into_iter().collect(),
        version: Some(("cassandra".into(), version)),
        _servers: Vec::new(),
        home: pid.map(Cgroup::of_process).transpose()?.flatten(),
        netns: None,
    })
}
