//! Clusters: the nodes that one of them names are read, on a connection of the agent's own that stays, and read again when it
//! tells of a change.
//!
//! - `settings`: where a cluster is, and who reads.
//! - `ring`: rows of `system.local`, `system.peers_v2` and `system.peers`, and the nodes in them.
//! - `session`: a connection to one node.

mod ring;
mod session;
mod settings;

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use policy::Domain;
use tokio::time::{Instant, sleep_until};

use self::session::Session;
pub use self::settings::{
    ClusterSettings, ContactPoint, Login, MAX_CLUSTERS, MAX_CONTACT_POINTS, MAX_DATACENTERS,
};
use crate::{Failure, Resolver, resolver::LookedUp};

/// A node that has told of no change is read again after this: events may be lost, and a table may be behind.
pub(crate) const READ_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// A node tells of a change several times, and before its own tables have it.
pub(crate) const SETTLE: Duration = Duration::from_millis(500);

/// The time over which the agents of a fleet spread their readings after that.
const SPREAD: Duration = Duration::from_secs(1);

/// Nodes that are tried before a look-up has failed: where so many are away, others are, too.
const MAX_TRIED: usize = 16;

/// Known nodes that are tried before contact points are looked up: where both are away, the cluster may have moved.
const MAX_KNOWN_FIRST: usize = 2;

/// A connection that ends before this was of no use: the next one waits longer.
const SHORT_SESSION: Duration = Duration::from_secs(10);

/// Short connections one after the other that make the wait longer, each twice as long: up to 32 s.
const MAX_DOUBLINGS: u32 = 6;

/// A connection to a cluster, which outlives a look-up, and what it has told. Of a cluster with other settings nothing is known.
#[derive(Default)]
pub(crate) struct Control {
    session: Option<Session>,
    /// The nodes of the last good answer.
    known: Vec<SocketAddr>,
    /// The name that the cluster gives itself.
    cluster: Option<String>,
    /// Connections without a long one since.
    short_sessions: u32,
}

impl Control {
    /// Reads the nodes: from the one that is connected, or from the first that answers, of contact points and known ones.
    pub(crate) async fn read(
        &mut self,
        settings: &ClusterSettings,
        resolver: &Resolver,
    ) -> Result<LookedUp, Failure> {
        if let Some(mut session) = self.session.take() {
            match self.ask(&mut session, settings).await {
                Ok(nodes) => {
                    self.session = Some(session);
                    return Ok(nodes);
                }
                Err(why) => {
                    tracing::debug!(cluster = %settings.name, node = %session.at(), "the connection to a cluster is over: {why}");
                }
            }
        }
        let mut last = Failure::NoNode("it has no contact point with an address".to_owned());
        let mut candidates = Candidates::new(settings, &self.known);
        while let Some(at) = candidates.next(resolver).await {
            let opened = async {
                let mut session = Session::open(at, settings, resolver).await?;
                let nodes = self.ask(&mut session, settings).await?;
                Ok((session, nodes))
            };
            match opened.await {
                Ok((session, nodes)) => {
                    self.session = Some(session);
                    return Ok(nodes);
                }
                Err(why) => last = why,
            }
        }
        Err(last)
    }

    /// Asks a node, and keeps what it tells.
    async fn ask(
        &mut self,
        session: &mut Session,
        settings: &ClusterSettings,
    ) -> Result<LookedUp, Failure> {
        let nodes = session.nodes(settings).await?;
        self.check_name(session.at(), session.cluster_name())?;
        let known = nodes.endpoints.iter();
        self.known = known
            .filter_map(|at| Some(SocketAddr::new(at.ip, at.port?)))
            .collect();
        Ok(nodes)
    }

    /// Refuses a node of another cluster than the one that has answered before: an address that a node had may be another cluster's by now.
    fn check_name(&mut self, at: SocketAddr, name: Option<&str>) -> Result<(), Failure> {
        let Some(name) = name else {
            return Ok(());
        };
        let first = self.cluster.get_or_insert_with(|| name.to_owned());
        match *first == name {
            true => Ok(()),
            false => Err(Failure::NoNode(format!(
                "{at}: it is of the cluster {name:?}, and the nodes that are known of {first:?}; if it is meant, restart the agent"
            ))),
        }
    }

    /// Waits until the cluster is to be read again: at `next`, or soon after it has told of a change, or lost the connection.
    pub(crate) async fn wait(&mut self, next: Instant) {
        let Some(session) = &mut self.session else {
            return sleep_until(next).await;
        };
        tokio::select! {
            () = sleep_until(next) => {}
            told = session.event() => {
                let pause = match told {
                    // Each agent of a fleet hears of it at once.
                    Ok(()) => SETTLE + SPREAD.mul_f64(fastrand::f64()),
                    Err(_) => {
                        self.short_sessions = match session.age() < SHORT_SESSION {
                            true => self.short_sessions.saturating_add(1),
                            false => 0,
                        };
                        self.session = None;
                        self.pause()
                    }
                };
                sleep_until(next.min(Instant::now() + pause)).await;
            }
        }
    }

