//! [`Around`]: the connections of this host as an operator would see them who has no policy yet.

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, SocketAddr},
    path::Path,
};

use super::{
    connections::{Connection, Connections},
    namespaces::Places,
    owners,
    survey::{AGENTS, MAX_CONNECTIONS, Seen},
};

/// A connection that a process of this host has opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedHere {
    /// The address that it leads to.
    pub to: SocketAddr,
    /// Whether it is in the calling thread's network namespace.
    pub is_own: bool,
    /// The user whose socket it is.
    pub uid: u32,
    /// The name of the process. None: it was not found.
    pub process: Option<String>,
}

/// The TCP connections of this host, by who has opened them.
#[derive(Clone, Debug, Default)]
pub struct Around {
    /// Connections that processes of this host have opened, in any network namespace, but for an agent's.
    pub opened: Vec<OpenedHere>,
    /// Connections that clients on other hosts have opened to the calling thread's namespace: the address here, and the
    /// client's.
    pub accepted: Vec<(SocketAddr, IpAddr)>,
    /// Addresses of that namespace at which somebody listens.
    pub listening: Vec<SocketAddr>,
}

impl Around {
    /// Looks around, and touches nothing. Whoever connects is beneath `cgroup`; None: anywhere.
    ///
    /// # Errors
    /// The kernel does not list sockets.
    pub fn look(cgroup: Option<&Path>) -> io::Result<Self> {
        let seen = cgroup.map_or(Seen::All, Seen::of);
        let (mut around, mut ends) = (Self::default(), HashSet::new());
        let (mut opened, mut accepted) = (Vec::new(), Vec::new());
        for place in Places::find().places {
            let all = match place.within(|| Connections::list(MAX_CONNECTIONS)) {
                Err(error) if place.is_own() => return Err(error),
                // It has gone, or cannot be entered.
                Err(_) => continue,
                Ok(all) => all,
            };
            ends.extend(all.established.iter().map(|c| (c.own, c.peer)));
            let both: (Vec<Connection>, Vec<_>) =
                all.established.iter().partition(|c| all.was_accepted(c));
            let sees = |c: &Connection| seen.sees(c.cgroup_id);
            let is_own = place.is_own();
            opened.extend(both.1.into_iter().filter(sees).map(|c| (c, is_own)));
            if is_own {
                accepted = both.0;
                around.listening = all.listening().collect();
            }
        }
        let owners = owners::of(opened.iter().map(|(c, _)| c.inode).collect());
        let opened = opened.into_iter().map(|(c, is_own)| OpenedHere {
            to: c.peer,
            is_own,
            uid: c.uid,
            process: owners.get(&c.inode).map(|owner| owner.name.clone()),
        });
        let is_agents = |c: &OpenedHere| c.process.as_deref().is_some_and(|p| AGENTS.contains(&p));
        around.opened = opened.filter(|c| !is_agents(c)).collect();
        let from_elsewhere = |c: &&Connection| !ends.contains(&(c.peer, c.own));
        let accepted = accepted.iter().filter(from_elsewhere);
        around.accepted = accepted.map(|c| (c.own, c.peer.ip())).collect();
        Ok(around)
    }
}
