//! Every peer that this host has, in front of embedded nodes.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests say what they expect by failing"
)]

mod common;

use std::{
    net::TcpStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use common::{Client, ERROR, RESULT, found, node, setup};
use scylla::client::session_builder::SessionBuilder;

/// Makes a test for each of a peer's claims, so that a peer that is missing is a skip of its own.
macro_rules! for_each_peer {
    ($($peer:ident: $claims:tt),* $(,)?) => {$(for_each_peer!(@ $peer $claims);)*};
    (@ $peer:ident [$($claim:ident),*]) => {
        mod $peer {$(
            #[test]
            fn $claim() {
                let test = concat!(stringify!($peer), "::", stringify!($claim));
                super::$claim(test, stringify!($peer));
            }
        )*}
    };
}

for_each_peer! {
    haproxy: [each_front_leads_to_its_own_backend, nothing_is_left_of_it, a_driver_works_through_it],
    nginx: [each_front_leads_to_its_own_backend, nothing_is_left_of_it, a_driver_works_through_it],
    envoy: [each_front_leads_to_its_own_backend, nothing_is_left_of_it, a_driver_works_through_it],
    shotover: [each_front_leads_to_its_own_backend, nothing_is_left_of_it, a_driver_works_through_it],
}

fn each_front_leads_to_its_own_backend(test: &str, name: &str) {
    let Some((peer, found)) = found(test, name) else {
        return;
    };
    let version = found.version.as_deref().unwrap_or_default();
    assert!(version.contains('.'), "{found:?}");
    let folder = tempfile::tempdir().unwrap();
    let nodes = [node(), node()];
    let running = peer.start(&found, &setup(folder.path(), &nodes)).unwrap();
    assert_eq!(running.fronts.len(), nodes.len());
    for (index, front) in running.fronts.iter().enumerate() {
        let mut client = Client::started(*front);
        let create = format!(
            "CREATE KEYSPACE IF NOT EXISTS only{index} WITH replication = \
             {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        );
        assert_eq!(client.query(&create), RESULT);
        assert_eq!(client.query("SELECT key FROM system.local"), RESULT);
    }
    for (index, node) in nodes.iter().enumerate() {
        let mut client = Client::started(node.addr());
        assert_eq!(client.query(&format!("USE only{index}")), RESULT);
        assert_eq!(client.query(&format!("USE only{}", 1 - index)), ERROR);
    }
}

fn nothing_is_left_of_it(test: &str, name: &str) {
    let Some((peer, found)) = found(test, name) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let nodes = [node()];
    // Twice in the same folder: what the first left there must not hinder the second.
    for _ in 0..2 {
        let running = peer.start(&found, &setup(folder.path(), &nodes)).unwrap();
        let (fronts, pids) = (running.fronts.clone(), running.pids());
        // nginx has a master and at least one worker; the others are one process.
        assert_eq!(pids.len() > 1, name == "nginx", "{pids:?}");
        // The clients are connected and stay so.
        let _client = Client::started(fronts[0]);
        let stopping = Instant::now();
        drop(running);
        assert!(
            stopping.elapsed() < Duration::from_secs(5),
            "it had to be killed"
        );
        assert!(
            TcpStream::connect(fronts[0]).is_err(),
            "somebody listens still"
        );
        // The workers are reaped by init, in its own time.
        let deadline = Instant::now() + Duration::from_secs(5);
        for pid in pids {
            while Path::new(&format!("/proc/{pid}")).exists() {
                assert!(Instant::now() < deadline, "process {pid} is left");
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn a_driver_works_through_it(test: &str, name: &str) {
    let Some((peer, found)) = found(test, name) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let nodes = [node()];
    let running = peer.start(&found, &setup(folder.path(), &nodes)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let session = SessionBuilder::new()
            .known_node_addr(running.fronts[0])
            .build()
            .await
            .unwrap();
        for cql in [
            "CREATE KEYSPACE ks WITH replication = \
             {'class': 'SimpleStrategy', 'replication_factor': 1}",
            "CREATE TABLE ks.t (k int PRIMARY KEY, v text)",
        ] {
            session.query_unpaged(cql, ()).await.unwrap();
        }
        let write = session
            .prepare("INSERT INTO ks.t (k, v) VALUES (?, ?)")
            .await
            .unwrap();
        let read = session
            .prepare("SELECT v FROM ks.t WHERE k = ?")
            .await
            .unwrap();
        for key in 0..20 {
            session
                .execute_unpaged(&write, (key, "value"))
                .await
                .unwrap();
            let rows = session.execute_unpaged(&read, (key,)).await.unwrap();
            let rows = rows.into_rows_result().unwrap();
            assert_eq!(rows.single_row::<(String,)>().unwrap().0, "value");
        }
        // A driver that had found its way around the peer would not notice its end.
        drop(running);
        assert!(session.execute_unpaged(&read, (0,)).await.is_err());
    });
}
