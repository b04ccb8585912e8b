//! [`Around`]: the connections of this host as an operator would see them who has no policy yet.

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, SocketAddr},
};

use super::{
    connections::{Connection, Connections},
    owners,
    survey::{AGENTS, MAX_CONNECTIONS},
};

/// A connection that a process of this host has opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedHere {
    /// The address that it leads to.
    pub to: SocketAddr,
    /// The user whose socket it is.
    pub uid: u32,
    /// The name of the process. None: it was not found.
    pub process: Option<String>,
}

/// The TCP connections of a network namespace, by who has opened them.
#[derive(Clone, Debug, Default)]
pub struct Around {
    /// Connections that processes of this host have opened, but for an agent's.
    pub opened: Vec<OpenedHere>,
    /// Connections that clients on other hosts have opened: the address here, and the client's.
    pub accepted: Vec<(SocketAddr, IpAddr)>,
    /// Addresses at which somebody listens.
    pub listening: Vec<SocketAddr>,
}

impl Around {
    /// Looks around in the calling thread's network namespace, and touches nothing.
    ///
    /// # Errors
    /// The kernel does not list sockets.
    pub fn look() -> io::Result<Self> {
        let all = Connections::list(MAX_CONNECTIONS)?;
        let ends: HashSet<_> = all.established.iter().map(|c| (c.own, c.peer)).collect();
        let (accepted, opened): (Vec<&Connection>, Vec<_>) =
            all.established.iter().partition(|c| all.was_accepted(c));
        let owners = owners::of(opened.iter().map(|c| c.inode).collect());
        let opened = opened.into_iter().map(|c| OpenedHere {
            to: c.peer,
            uid: c.uid,
            process: owners.get(&c.inode).map(|owner| owner.name.clone()),
        });
        let is_agents = |c: &OpenedHere| c.process.as_deref().is_some_and(|p| AGENTS.contains(&p));
        let from_elsewhere = |c: &&Connection| !ends.contains(&(c.peer, c.own));
        Ok(Self {
            opened: opened.filter(|c| !is_agents(c)).collect(),
            accepted: accepted
                .into_iter()
                .filter(from_elsewhere)
                .map(|c| (c.own, c.peer.ip()))
                .collect(),
            listening: all.listening().collect(),
        })
    }
}
