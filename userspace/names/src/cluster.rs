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

use policy::Endpoint;
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

/// Nodes that are tried before a look-up has failed: where so many are away, others are, too.
const MAX_TRIED: usize = 16;

/// A connection to a cluster, which outlives a look-up.
#[derive(Default)]
pub(crate) struct Control {
    session: Option<Session>,
}

impl Control {
    /// Reads the nodes: from the one that is connected, or from the first that answers, of `known` ones and contact points.
    pub(crate) async fn read(
        &mut self,
        settings: &ClusterSettings,
        resolver: &Resolver,
        known: &[Endpoint],
    ) -> Result<LookedUp, Failure> {
        if let Some(session) = &mut self.session {
            match session.nodes(settings).await {
                Ok(nodes) => return Ok(nodes),
                Err(why) => {
                    tracing::debug!(cluster = %settings.name, node = %session.at(), "the connection to a cluster is over: {why}");
                    self.session = None;
                }
            }
        }
        let mut last = Failure::NoNode("it has no contact point with an address".to_owned());
        for at in candidates(settings, resolver, known).await {
            let opened = async {
                let mut session = Session::open(at, settings, resolver).await?;
                let nodes = session.nodes(settings).await?;
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

    /// Waits until the cluster is to be read again: at `next`, or soon after it has told of a change, or lost the connection.
    pub(crate) async fn wait(&mut self, next: Instant) {
        let Some(session) = &mut self.session else {
            return sleep_until(next).await;
        };
        tokio::select! {
            () = sleep_until(next) => {}
            told = session.event() => {
                if told.is_err() {
                    self.session = None;
                }
                // Also a node that closes each connection is asked no more often.
                sleep_until(next.min(Instant::now() + SETTLE)).await;
            }
        }
    }
}

/// The nodes to try: contact points as they are written, then nodes that were known.
async fn candidates(
    settings: &ClusterSettings,
    resolver: &Resolver,
    known: &[Endpoint],
) -> Vec<SocketAddr> {
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    let mut add = |at: SocketAddr| {
        if seen.insert(at) {
            all.push(at);
        }
    };
    for point in &settings.contact_points {
        match point {
            ContactPoint::At(at) => add(*at),
            ContactPoint::Host(domain, port) => {
                let found = resolver.host(domain).await;
                let endpoints = found.map(|found| found.endpoints).unwrap_or_default();
                endpoints
                    .iter()
                    .for_each(|at| add(SocketAddr::new(at.ip, *port)));
            }
        }
    }
    // One that is away is not asked first by every host each time.
    let mut known: Vec<_> = known
        .iter()
        .filter_map(|at| Some(SocketAddr::new(at.ip, at.port?)))
        .collect();
    fastrand::shuffle(&mut known);
    known.into_iter().for_each(add);
    all.truncate(MAX_TRIED);
    all
}
