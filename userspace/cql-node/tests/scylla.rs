//! The node against a real driver.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use cql_node::{Node, NodeOptions};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::response::PagingState;
use scylla::statement::batch::Batch;
use scylla::statement::unprepared::Statement;

async fn connect(node: &Node) -> Session {
    SessionBuilder::new()
        .known_node_addr(node.addr())
        .build()
        .await
        .unwrap()
}

/// A node with keyspace `ks`, and a session.
async fn started() -> (Node, Session) {
    let node = Node::start(NodeOptions::default()).unwrap();
    let session = connect(&node).await;
    run(&session, "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}").await;
    (node, session)
}

async fn run(session: &Session, text: &str) {
    session
        .query_unpaged(text, ())
        .await
        .unwrap_or_else(|e| panic!("{text}: {e}"));
}

#[tokio::test]
async fn what_is_written_is_read() {
    let (_node, session) = started().await;
    run(
        &session,
        "CREATE TABLE ks.t (k int, c text, v blob, m map<text, int>, PRIMARY KEY (k, c))",
    )
    .await;
    let insert = session
        .prepare("INSERT INTO ks.t (k, c, v, m) VALUES (?, ?, ?, ?)")
        .await
        .unwrap();
    let select = session
        .prepare("SELECT v, m FROM ks.t WHERE k = ? AND c = ?")
        .await
        .unwrap();
    let map = HashMap::from([("a".to_owned(), 1)]);
    session
        .execute_unpaged(&insert, (1, "x", vec![1u8, 2], &map))
        .await
        .unwrap();
    session
        .query_unpaged("UPDATE ks.t SET v = 0x0304 WHERE k = 1 AND c = 'y'", ())
        .await
        .unwrap();

    let read = async |c: &str| {
        let rows = session
            .execute_unpaged(&select, (1, c))
            .await
            .unwrap()
            .into_rows_result()
            .unwrap();
        rows.maybe_first_row::<(Option<Vec<u8>>, Option<HashMap<String, i32>>)>()
            .unwrap()
    };
    assert_eq!(read("x").await, Some((Some(vec![1, 2]), Some(map))));
    assert_eq!(read("y").await, Some((Some(vec![3, 4]), None)));
    run(&session, "DELETE FROM ks.t WHERE k = 1 AND c = 'x'").await;
    assert_eq!(read("x").await, None);
    run(&session, "TRUNCATE ks.t").await;
    assert_eq!(read("y").await, None);
}

