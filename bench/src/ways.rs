//! The compared ways to the databases: those that were asked for and can be had.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use peers::{Found, Overrides, Peer};
use sandbox::Cgroup;

use crate::{
    gateway::nftables,
    paths::{AGAIN, DIRECT, OURS, SHORTCUT, Topology, every},
};

/// The ways of a run.
pub struct Ways {
    /// All that there are, in the order of tables; those that are not compared with the reason.
    pub described: Vec<report::schema::Path>,
    /// Peers that are compared.
    pub peers: Vec<(&'static Peer, Found)>,
}

impl Ways {
    /// Finds out. `wanted` is empty for all.
    ///
    /// # Errors
    /// One that is wanted does not exist.
    pub fn find(wanted: &[String], overrides: &Overrides) -> anyhow::Result<Self> {
        let mut described = every();
        let known: Vec<&str> = described.iter().map(|path| &*path.name).collect();
        for name in wanted {
            let all = known.join(", ");
            ensure!(
                known.contains(&&**name),
                "no path is called {name}; there are: {all}"
            );
        }
        let mut peers = Vec::new();
        for path in &mut described {
            if let Some(peer) = peers::named(&path.name) {
                match peer.find(overrides) {
                    Ok(found) => peers.push((peer, found)),
                    Err(absent) => path.absent = Some(absent.why),
                }
            }
            let is_wanted = wanted.is_empty()
                || wanted.contains(&path.name)
                || [DIRECT, AGAIN].contains(&&*path.name);
            match &path.absent {
                Some(why) if is_wanted => eprintln!("without {}: {why}", path.name),
                None if !is_wanted => path.absent = Some("not asked for".into()),
                _ => {}
            }
        }
        let compared = |name: &str| {
            let path = described.iter().find(|path| path.name == name);
            path.is_some_and(|path| path.absent.is_none())
        };
        peers.retain(|(peer, _)| compared(peer.name));
        Ok(Self { described, peers })
    }

    /// Leaves one out of the comparison.
    pub fn leave_out(&mut self, name: &str, why: &str) {
        for path in self.described.iter_mut().filter(|path| path.name == name) {
            path.absent = Some(why.into());
        }
    }

    /// Whether it is compared.
    pub fn has(&self, name: &str) -> bool {
        let mut all = self.described.iter();
        all.any(|path| path.name == name && path.absent.is_none())
    }

    /// A peer that is compared.
    pub fn peer(&self, name: &str) -> Option<(&'static Peer, &Found)> {
        let mut all = self.peers.iter();
        all.find(|(peer, _)| peer.name == name)
            .map(|(peer, found)| (*peer, found))
    }

    /// Returns the number of compared ways.
    pub fn count(&self) -> usize {
        self.described
            .iter()
            .filter(|path| path.absent.is_none())
            .count()
    }

    /// Returns the versions that the peers report.
    pub fn versions(&self) -> BTreeMap<String, String> {
        let version = |found: &Found| found.version.clone().unwrap_or_else(|| "unknown".into());
        let kernel = self
            .has(nftables::NAME)
            .then(|| nftables::version().ok())
            .flatten();
        let kernel = kernel.map(|version| (nftables::NAME.to_owned(), version));
        let peers = self.peers.iter();
        peers
            .map(|(peer, found)| (peer.name.to_owned(), version(found)))
            .chain(kernel)
            .collect()
    }
}

/// A cgroup for the generators of each way: those of our paths in one to which their agent is
/// attached, the others in one to which nothing is. As deep as each other, because the kernel
/// accounts CPU and stalls by cgroup, at each level and at each context switch.
pub struct Cgroups {
    // The children are first in the order of drops: a cgroup with children cannot be removed.
    children: Vec<(&'static str, Cgroup)>,
    /// The agents' cgroups, by the lines of `[agent]` that each agent gets.
    ours: Vec<(&'static str, Cgroup)>,
    _others: Cgroup,
}

impl Cgroups {
    /// Makes the cgroups. The shortcut's clients are beneath `home`, the databases' cgroup: its
    /// agent must see both ends, and no other agent is to see the databases.
    ///
    /// # Errors
    /// There is no cgroup2, or the user is not root.
    pub fn new(home: Option<&Cgroup>) -> anyhow::Result<Self> {
        let new = || Cgroup::new().context("cgroups for the generators (are you root?)");
        let others = new()?;
        let mut ours: Vec<(&str, Cgroup)> = Vec::new();
        let mut children = Vec::new();
        for path in OURS.iter().filter(|path| path.at == Topology::Host) {
            if path.name == SHORTCUT.name {
                let child = home.map(|home| home.child(path.name)).transpose()?;
                children.extend(child.map(|child| (path.name, child)));
                continue;
            }
            let of_agent = match ours.iter().position(|(agent, _)| *agent == path.agent) {
                Some(known) => known,
                None => {
                    ours.push((path.agent, new()?));
                    ours.len() - 1
                }
            };
            let (_, cgroup) = ours.get(of_agent).context("no cgroup")?;
            children.push((path.name, cgroup.child(path.name)?));
        }
        let peers = peers::all().iter().map(|peer| peer.name);
        for name in [DIRECT, AGAIN].into_iter().chain(peers) {
            children.push((name, others.child(name)?));
        }
        Ok(Self {
            children,
            ours,
            _others: others,
        })
    }

    /// Makes the cgroups for one agent, without settings of its own, that sees `seen` and not `others`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_one_agent(seen: &[&'static str], others: &[&'static str]) -> anyhow::Result<Self> {
        let new = || Cgroup::new().context("cgroups for the generators (are you root?)");
        let (agents, apart) = (new()?, new()?);
        let seen = seen.iter().map(|name| (*name, &agents));
        let all = seen.chain(others.iter().map(|name| (*name, &apart)));
        let children = all.map(|(name, parent)| Ok((name, parent.child(name)?)));
        Ok(Self {
            children: children.collect::<anyhow::Result<_>>()?,
            ours: vec![("", agents)],
            _others: apart,
        })
    }

    /// Returns the lines of `[agent]` for each agent, and the cgroup that it is attached to.
    pub fn ours(&self) -> impl Iterator<Item = (&'static str, &Cgroup)> {
        self.ours.iter().map(|(agent, cgroup)| (*agent, cgroup))
    }

    /// Returns the cgroup of a path's generators.
    pub fn of(&self, path: &str) -> Option<&Cgroup> {
        let mut children = self.children.iter();
        children
            .find(|(name, _)| *name == path)
            .map(|(_, cgroup)| cgroup)
    }
}
