//! Clusters of embedded nodes, which tell of one another as a test says.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use cql_node::{Node, NodeOptions};
use policy::{Endpoint, Name};
use prometheus::Registry;
use tokio::{sync::watch, time::timeout};

use names::{
    Book, ClusterSettings, ContactPoint, Files, Follower, Login, NameMetrics, Resolver, Wanted,
    dial_plainly, look_up_once,
};

/// Everything that is waited for comes within this.
const PATIENCE: Duration = Duration::from_secs(20);

fn resolver() -> Resolver {
    Resolver::new(Files::default(), dial_plainly())
}

fn settings(nodes: &[SocketAddr]) -> ClusterSettings {
    ClusterSettings {
        name: "shop".into(),
        contact_points: nodes.iter().map(|at| ContactPoint::At(*at)).collect(),
        login: None,
        tls: None,
        datacenters: Vec::new(),
    }
}

fn wanted(settings: ClusterSettings) -> Wanted {
    Wanted {
        names: vec![name()],
        clusters: vec![Arc::new(settings)],
    }
}

fn name() -> Name {
    Name::Cluster("shop".into())
}

fn endpoints(nodes: &[SocketAddr]) -> Vec<Endpoint> {
    let mut all: Vec<_> = nodes.iter().map(|at| Endpoint::from(*at)).collect();
    all.sort();
    all
}

fn at(last: u8) -> SocketAddr {
    ([127, 77, 0, last], 9042).into()
}

async fn once(settings: ClusterSettings) -> (Vec<Endpoint>, Option<String>) {
    let book = look_up_once(&wanted(settings), &resolver()).await;
    let views = book.views(tokio::time::Instant::now());
    let why = views.into_iter().find_map(|view| view.error);
    (book.endpoints(&name()), why)
}

#[tokio::test]
async fn the_nodes_are_those_that_a_node_tells_and_a_change_is_known_at_once() {
    let node = Node::start(NodeOptions::default()).unwrap();
    let other = Node::start(NodeOptions::default()).unwrap();
    let ring = |more: &[SocketAddr]| [&[node.addr(), other.addr()], more].concat();
    node.set_ring(ring(&[at(1)]));
    other.set_ring(ring(&[at(1), at(2), at(3)]));
    let metrics = NameMetrics::register(&Registry::new()).unwrap();
    // It is asked first, and tells of the other.
    let first = wanted(settings(&[node.addr()]));
    let follower = Follower::begin(&first, resolver(), metrics).await;
    let mut book = follower.book();
    assert_eq!(book.borrow().endpoints(&name()), endpoints(&ring(&[at(1)])));
    let (_tell, heed) = watch::channel(Arc::new(first));
    let running = tokio::spawn(follower.run(dial_plainly(), heed));
    // The connection stays: it tells of the change, without which a minute would pass.
    timeout(PATIENCE, async {
        while node.connections_total() < 2 || node.clients().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    let nodes = |count: usize| move |book: &Book| book.endpoints(&name()).len() == count;
    // Whether it has registered by now nobody tells, so it is told until it has heard.
    let told = async {
        loop {
            node.set_ring(ring(&[at(1), at(2)]));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        known = timeout(PATIENCE, book.wait_for(nodes(4))) => drop(known.unwrap().unwrap()),
        () = told => {}
    }
    // Another node, which is known of it, goes on.
    drop(node);
    timeout(PATIENCE, book.wait_for(nodes(5)))
        .await
        .unwrap()
        .unwrap();
    running.abort();
}

#[tokio::test]
async fn who_is_not_let_in_learns_why() {
    let node = Node::start(NodeOptions::of_user("reader", "secret")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let password_file = folder.path().join("password");
    let with = |password: &str| {
        std::fs::write(&password_file, password).unwrap();
        ClusterSettings {
            login: Some(Login {
                user: "reader".into(),
                password_file: password_file.clone(),
            }),
            ..settings(&[node.addr()])
        }
    };
    let (found, why) = once(settings(&[node.addr()])).await;
    assert!(found.is_empty() && why.unwrap().contains("it wants a log-in: set `user`"));
    let (found, why) = once(with("wrong\n")).await;
    let why = why.unwrap();
    assert!(found.is_empty() && !why.contains("wrong\n"), "{why}");
    let (found, why) = once(with("secret\n")).await;
    assert_eq!((found, why), (endpoints(&[node.addr()]), None));
}

#[tokio::test]
async fn nodes_of_other_data_centres_do_not_count() {
    let node = Node::start(NodeOptions::default()).unwrap();
    node.set_ring(vec![node.addr(), at(1)]);
    let of = |datacenter: &str| ClusterSettings {
        datacenters: vec![datacenter.to_owned()],
        ..settings(&[node.addr()])
    };
    let (found, _) = once(of("datacenter1")).await;
    assert_eq!(found, endpoints(&[node.addr(), at(1)]));
    let (found, why) = once(of("elsewhere")).await;
    assert!(found.is_empty());
    assert!(
        why.unwrap()
            .contains("no node in the data centres elsewhere")
    );
}

#[tokio::test]
async fn nodes_of_a_database_without_the_newer_table_are_read_in_the_older_one() {
    let node = Node::start(NodeOptions {
        has_peers_v2: false,
        ..NodeOptions::default()
    })
    .unwrap();
    let port = node.addr().port();
    let peers = [2, 3].map(|last| SocketAddr::from(([127, 77, 0, last], port)));
    // The older table has no ports: all are at that of the node that was asked.
    let elsewhere = SocketAddr::from(([127, 77, 0, 4], port ^ 1));
    let told = SocketAddr::new(elsewhere.ip(), port);
    node.set_ring([&[node.addr(), elsewhere], &peers[..]].concat());
    let (found, why) = once(settings(&[node.addr()])).await;
    let all = endpoints(&[&[node.addr(), told], &peers[..]].concat());
    assert_eq!((found, why), (all, None));
}

#[tokio::test]
async fn nobody_there_is_said() {
    let (found, why) = once(settings(&[at(9)])).await;
    assert!(found.is_empty());
    assert!(why.unwrap().contains("127.77.0.9:9042"));
}
