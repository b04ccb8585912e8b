//! [`Session`]: a connection to one node of a cluster.

use std::{
    collections::{BTreeSet, HashSet},
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use cql::Compression;
use cql_client::{Client, Hello, NoAnswer, Version};
use policy::Endpoint;
use tls::Outward;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout_at,
};

use super::{
    ClusterSettings, READ_AGAIN_AFTER,
    ring::{self, Node},
};
use crate::{
    Failure, Resolver,
    resolver::{LookedUp, MAX_PORTS, is_usable},
};

/// The time limit for connecting and logging in, and for each answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// ERROR codes: what is asked does not exist (a table), or the user may not (`native_protocol_v4.spec`, 9).
const INVALID: i32 = 0x2200;
const BAD_CREDENTIALS: i32 = 0x0100;
const UNAUTHORIZED: i32 = 0x2100;

/// Events of which a node is asked to tell.
const EVENTS: [&str; 2] = ["TOPOLOGY_CHANGE", "STATUS_CHANGE"];

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

pub(super) struct Session {
    client: Client<Box<dyn Stream>>,
    at: SocketAddr,
    opened: Instant,
    cluster_name: Option<String>,
}

impl Session {
    pub(super) fn at(&self) -> SocketAddr {
        self.at
    }

    /// The time since it was opened.
    pub(super) fn age(&self) -> Duration {
        self.opened.elapsed()
    }

    /// The name that the cluster gave itself when its nodes were read last.
    pub(super) fn cluster_name(&self) -> Option<&str> {
        self.cluster_name.as_deref()
    }

    /// Connects, logs in, and asks to be told of changes.
    pub(super) async fn open(
        at: SocketAddr,
        settings: &ClusterSettings,
        resolver: &Resolver,
    ) -> Result<Self, Failure> {
        let until = Instant::now() + PATIENCE;
        let outward = settings.tls.as_ref();
        let outward = outward.map(|tls| Outward::load(tls, &at.ip().to_string(), None));
        let outward = outward.transpose().map_err(Failure::NoNode)?;
        let connected = timeout_at(until.into(), async {
            let stream = resolver.connect(at).await?;
            io::Result::Ok(match &outward {
                Some(outward) => Box::new(outward.begin(stream).await?) as Box<dyn Stream>,
                None => Box::new(stream),
            })
        });
        let stream = connected
            .await
            .map_err(|_| NoAnswer::Late)
            .and_then(|c| Ok(c?));
        let stream = stream.map_err(|why| said(at, &why))?;
        let login = settings.login.as_ref();
        let login = login.map(super::Login::auth_response).transpose()?;
        let startup = cql_client::startup(Compression::None);
        let hello = Hello {
            version: Version::V4,
            compression: Compression::None,
            startup: &startup,
            auth_response: login.as_ref().map(|body| &body[..]),
            keyspace: None,
        };
        let opened = Client::open(stream, &hello, until).await;
        let mut client = opened.map_err(|why| said(at, &why))?;
        let registered = client.register(&EVENTS, until).await;
        registered.map_err(|why| said(at, &why))?;
        Ok(Self {
            client,
            at,
            opened: Instant::now(),
            cluster_name: None,
        })
    }

    /// The nodes that this one knows, and itself.
    pub(super) async fn nodes(&mut self, settings: &ClusterSettings) -> Result<LookedUp, Failure> {
        let at = self.at;
        let nodes = self.read().await.map_err(|why| said(at, &why))?;
        let is_wanted = |node: &Node| {
            settings.datacenters.is_empty()
                || node
                    .datacenter
                    .as_ref()
                    .is_some_and(|dc| settings.datacenters.contains(dc))
        };
        let mut found = LookedUp {
            ttl: READ_AGAIN_AFTER,
            ..LookedUp::default()
        };
        let (mut ports, mut all) = (HashSet::new(), BTreeSet::new());
        for node in nodes.iter().filter(|node| is_wanted(node)) {
            let Some(node) = node.at(at.port()) else {
                continue;
            };
            let has_port = ports.contains(&node.port()) || ports.len() < MAX_PORTS;
            if has_port && is_usable(node.ip(), at.ip().is_loopback()) {
                ports.insert(node.port());
                all.insert(Endpoint::from(node));
            } else {
                found.refused += 1;
            }
        }
        match (all.is_empty(), settings.datacenters.is_empty()) {
            (true, true) => Err(Failure::Unusable),
            (true, false) => Err(Failure::NoNode(format!(
                "{at}: the cluster has no node in the data centres {}",
                settings.datacenters.join(", ")
            ))),
            (false, _) => Ok(LookedUp {
                endpoints: all,
                ..found
            }),
        }
    }

    async fn read(&mut self) -> Result<Vec<Node>, NoAnswer> {
        let until = || Instant::now() + PATIENCE;
        let local = self
            .client
            .query("SELECT * FROM system.local", until())
            .await?;
        let mut names = ring::cluster_names(&local)?;
        self.cluster_name = names.pop().flatten();
        let mut nodes = Node::of_peers(&local)?;
        for own in &mut nodes {
            // Where it listens on all addresses, or behind another one, it is at least where it was dialled.
            own.peer = Some(self.at.ip());
        }
        nodes.push(Node {
            ip: Some(self.at.ip()),
            datacenter: nodes.first().and_then(|own| own.datacenter.clone()),
            ..Node::default()
        });
        let peers = self
            .client
            .query("SELECT * FROM system.peers_v2", until())
            .await;
        let peers = match peers {
            // Cassandra 3, Scylla and YugabyteDB have the older table alone.
            Err(NoAnswer::Refused { code: INVALID, .. }) => {
                let rows = self
                    .client
                    .query("SELECT * FROM system.peers", until())
                    .await?;
                Node::of_peers(&rows)?
            }
            rows => Node::of_peers_v2(&rows?)?,
        };
        nodes.extend(peers);
        Ok(nodes)
    }

    /// Waits until the node tells of a change.
    ///
    /// # Errors
    /// The connection is over.
    pub(super) async fn event(&mut self) -> Result<(), NoAnswer> {
        self.client.event().await
    }
}

fn said(at: SocketAddr, why: &NoAnswer) -> Failure {
    match why {
        NoAnswer::LoginWanted => Failure::LoginFailed(format!(
            "{at}: it wants a log-in: set `user` and `password_file` of the cluster"
        )),
        NoAnswer::Refused {
            code: BAD_CREDENTIALS | UNAUTHORIZED,
            message,
        } => Failure::LoginFailed(format!("{at}: {message}")),
        why => Failure::NoNode(format!("{at}: {why}")),
    }
}