#[tokio::test]
async fn errors_tell_what_is_wrong() {
    let (_node, session) = started().await;
    run(&session, "CREATE TABLE ks.t (k int PRIMARY KEY, v int)").await;
    for (text, part) in [
        ("SELEC", "syntax"),
        ("SELECT * FROM ks.nope", "does not exist"),
        ("SELECT nope FROM ks.t", "Undefined column"),
        ("SELECT * FROM ks.t WHERE v = 1", "ALLOW FILTERING"),
        ("INSERT INTO ks.t (v) VALUES (1)", "missing"),
        ("INSERT INTO ks.t (k) VALUES ('x')", "Invalid constant"),
        ("CREATE TABLE ks.t (k int PRIMARY KEY)", "already"),
        (
            "INSERT INTO system.local (key) VALUES ('x')",
            "not user-modifiable",
        ),
    ] {
        let error = session
            .query_unpaged(text, ())
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    run(&session, "SELECT * FROM ks.t WHERE v = 1 ALLOW FILTERING").await;
    run(
        &session,
        "CREATE TABLE IF NOT EXISTS ks.t (k int PRIMARY KEY)",
    )
    .await;
}

#[tokio::test]
async fn pages_follow_each_other() {
    let (_node, session) = started().await;
    run(
        &session,
        "CREATE TABLE ks.t (k int, c int, PRIMARY KEY (k, c)) WITH CLUSTERING ORDER BY (c DESC)",
    )
    .await;
    let insert = session
        .prepare("INSERT INTO ks.t (k, c) VALUES (?, ?)")
        .await
        .unwrap();
    for i in 0..100 {
        session.execute_unpaged(&insert, (i % 4, i)).await.unwrap();
    }
    let paged = async |text: &str| {
        let statement = Statement::new(text).with_page_size(7);
        let (mut seen, mut state): (Vec<i32>, _) = (Vec::new(), PagingState::start());
        loop {
            let (page, next) = session
                .query_single_page(statement.clone(), (), state)
                .await
                .unwrap();
            let rows = page.into_rows_result().unwrap();
            assert!(rows.rows_num() <= 7);
            seen.extend(rows.rows::<(i32,)>().unwrap().map(|r| r.unwrap().0));
            match next.into_paging_control_flow() {
                ControlFlow::Break(()) => return seen,
                ControlFlow::Continue(next) => state = next,
            }
        }
    };
    let ascending: Vec<i32> = (0..100).filter(|i| i % 4 == 2).collect();
    let descending: Vec<i32> = ascending.iter().rev().copied().collect();
    assert_eq!(paged("SELECT c FROM ks.t WHERE k = 2").await, descending);
    assert_eq!(
        paged("SELECT c FROM ks.t WHERE k = 2 ORDER BY c ASC").await,
        ascending
    );
    assert_eq!(
        paged("SELECT c FROM ks.t WHERE k = 2 LIMIT 10").await,
        descending[..10]
    );
    assert_eq!(paged("SELECT DISTINCT k FROM ks.t").await, [0, 1, 2, 3]);
    let mut all = paged("SELECT c FROM ks.t").await;
    all.sort_unstable();
    assert_eq!(all, (0..100).collect::<Vec<i32>>());
}

#[tokio::test]
async fn batches_conditions_and_counters() {
    let (_node, session) = started().await;
    run(&session, "CREATE TABLE ks.t (k int PRIMARY KEY, v int)").await;
    let mut batch = Batch::default();
    batch.append_statement(
        session
            .prepare("INSERT INTO ks.t (k, v) VALUES (?, ?)")
            .await
            .unwrap(),
    );
    batch.append_statement("INSERT INTO ks.t (k, v) VALUES (2, 20)");
    session.batch(&batch, ((1, 10), ())).await.unwrap();
    run(
        &session,
        "BEGIN BATCH DELETE FROM ks.t WHERE k = 1; UPDATE ks.t SET v = 30 WHERE k = 3; APPLY BATCH",
    )
    .await;
    let one = async |text: &str| {
        session
            .query_unpaged(text, ())
            .await
            .unwrap()
            .into_rows_result()
            .unwrap()
            .first_row::<(i64,)>()
            .unwrap()
            .0
    };
    assert_eq!(one("SELECT count(*) FROM ks.t").await, 2);

    let applied = async |text: &str| {
        let rows = session
            .query_unpaged(text, ())
            .await
            .unwrap()
            .into_rows_result()
            .unwrap();
        rows.rows::<scylla::value::Row>()
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .columns[0]
            .clone()
            .unwrap()
            .as_boolean()
    };
    assert_eq!(
        applied("INSERT INTO ks.t (k, v) VALUES (3, 0) IF NOT EXISTS").await,
        Some(false)
    );
    assert_eq!(
        applied("UPDATE ks.t SET v = 31 WHERE k = 3 IF v = 30").await,
        Some(true)
    );
    assert_eq!(
        applied("DELETE FROM ks.t WHERE k = 3 IF v = 30").await,
        Some(false)
    );

    run(&session, "CREATE TABLE ks.n (k int PRIMARY KEY, n counter)").await;
    run(&session, "UPDATE ks.n SET n = n + 5 WHERE k = 1").await;
    run(&session, "UPDATE ks.n SET n = n - 2 WHERE k = 1").await;
    let rows = session
        .query_unpaged("SELECT n FROM ks.n", ())
        .await
        .unwrap()
        .into_rows_result()
        .unwrap();
    assert_eq!(
        rows.first_row::<(scylla::value::Counter,)>().unwrap().0.0,
        3
    );
}

#[tokio::test]
async fn large_values() {
    let (_node, session) = started().await;
    run(&session, "CREATE TABLE ks.t (k int PRIMARY KEY, v blob)").await;
    let insert = session
        .prepare("INSERT INTO ks.t (k, v) VALUES (?, ?)")
        .await
        .unwrap();
    let select = session
        .prepare("SELECT v FROM ks.t WHERE k = ?")
        .await
        .unwrap();
    for size in [1 << 20, 16 << 20] {
        let value: Vec<u8> = (0..size)
            .map(|i: u32| i.to_le_bytes()[i as usize % 3])
            .collect();
        session
            .execute_unpaged(&insert, (size as i32, &value))
            .await
            .unwrap();
        let rows = session
            .execute_unpaged(&select, (size as i32,))
            .await
            .unwrap()
            .into_rows_result()
            .unwrap();
        assert!(rows.first_row::<(Vec<u8>,)>().unwrap().0 == value);
    }
}

#[tokio::test]
async fn a_changed_schema_reaches_prepared_statements() {
    let (_node, session) = started().await;
    run(&session, "CREATE TABLE ks.t (k int PRIMARY KEY, v int)").await;
    let select = session
        .prepare("SELECT * FROM ks.t WHERE k = ?")
        .await
        .unwrap();
    run(&session, "DROP TABLE ks.t").await;
    assert!(session.execute_unpaged(&select, (1,)).await.is_err());
    run(&session, "CREATE TABLE ks.t (k int PRIMARY KEY, v int)").await;
    session.execute_unpaged(&select, (1,)).await.unwrap();
}

#[tokio::test]
async fn passwords_are_checked_and_clients_are_told() {
    let node = Node::start(NodeOptions::of_user("ann", "secret")).unwrap();
    let builder = |password| {
        SessionBuilder::new()
            .known_node_addr(node.addr())
            .user("ann", password)
    };
    let refused = format!("{:?}", builder("wrong").build().await.unwrap_err());
    assert!(
        refused.contains("ann and/or password are incorrect"),
        "{refused}"
    );

    let session = builder("secret").build().await.unwrap();
    let text =
        "SELECT address, port, username, driver_name, protocol_version FROM system_views.clients";
    let rows = session
        .query_unpaged(text, ())
        .await
        .unwrap()
        .into_rows_result()
        .unwrap();
    let told: Vec<(std::net::IpAddr, i32, String, String, i32)> =
        rows.rows().unwrap().map(|row| row.unwrap()).collect();
    let clients = node.clients();
    assert!(!clients.is_empty());
    for client in clients {
        assert_eq!((client.user.as_deref(), client.version), (Some("ann"), 4));
        let port = i32::from(client.peer.port());
        let row = told.iter().find(|r| (r.0, r.1) == (client.peer.ip(), port));
        assert_eq!(
            row.map(|r| (r.2.as_str(), r.3.as_str(), r.4)),
            Some(("ann", "ScyllaDB Rust Driver", 4)),
            "{told:?}"
        );
    }
}

#[tokio::test]
async fn many_at_once() {
    let (node, session) = started().await;
    run(&session, "CREATE TABLE ks.t (k int PRIMARY KEY, v int)").await;
    let session = Arc::new(session);
    let insert = session
        .prepare("INSERT INTO ks.t (k, v) VALUES (?, ?)")
        .await
        .unwrap();
    let select = session
        .prepare("SELECT v FROM ks.t WHERE k = ?")
        .await
        .unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..32 {
        let (session, insert, select) = (Arc::clone(&session), insert.clone(), select.clone());
        tasks.spawn(async move {
            for k in (task * 100)..(task * 100 + 100) {
                session.execute_unpaged(&insert, (k, k * 2)).await.unwrap();
                let rows = session
                    .execute_unpaged(&select, (k,))
                    .await
                    .unwrap()
                    .into_rows_result()
                    .unwrap();
                assert_eq!(rows.first_row::<(i32,)>().unwrap().0, k * 2);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert!(node.clients().iter().map(|c| c.requests).sum::<u64>() >= 6400);
}
