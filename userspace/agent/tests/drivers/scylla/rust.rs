//! The Rust driver, in this process.

use std::ops::ControlFlow;

use scylla::{
    client::session::Session,
    response::PagingState,
    statement::{batch::Batch, prepared::PreparedStatement, unprepared::Statement},
};

use super::{
    ROWS, Server, V1, V2,
    steps::{self, Last, PAGE},
};
use crate::{
    rust::{connect, in_cgroup, runs},
    workload::run,
};

#[test]
fn v1_directly() {
    directly("scylla::rust::v1_directly", &V1);
}

#[test]
fn v2_directly() {
    directly("scylla::rust::v2_directly", &V2);
}

#[test]
fn v1_through_rewrite() {
    through("scylla::rust::v1_through_rewrite", &V1, Last::Rewrite);
}

#[test]
fn v2_through_rewrite() {
    through("scylla::rust::v2_through_rewrite", &V2, Last::Rewrite);
}

#[test]
fn v1_through_cache() {
    through("scylla::rust::v1_through_cache", &V1, Last::Cache);
}

#[test]
fn v2_through_cache() {
    through("scylla::rust::v2_through_cache", &V2, Last::Cache);
}

#[test]
fn v1_is_told_of_copies() {
    super::told_of_copies(|server, cgroup| {
        in_cgroup(cgroup, async || {
            let pages = suite(server, "scylla::rust::v1_is_told_of_copies").await;
            assert_eq!(pages, 1);
        });
    });
}

fn directly(test: &str, extensions: &[&'static str]) {
    let server = Server::start(extensions, super::KEYSPACE);
    runs(None, async || {
        let pages = suite(&server, test).await;
        assert_eq!(pages, 1);
    });
}

fn through(test: &str, extensions: &[&'static str], last: Last) {
    steps::through(test, extensions, last, |server, cgroup| {
        in_cgroup(cgroup, async || {
            let pages = suite(server, test).await;
            assert_eq!(pages, (ROWS as u64).div_ceil(PAGE as u64));
        });
    });
}

/// Everything that an extension changes; how many pages a read of all rows took.
async fn suite(server: &Server, test: &str) -> u64 {
    let session = connect(&server.access, test).await.unwrap();
    simple(&session).await;
    conditional(&session).await;
    cached(&session).await;
    limited(&session).await;
    changed(&session, server, test).await;
    let pages = paged(&session).await;
    if pages > 1 {
        steps::wait_for_raised(server).await;
        closed(&session).await;
    }
    server.wait_for_both_shards().await;
    pages
}

async fn prepare(session: &Session, text: &str) -> PreparedStatement {
    let mut prepared = session.prepare(text).await.unwrap();
    // The description of the rows is not sent again, unless it has changed.
    prepared.set_use_cached_result_metadata(true);
    prepared
}

async fn simple(session: &Session) {
    let insert = "INSERT INTO app.things (id, name, n) VALUES (?, ?, ?)";
    let insert = prepare(session, insert).await;
    let select = prepare(session, "SELECT name, n FROM app.things WHERE id = ?").await;
    for id in 0..20 {
        let values = (id, format!("thing {id}"), id * 2);
        session.execute_unpaged(&insert, values).await.unwrap();
    }
    let mut batch = Batch::default();
    batch.append_statement(insert.clone());
    batch.append_statement(insert);
    let values = ((20, "thing 20", 40), (21, "thing 21", 42));
    session.batch(&batch, values).await.unwrap();
    for id in 0..22 {
        let rows = session.execute_unpaged(&select, (id,)).await.unwrap();
        let row: (String, i32) = rows.into_rows_result().unwrap().first_row().unwrap();
        assert_eq!(row, (format!("thing {id}"), id * 2));
    }
}

async fn conditional(session: &Session) {
    let text = "INSERT INTO app.things (id, name) VALUES (?, ?) IF NOT EXISTS";
    let insert = prepare(session, text).await;
    assert!(insert.is_confirmed_lwt(), "the mark");
    let select = prepare(session, "SELECT name FROM app.things WHERE id = ?").await;
    assert!(!select.is_confirmed_lwt());
    // One that does not apply would have other columns, whose description would be sent.
    let rows = session.execute_unpaged(&insert, (100, "once")).await;
    let applied: (bool,) = rows
        .unwrap()
        .into_rows_result()
        .unwrap()
        .first_row()
        .unwrap();
    assert!(applied.0);
}

async fn cached(session: &Session) {
    let insert = prepare(session, "INSERT INTO app.cached (id, v) VALUES (?, ?)").await;
    let select = prepare(session, "SELECT v FROM app.cached WHERE id = ?").await;
    for value in ["before", "after"] {
        session.execute_unpaged(&insert, (1, value)).await.unwrap();
        for _ in 0..10 {
            let rows = session.execute_unpaged(&select, (1,)).await.unwrap();
            let row: (String,) = rows.into_rows_result().unwrap().first_row().unwrap();
            assert_eq!(row.0, value);
        }
    }
}

async fn limited(session: &Session) {
    let select = prepare(session, "SELECT v FROM app.limited WHERE id = ?").await;
    let refused = session.execute_unpaged(&select, (1,)).await.unwrap_err();
    let refused = format!("{refused:?}");
    assert!(refused.contains("RateLimitReached"), "{refused}");
}

/// The table becomes another one behind the driver, which learns of its new columns from the answer.
async fn changed(session: &Session, server: &Server, test: &str) {
    let text = "SELECT * FROM app.changing";
    let select = prepare(session, text).await;
    session.execute_unpaged(&select, ()).await.unwrap();
    let other = connect(&server.access, test).await.unwrap();
    run(&other, "DROP TABLE app.changing").await;
    let create = "CREATE TABLE app.changing (id int PRIMARY KEY, a text, b text)";
    run(&other, create).await;
    prepare(&other, text).await;
    run(
        &other,
        "INSERT INTO app.changing (id, a, b) VALUES (1, 'a', 'b')",
    )
    .await;
    let rows = session.execute_unpaged(&select, ()).await.unwrap();
    let row: (i32, String, String) = rows.into_rows_result().unwrap().first_row().unwrap();
    assert_eq!(row, (1, "a".to_owned(), "b".to_owned()));
}

async fn paged(session: &Session) -> u64 {
    let insert = prepare(session, "INSERT INTO app.many (k, c, v) VALUES (1, ?, ?)").await;
    for c in 0..ROWS {
        session.execute_unpaged(&insert, (c, "v")).await.unwrap();
    }
    let statement = Statement::new("SELECT c FROM app.many WHERE k = ?").with_page_size(1000);
    let mut select = session.prepare(statement).await.unwrap();
    select.set_use_cached_result_metadata(true);
    let (mut state, mut pages, mut next) = (PagingState::start(), 0, 0);
    loop {
        let page = session.execute_single_page(&select, (1,), state).await;
        let (rows, after) = page.unwrap();
        pages += 1;
        for row in rows.into_rows_result().unwrap().rows::<(i32,)>().unwrap() {
            assert_eq!(row.unwrap().0, next);
            next += 1;
        }
        match after.into_paging_control_flow() {
            ControlFlow::Break(()) => break,
            ControlFlow::Continue(after) => state = after,
        }
    }
    assert_eq!(next, ROWS);
    pages
}

async fn closed(session: &Session) {
    let refused = session
        .prepare("SELECT v FROM app.closed WHERE id = ?")
        .await;
    let refused = format!("{:?}", refused.unwrap_err());
    assert!(refused.contains("app.closed"), "{refused}");
}
