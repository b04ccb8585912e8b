//! Cases of an application with the Rust driver, each with a table of its own.

use std::{collections::HashMap, ops::ControlFlow};

use scylla::{
    client::session::Session,
    response::PagingState,
    statement::{batch::Batch, batch::BatchType, unprepared::Statement},
};

const LARGE_VALUE_BYTES: usize = 16 << 20;
const PAGE_SIZE: i32 = 100;
/// Rows that are written and read one by one.
pub const ROWS: i32 = 200;
/// Rows that are read in pages.
pub const PAGED_ROWS: i32 = 1200;

/// Everything that an application does; how many pages it was given.
pub async fn workload(session: &Session, keyspace: &str) -> u64 {
    run(session, &format!("DROP KEYSPACE IF EXISTS {keyspace}")).await;
    create_keyspace(session, keyspace).await;
    schema(session).await;
    simple(session).await;
    prepared(session).await;
    batches(session).await;
    large_value(session).await;
    paging(session).await
}

/// Makes a keyspace and goes there.
pub async fn create_keyspace(session: &Session, keyspace: &str) {
    run(
        session,
        &format!(
            "CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = \
             {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        ),
    )
    .await;
    session.use_keyspace(keyspace, false).await.unwrap();
}

pub async fn run(session: &Session, text: &str) {
    if let Err(error) = session.query_unpaged(text, ()).await {
        panic!("{text}: {error}");
    }
}

async fn schema(session: &Session) {
    run(session, "CREATE TABLE made (id int PRIMARY KEY, name text)").await;
    run(session, "ALTER TABLE made ADD tags set<text>").await;
    run(session, "DROP TABLE made").await;
}

async fn simple(session: &Session) {
    run(
        session,
        "CREATE TABLE simple (id int PRIMARY KEY, name text)",
    )
    .await;
    run(session, "INSERT INTO simple (id, name) VALUES (1, 'ünder')").await;
    run(session, "UPDATE simple SET name = 'pass' WHERE id = 2").await;
    let rows = session
        .query_unpaged("SELECT id, name FROM simple", ())
        .await;
    let rows = rows.unwrap().into_rows_result().unwrap();
    let rows: HashMap<i32, String> = rows.rows().unwrap().map(Result::unwrap).collect();
    assert_eq!(rows, [(1, "ünder".into()), (2, "pass".into())].into());
}

async fn prepared(session: &Session) {
    run(
        session,
        "CREATE TABLE prepared (id int PRIMARY KEY, data blob)",
    )
    .await;
    let prepare = async |text| session.prepare(text).await.unwrap();
    let insert = prepare("INSERT INTO prepared (id, data) VALUES (?, ?)").await;
    let select = prepare("SELECT data FROM prepared WHERE id = ?").await;
    let data = |n: i32| vec![n as u8; n as usize];
    for n in 0..ROWS {
        session
            .execute_unpaged(&insert, (n, data(n)))
            .await
            .unwrap();
    }
    for n in 0..ROWS {
        let rows = session.execute_unpaged(&select, (n,)).await.unwrap();
        let row: (Vec<u8>,) = rows.into_rows_result().unwrap().first_row().unwrap();
        assert_eq!(row.0, data(n));
    }
}

async fn batches(session: &Session) {
    run(session, "CREATE TABLE batched (id int PRIMARY KEY, v text)").await;
    let insert = session
        .prepare("INSERT INTO batched (id, v) VALUES (?, ?)")
        .await;
    let insert = insert.unwrap();
    for (kind, first) in [(BatchType::Logged, 0), (BatchType::Unlogged, 10)] {
        let mut batch = Batch::new(kind);
        batch.append_statement(insert.clone());
        let simple = format!(
            "INSERT INTO batched (id, v) VALUES ({}, 'simple')",
            first + 1
        );
        batch.append_statement(simple.as_str());
        session
            .batch(&batch, ((first, "prepared"), ()))
            .await
            .unwrap();
    }
    let rows = session.query_unpaged("SELECT id, v FROM batched", ()).await;
    let rows = rows.unwrap().into_rows_result().unwrap();
    let rows: HashMap<i32, String> = rows.rows().unwrap().map(Result::unwrap).collect();
    let wanted = [
        (0, "prepared"),
        (1, "simple"),
        (10, "prepared"),
        (11, "simple"),
    ];
    assert_eq!(rows, wanted.map(|(id, v)| (id, v.to_owned())).into());
}

async fn large_value(session: &Session) {
    run(
        session,
        "CREATE TABLE large (id int PRIMARY KEY, data blob)",
    )
    .await;
    let insert = session
        .prepare("INSERT INTO large (id, data) VALUES (1, ?)")
        .await;
    let data: Vec<u8> = (0..LARGE_VALUE_BYTES / 4)
        .flat_map(|n| (n as u32).wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    session
        .execute_unpaged(&insert.unwrap(), (&data,))
        .await
        .unwrap();
    let rows = session
        .query_unpaged("SELECT data FROM large WHERE id = 1", ())
        .await;
    let row: (Vec<u8>,) = rows
        .unwrap()
        .into_rows_result()
        .unwrap()
        .first_row()
        .unwrap();
    assert!(row.0 == data, "{} bytes came back", row.0.len());
}

async fn paging(session: &Session) -> u64 {
    run(
        session,
        "CREATE TABLE paged (p int, c int, v text, PRIMARY KEY (p, c))",
    )
    .await;
    let insert = session
        .prepare("INSERT INTO paged (p, c, v) VALUES (1, ?, ?)")
        .await;
    let insert = insert.unwrap();
    for n in 0..PAGED_ROWS {
        session
            .execute_unpaged(&insert, (n, "x".repeat(50)))
            .await
            .unwrap();
    }
    let select = Statement::new("SELECT c FROM paged WHERE p = 1").with_page_size(PAGE_SIZE);
    let (mut seen, mut pages, mut state) = (Vec::new(), 0, PagingState::start());
    loop {
        let (page, next) = session
            .query_single_page(select.clone(), (), state)
            .await
            .unwrap();
        let page = page.into_rows_result().unwrap();
        assert!(page.rows_num() <= PAGE_SIZE as usize);
        seen.extend(page.rows::<(i32,)>().unwrap().map(|row| row.unwrap().0));
        pages += 1;
        match next.into_paging_control_flow() {
            ControlFlow::Break(()) => break,
            ControlFlow::Continue(next) => state = next,
        }
    }
    assert_eq!(seen, (0..PAGED_ROWS).collect::<Vec<_>>());
    pages
}