    /// The wait after a connection has ended. A node that lets in and closes is logged in to ever less often.
    fn pause(&self) -> Duration {
        SETTLE * (1 << self.short_sessions.min(MAX_DOUBLINGS))
    }
}

/// The nodes to try. A name that nobody answers for is not waited for while there are addresses to try.
struct Candidates<'s> {
    /// Addresses, the next one last.
    at: Vec<SocketAddr>,
    /// Contact points that are hosts, likewise.
    hosts: Vec<(&'s Domain, u16)>,
    /// Further nodes that are known.
    rest: Vec<SocketAddr>,
    seen: BTreeSet<SocketAddr>,
}

impl<'s> Candidates<'s> {
    /// Contact points with addresses are first, then some nodes that are known, then contact points that have to be looked up, and the
    /// last are the other nodes: each in an order of chance, so that not every host asks the same one.
    fn new(settings: &'s ClusterSettings, known: &[SocketAddr]) -> Self {
        let mut rest = known.to_vec();
        fastrand::shuffle(&mut rest);
        let mut at = rest.split_off(rest.len().saturating_sub(MAX_KNOWN_FIRST));
        let (mut first, mut hosts) = (Vec::new(), Vec::new());
        for point in &settings.contact_points {
            match point {
                ContactPoint::At(at) => first.push(*at),
                ContactPoint::Host(domain, port) => hosts.push((domain, *port)),
            }
        }
        fastrand::shuffle(&mut first);
        fastrand::shuffle(&mut hosts);
        at.extend(first);
        Self {
            at,
            hosts,
            rest,
            seen: BTreeSet::new(),
        }
    }

    async fn next(&mut self, resolver: &Resolver) -> Option<SocketAddr> {
        while self.seen.len() < MAX_TRIED {
            match self.at.pop() {
                Some(at) if self.seen.insert(at) => return Some(at),
                Some(_) => {}
                None => match self.hosts.pop() {
                    Some((domain, port)) => {
                        let found = resolver.host(domain).await;
                        let found = found.map(|found| found.endpoints).unwrap_or_default();
                        let found = found.iter().map(|at| SocketAddr::new(at.ip, port));
                        self.at = found.collect();
                        fastrand::shuffle(&mut self.at);
                    }
                    None if self.rest.is_empty() => return None,
                    None => self.at = std::mem::take(&mut self.rest),
                },
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> SocketAddr {
        ([10, 1, 0, last], 9042).into()
    }

    #[test]
    fn a_node_of_another_cluster_is_refused() {
        let mut control = Control::default();
        assert!(control.check_name(at(1), None).is_ok());
        assert!(control.check_name(at(1), Some("shop")).is_ok());
        assert!(control.check_name(at(2), Some("shop")).is_ok());
        let why = control.check_name(at(2), Some("other")).unwrap_err();
        assert!(
            why.to_string()
                .starts_with("10.1.0.2:9042: it is of the cluster \"other\"")
        );
    }

    #[test]
    fn connections_that_end_at_once_are_made_less_and_less_often() {
        let pause = |short_sessions| {
            let control = Control {
                short_sessions,
                ..Control::default()
            };
            control.pause().as_secs_f64()
        };
        let pauses = [0, 1, 3, 6, u32::MAX].map(pause);
        assert_eq!(pauses, [0.5, 1.0, 4.0, 32.0, 32.0]);
    }

    #[tokio::test]
    async fn contact_points_are_tried_before_most_known_nodes_each_once_and_in_all_a_few() {
        let contact_points = ["db.shop:9042", "10.1.0.1:9042", "10.1.0.2:9042"];
        let folder = tempfile::tempdir().unwrap();
        let hosts = folder.path().join("hosts");
        std::fs::write(&hosts, "10.1.0.200 db.shop\n").unwrap();
        let settings = ClusterSettings {
            name: "shop".into(),
            contact_points: contact_points
                .map(|point| point.parse::<ContactPoint>().unwrap())
                .into(),
            login: None,
            tls: None,
            datacenters: Vec::new(),
        };
        let files = crate::Files {
            hosts,
            ..crate::Files::default()
        };
        let resolver = Resolver::new(files, crate::dial_plainly());
        let tried = async |known: &[SocketAddr]| {
            let mut candidates = Candidates::new(&settings, known);
            let mut tried = Vec::new();
            while let Some(at) = candidates.next(&resolver).await {
                tried.push(at);
            }
            tried
        };
        let contacts = BTreeSet::from([at(1), at(2)]);
        let known: Vec<_> = (1..100).map(at).collect();
        let all = tried(&known[2..]).await;
        assert_eq!(BTreeSet::from_iter(all[..2].iter().copied()), contacts);
        assert_eq!(all[2 + MAX_KNOWN_FIRST], at(200));
        assert_eq!(BTreeSet::from_iter(&all).len(), MAX_TRIED);
        // Those that are both are tried once.
        let all = tried(&known[..2]).await;
        assert_eq!((all.len(), all[2]), (3, at(200)));
    }
}
